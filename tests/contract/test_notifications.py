"""From the logs of runs to messages, over each store: what is sent, when, how often, and what is not."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.event_log.follower import EventFollower
from soong.orchestrator.notifications.channels import Delivery
from soong.orchestrator.notifications.consumer import NotificationConsumer, facts_of, occurrence_of, one_line
from soong.orchestrator.notifications.message import Message
from soong.orchestrator.notifications.sender import PAGE, NotificationSender
from soong.shared.core import timing
from soong.shared.core.config import parse_config
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.engine.runs.events import Event, EventType, NewEvent
from soong.shared.engine.tasks.event_feed import FeedRun, Notice
from soong.shared.engine.tasks.spec import FailurePolicy, TaskKind
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.signing import prove
from soong.shared.sandbox.redact import Redactor
from tests.contract.scene import ContractHarness
from tests.model.builders import make_answer, make_owner, make_request
from tests.waiting import until

pytestmark = pytest.mark.spec("OPS-11.e")

CONFIG = """
[notifications]
console = "https://soong.example.org"
[notifications.webhook.ops]
url = "http://127.0.0.1:9/"
secret = "env:OPS_SECRET"
group_s = 60
{channel}
[[notifications.rules]]
channel = "ops"
events = ["question", "failure", "end", "budget", "worker_lost"]
{rule}
"""


def config_of(channel: str = "", rule: str = "") -> NotificationsConfig:
    return parse_config(CONFIG.format(channel=channel, rule=rule)).notifications


@dataclass
class RecordingChannel:
    """A channel whose receiver is this test."""

    messages: list[Message] = field(default_factory=list)
    answer: Delivery = field(default_factory=Delivery)

    async def send(self, message: Message) -> Delivery:
        self.messages.append(message)
        return self.answer

    @property
    def titles(self) -> list[str]:
        return [message.title for message in self.messages]


@dataclass
class HangingChannel:
    """A channel whose receiver accepts and never answers."""

    began: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message: Message) -> Delivery:
        self.began.set()
        await asyncio.Event().wait()
        return Delivery()


@dataclass
class Site:
    """One orchestrator that notifies, as often as the test lets it look."""

    scene: ContractHarness
    config: NotificationsConfig
    channel: RecordingChannel = field(default_factory=RecordingChannel)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start again, as after a crash: only the rows are kept."""
        store, clock = self.scene.store, self.scene.clock
        redactor = Redactor(("s3cr3t-value",))
        consumer = NotificationConsumer(self.config, store.outbox, store.consent, store.runs, clock, redactor)
        owner_id = self.scene.own.owner_id
        self.follower = EventFollower(store.feed, consumer, clock, lambda: owner_id, 1.0)
        self.sender = NotificationSender(
            self.config,
            {"ops": self.channel},
            store.outbox,
            store.consent,
            clock,
            lambda: owner_id,
            lambda: self.follower.is_acting,
            redactor,
            random=lambda: 0.5,
        )

    async def look(self, after: float = 0) -> Sequence[Message]:
        """Follow and send, after seconds have passed; return what has been sent by now."""
        self.scene.clock.advance(timedelta(seconds=after))
        await self.follower.look()
        await self.sender.look()
        return self.channel.messages

    async def states(self) -> list[str]:
        return [one.state.value for one in await self.scene.store.outbox.notices(include_ended=True, limit=99)]


@pytest.fixture
def site(scene: ContractHarness) -> Site:
    return Site(scene, config_of())


async def ask(
    scene: ContractHarness, claim: Claim, call: str = "call_1", *, is_proven: bool = True, **changed: str
) -> PermissionRequest:
    """Raise a question with its event, as a worker does."""
    request = replace(make_request(claim, call), **changed)
    request = replace(request, proof=prove(claim.token, request) if is_proven else "forged")
    data = {"request_id": request.id, "tool": request.tool, "shown": request.shown}
    return await scene.raised(request, [NewEvent(EventType.PERMISSION_REQUESTED, data, scene.now_us)])


@pytest.mark.spec("OPS-11.b")
async def test_questions_of_one_window_are_one_message_with_who_and_what_and_no_input(site: Site) -> None:
    claim = await site.scene.start("a")
    first = await ask(site.scene, claim, "call_1")
    assert await site.look() == []
    assert await site.look(30) == []
    await ask(site.scene, claim, "call_2")

    (message,) = await site.look(31)
    assert await site.look(600) == [message]

    told: Any = message.as_json()
    assert message.title == "2 questions"
    assert {one.request_id for one in message.notices} >= {first.id}
    assert message.link == "https://soong.example.org/#/inbox"
    (shown, _) = told["data"]["notices"]
    assert (shown["tool"], shown["risk"], shown["agent"]) == ("code.write_file", "write", claim.identity.definition)
    assert shown["link"] == f"https://soong.example.org/#/inbox/{first.id}"
    assert shown["command"] == f"soong approvals show {first.id}"
    assert "report.md" not in str(told) + "\n".join(message.lines)
    assert "12 bytes" not in str(told)
    assert await site.states() == ["sent", "sent"]


