"""Consumers of all logs: each event once, whichever orchestrator acts for them; the outbox, and totals of metrics."""

import re
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from soong.orchestrator.event_log.follower import EventFollower
from soong.orchestrator.telemetry.consumers import MAX_SERIES, MetricsConsumer, counted
from soong.orchestrator.telemetry.metrics import Snapshot, text
from soong.orchestrator.telemetry.spans import OpenWork
from soong.shared.core.jsontext import Json
from soong.shared.core.notification_config import EVENTS
from soong.shared.engine.runs.events import Event, EventType, NewEvent
from soong.shared.engine.sessions.session import Owner
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, MessageOutcome, Notice, NoticeState, Totals
from soong.shared.engine.tasks.metrics import Metrics
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness
from tests.model.builders import make_step
from tests.spec_document import ROOT

TRACES = "traces"


async def take_over(scene: ContractHarness, owner_id: str = "") -> int | None:
    return await scene.store.feed.take_over(TRACES, owner_id or scene.own.owner_id, now_us=scene.now_us)


async def read(scene: ContractHarness, since_us: int = 0, limit: int = 1000) -> Sequence[FeedPart]:
    return await scene.store.feed.read(TRACES, since_us=since_us, limit=limit)


async def advance(scene: ContractHarness, parts: Sequence[FeedPart], owner_id: str = "") -> bool:
    cursors = [FeedCursor(part.run.identity.run_id, part.events[-1].seq, {"seen": True}) for part in parts]
    return await scene.store.feed.advance(
        TRACES, owner_id or scene.own.owner_id, cursors, since_us=0, totals={("runs", ("a",)): len(parts)}
    )


def numbers(parts: Sequence[FeedPart]) -> Mapping[str, list[int]]:
    return {part.run.identity.run_id: [event.seq for event in part.events] for part in parts}


@pytest.mark.spec("OPS-05.a")
async def test_each_event_is_read_once_and_the_state_comes_back_with_the_next(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await take_over(scene)

    first = await read(scene)
    assert await advance(scene, first)
    nothing = await read(scene)
    await scene.complete(claim)
    (then,) = await read(scene)

    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in numbers(first).values())
    assert not nothing
    assert then.run.identity.run_id == claim.identity.run_id
    assert (then.run.seq, then.run.state) == (len(numbers(first)[claim.identity.run_id]), {"seen": True})
    assert then.events[0].seq == then.run.seq + 1


@pytest.mark.spec("OPS-05.a")
async def test_a_small_page_loses_nothing(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))
    await scene.complete(await scene.claim_one())
    await take_over(scene)
    whole = numbers(await read(scene))

    paged: dict[str, list[int]] = {}
    while parts := await read(scene, limit=1):
        for run_id, seqs in numbers(parts).items():
            paged.setdefault(run_id, []).extend(seqs)
        await advance(scene, parts)

    assert paged == whole


@pytest.mark.spec("OPS-05.a")
async def test_one_living_owner_acts_for_a_consumer(scene: ContractHarness, open_another: OpenStore) -> None:
    await scene.start("a")
    other = await open_another()
    await other.sessions.register_owner(Owner("own_other", "host", 1, scene.now_us))

    first = await take_over(scene)
    refused = await take_over(scene, "own_other")
    await scene.store.sessions.release_owner(scene.own.owner_id)
    second = await take_over(scene, "own_other")

    assert (first, refused, second) == (scene.now_us, None, scene.now_us)
    parts = await read(scene)
    assert not await advance(scene, parts)
    assert numbers(await read(scene)) == numbers(parts)
    assert await scene.store.feed.totals() == {}
    assert await advance(scene, parts, "own_other")