@pytest.mark.spec("OPS-11.c")
async def test_what_waits_for_a_channel_that_was_removed_is_given_up_and_can_be_sent_later(site: Site) -> None:
    outbox, now_us = site.scene.store.outbox, site.scene.now_us
    await outbox.add([Notice(f"n{number}", "old", "question", "s", "", now_us, now_us + number) for number in range(3)])

    assert await site.look() == []

    given_up = await outbox.notices(include_ended=False, limit=9)
    assert {(one.channel, one.state.value) for one in given_up} == {("old", "dead")}
    assert "no rule or channel of the configuration is for it any more" in given_up[0].error
    assert await outbox.waiting_channels() == []
    assert await outbox.retry(channel="old", now_us=now_us) == 3


async def test_a_question_that_is_answered_in_time_is_not_sent(site: Site) -> None:
    claim = await site.scene.start("a")
    request = await ask(site.scene, claim)
    await site.look()
    await site.scene.store.consent.answer(make_answer(request))

    assert await site.look(61) == []
    assert await site.states() == ["dropped"]


async def test_a_question_that_its_run_does_not_prove_or_that_is_none_is_not_sent(site: Site) -> None:
    claim, other = await site.scene.start("a"), await site.scene.start("b")
    await ask(site.scene, claim, is_proven=False)
    theirs = await ask(site.scene, other)
    for request_id in ("req_none", theirs.id):
        data = NewEvent(EventType.PERMISSION_REQUESTED, {"request_id": request_id}, site.scene.now_us)
        await site.scene.store.runs.append(claim.identity.run_id, claim.fence, events=[data], now_us=site.scene.now_us)
    await site.look()

    (message,) = await site.look(61)

    assert [notice.request_id for notice in message.notices] == [theirs.id]


async def test_a_worker_that_repeats_its_events_makes_no_more_notices(site: Site) -> None:
    claim = await site.scene.start("a")
    request = await ask(site.scene, claim)
    now_us = site.scene.now_us
    own: tuple[tuple[EventType, JsonObject], ...] = (
        (EventType.PERMISSION_REQUESTED, {"request_id": request.id}),
        (EventType.BUDGET_WARNED, {"share": 0.9}),
        (EventType.RUN_FAILED, {"end_reason": "cost_limit"}),
        (EventType.STEP_LEASE_EXPIRED, {"reason": "made up"}),
    )
    repeated = [NewEvent(type_, data, now_us + number) for number in range(20) for type_, data in own]
    later = [NewEvent(EventType.STEP_LEASE_EXPIRED, {}, now_us + hour * 3_600_000_000) for hour in range(1, 50)]
    for events in (repeated, later):
        await site.scene.store.runs.append(claim.identity.run_id, claim.fence, events=events, now_us=now_us)

    await site.look()

    assert len(await site.states()) == 4


@pytest.mark.parametrize("value", [None, -1, True, 10**15, "\ud800\x00", "x" * 9999, [], {"a": {}}, 1.5])
@pytest.mark.parametrize("time_us", [0, 1, 2**53 - 1])
def test_no_event_that_a_worker_writes_ends_the_following(value: Json, time_us: int) -> None:
    names = ("request_id", "reason", "end_reason", "task", "step", "share")
    identity = RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, "reviewer", task_id="task_1")
    for is_root in (True, False):
        run = FeedRun(identity, 1, "", 0, str(value), TaskKind.PLAN, is_root=is_root)
        for type_ in (*EventType, "unheard_of"):
            what = occurrence_of(run, Event("run_1", 1, type_, time_us, dict.fromkeys(names, value)))
            if what is not None:
                facts = facts_of(run, what, Redactor())
                message = Message("m", [Notice("n", "c", what.names[0], "s", "", time_us, 0, facts)])
                assert len("".join([message.title, *message.lines])) < 2000
                assert json.dumps(message.as_json()).isascii()


async def test_only_the_log_of_a_root_run_ends_a_task(site: Site) -> None:
    task_id = await site.scene.task("a")
    claim = await site.scene.claim_one()
    forged = NewEvent(EventType.TASK_FAILED, {"task": task_id, "reason": "forged"}, site.scene.now_us)
    await site.scene.store.runs.append(claim.identity.run_id, claim.fence, events=[forged], now_us=site.scene.now_us)
    await site.look()
    assert await site.look(61) == []

    await site.scene.complete(claim)
    await site.scene.finish(task_id)
    await site.look()
    (message,) = await site.look(61)

    assert message.title.startswith("Task completed: ")
    assert message.type == "soong.end"
    assert message.link == f"https://soong.example.org/#/tasks/{task_id}"


@pytest.mark.spec("OPS-11.a")
async def test_a_failed_task_is_one_failure_although_it_is_an_end_too(site: Site) -> None:
    task_id = await site.scene.task("a")
    claim = await site.scene.claim_one()
    await site.scene.store.runs.append(
        claim.identity.run_id,
        claim.fence,
        events=[NewEvent(EventType.BUDGET_WARNED, {"share": 0.85}, site.scene.now_us)],
        now_us=site.scene.now_us,
    )
    await site.scene.fail(claim)
    await site.scene.store.tasks.settle_failure(
        site.scene.own, claim.step_key, FailurePolicy.FAIL_TASK, now_us=site.scene.now_us
    )
    await site.scene.finish(task_id)
    await site.look()

    (message,) = await site.look(61)

    assert message.title == "1 budget, 1 failure"
    assert {notice.event: notice.facts["outcome"] for notice in message.notices} == {
        "budget": "nearly used up",
        "failure": "failed",
    }


async def test_a_lost_worker_is_one_notice_per_task(site: Site) -> None:
    await site.scene.task("a", "b", "c")
    await site.scene.claim(3)
    await site.scene.expire()
    await site.look()

    (message,) = await site.look(61)

    assert message.title.startswith("Worker lost: ")


async def test_quiet_hours_hold_all_but_what_may_pass(scene: ContractHarness) -> None:
    quiet = 'quiet_hours = {start = "22:00", end = "07:00", zone = "America/New_York"}'
    site = Site(scene, config_of(quiet))  # the clock says 00:00 UTC: 19:00 there
    await site.look(4 * 3600)
    task_id = await scene.task("a")
    await scene.complete(await scene.claim_one())
    await scene.finish(task_id)
    asking = await scene.start("b")
    now_us = scene.clock.now_us()
    held = [Notice(f"n{n}", "ops", "end", asking.identity.session_id, "", now_us, now_us) for n in range(PAGE)]
    await scene.store.outbox.add(held)
    await ask(scene, asking)
    await site.look()

    at_night = list(await site.look(61))
    before = list(await site.look(8 * 3600 - 120))
    morning = await site.look(120)

    assert [message.type for message in at_night] == ["soong.question"]
    assert before == at_night
    assert [message.type for message in morning] == ["soong.question", "soong.end"]  # the first of what was held


async def test_more_than_may_be_sent_in_an_hour_becomes_one_message_later(scene: ContractHarness) -> None:
    site = Site(scene, config_of("max_per_hour = 2"))
    claim = await scene.start("a")
    for number in range(6):
        await ask(scene, claim, f"call_{number}")
        await site.look()
        await site.look(61)

    assert site.channel.titles == [site.channel.titles[0]] * 2
    await site.look(3600)
    assert site.channel.titles[2:] == ["4 questions"]


@pytest.mark.spec("OPS-11.c")
async def test_a_receiver_that_is_down_gets_the_same_message_until_it_is_given_up(site: Site) -> None:
    await ask(site.scene, await site.scene.start("a"))
    site.channel.answer = Delivery("the receiver answered 503")
    await site.look()
    await site.look(61)
    for delay_s in timing.DELIVERY_BACKOFF_S:
        assert await site.states() == ["waiting"]
        sent = len(await site.look(delay_s - 1))
        assert len(await site.look(2)) == sent + 1
    assert await site.states() == ["dead"]
    assert len({message.id for message in site.channel.messages}) == 1

    site.channel.answer = Delivery()
    await site.scene.store.outbox.retry(now_us=site.scene.now_us)
    await site.look()

    assert await site.states() == ["sent"]
    assert len({message.id for message in site.channel.messages}) == 1
    totals = await site.scene.store.feed.totals()
    assert {outcome: total for (_, (_, outcome)), total in totals.items()} == {
        "failed": len(timing.DELIVERY_BACKOFF_S),
        "dead": 1,
        "sent": 1,
    }


async def test_what_is_answered_while_the_receiver_is_down_is_not_sent_later(site: Site) -> None:
    request = await ask(site.scene, await site.scene.start("a"))
    site.channel.answer = Delivery("down", retry_after_s=900)
    await site.look()
    await site.look(61)
    await site.scene.store.consent.answer(make_answer(request))
    site.channel.answer = Delivery()

    assert len(await site.look(899)) == 1
    assert len(await site.look(2)) == 1
    assert await site.states() == ["dropped"]