@pytest.mark.spec("OPS-05.a")
async def test_totals_grow_with_the_places(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await take_over(scene)

    for _ in range(2):
        await advance(scene, await read(scene))
        await scene.complete(claim)

    assert await scene.store.feed.totals() == {("runs", ("a",)): 3}


CONSUMER = "notifications"


def make_notice(id: str = "n1", *, channel: str = "ops", due_us: int = 10, request_id: str = "") -> Notice:
    return Notice(id, channel, "question", "sess_1", request_id, 5, due_us, {"tool": "code.write_file"})


async def opened(scene: ContractHarness, *notices: Notice) -> None:
    assert await scene.store.feed.take_over(CONSUMER, scene.own.owner_id, now_us=scene.now_us) is not None
    await scene.store.outbox.add(notices)


async def settle(scene: ContractHarness, ids: list[str], state: NoticeState, due_us: int = 0, at_us: int = 0) -> bool:
    outcome = MessageOutcome(state, 1, due_us, "busy" if state is not NoticeState.SENT else "")
    totals: Totals = {("notifications", ("ops", state.value)): 1}
    return await scene.store.outbox.record_outcome(
        CONSUMER, scene.own.owner_id, ids, outcome, now_us=at_us or scene.now_us, totals=totals
    )


async def states(store: Store) -> dict[str, str]:
    return {one.id: one.state.value for one in await store.outbox.notices(include_ended=True, limit=100)}


@pytest.mark.spec("OPS-11.c")
async def test_a_notice_comes_back_as_it_was_written_and_is_written_once(scene: ContractHarness) -> None:
    await opened(scene, make_notice("late", due_us=20), make_notice())
    await scene.store.outbox.add([make_notice(due_us=999)])

    found = await scene.store.outbox.waiting("ops", events=EVENTS, limit=10)

    assert found == [make_notice(), make_notice("late", due_us=20)]
    assert [one.id for one in await scene.store.outbox.waiting("ops", events=EVENTS, limit=1)] == ["n1"]


@pytest.mark.spec("OPS-11.c")
async def test_notices_become_one_message_once(scene: ContractHarness) -> None:
    await opened(scene, make_notice("a"), make_notice("b"), make_notice("c"))
    outbox, owner_id = scene.store.outbox, scene.own.owner_id

    assert await outbox.group(CONSUMER, owner_id, "msg_1", ["a", "b"])
    assert not await outbox.group(CONSUMER, owner_id, "msg_2", ["b", "c"])

    found = {one.id: one.message_id for one in await outbox.waiting("ops", events=EVENTS, limit=10)}
    assert found == {"a": "msg_1", "b": "msg_1", "c": ""}


@pytest.mark.spec("OPS-11.c")
async def test_only_the_owner_that_acts_groups_and_settles(scene: ContractHarness) -> None:
    await opened(scene, make_notice("a"))
    await scene.store.sessions.register_owner(Owner("own_2", "host", 1, scene.now_us))
    await scene.store.sessions.release_owner(scene.own.owner_id)
    await scene.store.feed.take_over(CONSUMER, "own_2", now_us=scene.now_us)

    assert not await scene.store.outbox.is_acting(CONSUMER, scene.own.owner_id)
    assert await scene.store.outbox.is_acting(CONSUMER, "own_2")
    assert not await scene.store.outbox.group(CONSUMER, scene.own.owner_id, "msg_1", ["a"])
    assert not await settle(scene, ["a"], NoticeState.SENT)
    assert await scene.store.outbox.group(CONSUMER, "own_2", "msg_1", ["a"])
    assert await scene.store.feed.totals() == {}


@pytest.mark.spec("OPS-11.c")
async def test_an_outcome_is_counted_with_its_row(scene: ContractHarness) -> None:
    await opened(scene, make_notice("a"), make_notice("b"))
    await scene.store.outbox.group(CONSUMER, scene.own.owner_id, "msg_1", ["a", "b"])

    assert await settle(scene, ["a", "b"], NoticeState.WAITING, 77)
    (first, _) = await scene.store.outbox.waiting("ops", events=EVENTS, limit=10)
    assert await settle(scene, ["a", "b"], NoticeState.SENT, at_us=100)

    assert (first.attempts, first.due_us, first.error, first.ended_us) == (1, 77, "busy", 0)
    assert await states(scene.store) == {"a": "sent", "b": "sent"}
    assert await scene.store.outbox.sent_since("ops", 100) == 1
    assert await scene.store.outbox.sent_since("ops", 101) == await scene.store.outbox.sent_since("other", 0) == 0
    assert await scene.store.feed.totals() == {
        ("notifications", ("ops", "sent")): 1,
        ("notifications", ("ops", "waiting")): 1,
    }


@pytest.mark.spec("OPS-11.c")
async def test_a_receiver_that_is_back_gets_the_rest_at_once(scene: ContractHarness) -> None:
    await opened(scene, make_notice("tried"), make_notice("new"), make_notice("elsewhere", channel="other"))
    for id_ in ("tried", "elsewhere"):
        await settle(scene, [id_], NoticeState.WAITING, scene.later_us)

    await settle(scene, ["new"], NoticeState.SENT)

    due = {
        one.id: one.due_us
        for name in ("ops", "other")
        for one in await scene.store.outbox.waiting(name, events=EVENTS, limit=9)
    }
    assert due == {"tried": scene.now_us, "elsewhere": scene.later_us}


@pytest.mark.spec("OPS-11.c")
async def test_what_was_given_up_waits_again_when_a_person_says_so(scene: ContractHarness) -> None:
    await opened(scene, make_notice("dead"), make_notice("gone", channel="left"), make_notice("sent"))
    await scene.store.outbox.group(CONSUMER, scene.own.owner_id, "msg_1", ["dead"])
    for id_, state in (("dead", NoticeState.DEAD), ("gone", NoticeState.GONE), ("sent", NoticeState.SENT)):
        await settle(scene, [id_], state)

    assert await scene.store.outbox.gone_channels() == ["left"]
    assert {one.id for one in await scene.store.outbox.notices(include_ended=False, limit=9)} == {"dead", "gone"}
    assert await scene.store.outbox.retry(channel="left", now_us=5) == 1
    assert await scene.store.outbox.retry(message_id="msg_1", now_us=6) == 1
    assert await scene.store.outbox.retry(now_us=7) == 0
    assert await scene.store.outbox.gone_channels() == []
    (dead,) = await scene.store.outbox.waiting("ops", events=EVENTS, limit=10)
    (gone,) = await scene.store.outbox.waiting("left", events=EVENTS, limit=10)
    assert [(one.id, one.due_us, one.attempts) for one in (gone, dead)] == [("gone", 5, 0), ("dead", 6, 0)]
    assert dead.message_id == "msg_1"


@pytest.mark.spec("OPS-11.c")
async def test_what_ended_long_ago_is_removed_but_for_what_says_that_a_receiver_is_gone(scene: ContractHarness) -> None:
    ends = {state.value: state for state in NoticeState if state is not NoticeState.WAITING}
    await opened(scene, *map(make_notice, [*ends, "waiting"]))
    for id_, state in ends.items():
        await settle(scene, [id_], state, at_us=50)

    assert await scene.store.outbox.prune(50) == 0
    assert await scene.store.outbox.prune(51) == 3
    assert await states(scene.store) == {"gone": "gone", "waiting": "waiting"}


USED: dict[str, Json] = {"model": "a:b", "duration_ms": 700, "input_tokens": 7, "output_tokens": 2, "cost_usd": "0.5"}
MEASURED = (
    NewEvent(EventType.MODEL_FAILED, {"attempt": 1, "status": 429, "model": "a:b"}),
    NewEvent(EventType.MODEL_RESPONDED, USED),
    NewEvent(EventType.TOOL_FAILED, {"tool": "code.read_file", "error": "not_found"}),
    NewEvent(EventType.PERMISSION_REQUESTED, {"request_id": "r"}, 1_000_000),
    NewEvent(EventType.PERMISSION_DECIDED, {"request_id": "r", "author": "person"}, 4_000_000),
)


def shown(totals: Totals) -> dict[str, float]:
    snapshot = Snapshot(Metrics(), (), {}, 1, 0, (), totals)
    families = text_string_to_metric_families(text(snapshot).decode())
    return {f"{s.name}{sorted(s.labels.values())}": s.value for family in families for s in family.samples}


@pytest.mark.spec("OPS-05.b")
async def test_each_event_is_counted_once_however_often_the_counting_starts_again(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    for event in MEASURED:
        now = scene.now_us
        await scene.store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=now)
        follower = EventFollower(scene.store.feed, MetricsConsumer(), scene.clock, lambda: scene.own.owner_id, 1.0)
        await follower.look()
        await follower.look()

    read = shown(await scene.store.feed.totals())
    assert read["soong_model_tokens_total['a:b', 'input']"] == 7
    assert read["soong_model_cost_usd_total['a:b']"] == 0.5
    assert read["soong_model_failures_total['429', 'a:b']"] == 1
    assert read["soong_tool_errors_total['code.read_file', 'not_found']"] == 1
    assert read["soong_model_request_seconds_bucket['1', 'a:b']"] == 1
    assert read["soong_model_request_seconds_bucket['0.5', 'a:b']"] == 0
    assert read["soong_decision_seconds_sum['person']"] == 3
    assert read["soong_decision_seconds_count['person']"] == 1
    assert read["soong_step_queue_seconds_count[]"] == 1


@pytest.mark.spec("OPS-05.b")
@pytest.mark.parametrize("value", [None, -1, True, 10**30, "NaN", "x" * 9999, [], 1.5])
def test_what_a_taken_over_worker_writes_ends_no_counting(value: Json) -> None:
    names = ("model", "tool", "error", "status", "attempt", "duration_ms", "input_tokens", "cost_usd", "request_id")

    entries = [
        entry
        for type_ in EventType
        for entry in counted(OpenWork(), Event("r", 1, type_, 1, dict.fromkeys(names, value)))
    ]

    assert all(0 <= number < 2**53 and all(len(label) <= 200 for label in labels) for _, labels, number in entries)


@pytest.mark.spec("OPS-05.b")
def test_a_worker_that_makes_up_names_makes_no_more_series_than_are_allowed() -> None:
    consumer = MetricsConsumer()

    labels = {consumer._bounded("tool_calls", (f"tool{number}",)) for number in range(3 * MAX_SERIES)}

    assert len(labels) == MAX_SERIES + 1


@pytest.mark.spec("OPS-05.b")
@pytest.mark.parametrize("name", ["deploy/alerts.yaml", "deploy/grafana.json", "docs/operations.md"])
def test_every_metric_of_the_rules_of_the_dashboard_and_of_the_documents_exists(name: str) -> None:
    named = set(re.findall(r"\bsoong_[a-z_]+", (ROOT / name).read_text(encoding="utf-8")))
    wanted = named - {"soong_client", "soong_orchestrator", "soong_worker"}  # roles

    described = set(re.findall(r"^# TYPE (\w+)", text(Snapshot(Metrics(), (), {}, 1, 0)).decode(), re.MULTILINE))

    assert wanted
    assert {metric.removesuffix("_bucket") for metric in wanted} <= described