@pytest.mark.spec("OPS-11.c")
async def test_a_process_that_dies_between_sending_and_noting_sends_again_under_the_same_id(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ask(site.scene, await site.scene.start("a"))
    await site.look()

    async def die(message: Message) -> Delivery:
        site.channel.messages.append(message)
        raise asyncio.CancelledError

    monkeypatch.setattr(site.channel, "send", die)
    with pytest.raises(asyncio.CancelledError):
        await site.look(61)
    monkeypatch.undo()
    site.start()
    first, second = await site.look()

    assert first.id == second.id
    assert first.as_json() == second.as_json()
    assert await site.states() == ["sent"]


async def test_a_receiver_that_is_gone_gets_nothing_until_a_person_says_so(site: Site) -> None:
    claim = await site.scene.start("a")
    await ask(site.scene, claim)
    site.channel.answer = Delivery("410 Gone", is_gone=True)
    await site.look()
    await site.look(61)
    await ask(site.scene, claim, "call_2")
    await site.look()
    assert len(await site.look(61)) == 1
    assert await site.states() == ["gone", "gone"]

    site.channel.answer = Delivery()
    await site.scene.store.outbox.retry(channel="ops", now_us=site.scene.now_us)
    await site.look()

    assert await site.states() == ["sent", "sent"]


async def test_a_receiver_that_hangs_holds_up_no_other_channel_and_no_end(scene: ContractHarness) -> None:
    other = '[notifications.webhook.other]\nurl = "http://h"\nsecret = "env:S"\ngroup_s = 0\n'
    rule = '[[notifications.rules]]\nchannel = "other"\nevents = ["question", "end"]\n'
    site = Site(scene, parse_config(CONFIG.format(channel="", rule="") + other + rule).notifications)
    hangs, quick = HangingChannel(), RecordingChannel()
    site.sender.channels = {"ops": hangs, "other": quick}
    await ask(scene, await scene.start("a"))
    await site.follower.look()
    scene.clock.advance(timedelta(seconds=61))
    running = asyncio.get_running_loop().create_task(site.sender.run())
    await asyncio.wait_for(hangs.began.wait(), 30)
    await until(lambda: quick.messages)
    running.cancel()
    task_id = await scene.task("b")
    await scene.complete(await scene.claim_one())
    await scene.finish(task_id)
    await site.follower.look()

    await site.sender.finish(0.5)

    assert [message.type for message in quick.messages] == ["soong.question", "soong.end"]
    assert (await site.states()).count("waiting") == 2


async def test_a_former_owner_that_does_not_know_it_sends_nothing(site: Site) -> None:
    await ask(site.scene, await site.scene.start("a"))
    site.channel.answer = Delivery("down")
    await site.look()
    await site.look(61)
    await site.scene.store.sessions.register_owner(make_owner("own_2"))
    await site.scene.store.sessions.release_owner(site.scene.own.owner_id)
    await site.scene.store.feed.take_over("notifications", "own_2", now_us=site.scene.now_us)
    site.scene.clock.advance(timedelta(hours=1))

    await site.sender.look()

    assert site.follower.is_acting
    assert len(site.channel.messages) == 1


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        ('risks = ["critical"]', 0),
        ('risks = ["write"]', 1),
        ('agents = ["reviewer"]', 0),
        ('sessions = ["sess_*"]', 1),
        ('tasks = ["Release *"]', 0),
    ],
)
async def test_a_rule_sends_what_fits_all_its_filters(scene: ContractHarness, rule: str, sent: int) -> None:
    site = Site(scene, config_of(rule=rule))
    await ask(scene, await scene.start("a"))
    await site.look()

    assert len(await site.look(61)) == sent


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Sign in: evil.example/approve", "Sign in: evil[.]example/approve"),
        ("admin@sub.evil.co.uk", "admin@sub[.]evil[.]co[.]uk"),
        ("evil\u3002example пример.рф a.xn--p1ai/x", "evil[.]example пример[.]рф a[.]xn--p1ai/x"),
        ("10.0.0.1/x sms:123", "10[.]0[.]0[.]1/x sms[:]123"),
        ("code.read_file of v1.2.3, 3.14. End.", "code.read_file of v1.2.3, 3.14. End."),
    ],
)
def test_no_bare_address_is_left_for_a_phone_to_link(text: str, shown: str) -> None:
    assert one_line(text) == shown


@pytest.mark.spec("EVT-05")
async def test_text_of_others_is_one_inert_line_without_secrets_and_links(site: Site) -> None:
    claim = await site.scene.start("a")
    hostile = "ok\r\nBcc: x\n\x1b[31m\u202e<b>&<!channel> https://evil.example s3cr3t-value www.evil.example"
    await ask(site.scene, claim, risk_summary=hostile)
    await site.look()

    (message,) = await site.look(61)

    text = "\n".join(message.lines)
    assert not {"\r", "\x1b", "\u202e"} & set(text + str(message.as_json()))
    assert "s3cr3t-value" not in text
    assert "https[:]//evil[.]example" in text
    assert "https://evil.example" not in str(message.as_json())
    assert "www.evil" not in text
    assert not any(line.startswith("Bcc") for line in message.lines)
