"""``soong notifications`` and its check of ``soong doctor``, over real rows and a real receiver."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from soong.orchestrator.doctor.checks import check_notifications
from soong.orchestrator.doctor.machine import Level
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.event_feed import MessageOutcome, Notice, NoticeState
from soong.shared.storage.sql.store import open_store
from tests.model.builders import make_owner
from tests.notification_receivers import HttpReceiver, http_receiver
from tests.unit.cli.calling import soong
from tests.unit.cli.test_workers import deployed

pytestmark = pytest.mark.spec("OPS-11.c", "OPS-07.c")

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
RULE = '[[notifications.rules]]\nchannel = "ops"\nevents = ["end"]\n'


def hook(url: str) -> str:
    return f'[notifications.webhook.ops]\nurl = "{url}"\nsecret = "env:OPS_SECRET"\n'


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        yield found


async def site(tmp_path: Path, *states: NoticeState, config: str = "") -> Path:
    """Make a home with a configuration, and a message in each of these states."""
    home = await deployed(tmp_path)
    (home / "soong" / "config.toml").write_text(config)
    store = await open_store(f"sqlite:///{home / 'soong' / 'soong.db'}")
    try:
        owner = make_owner()
        await store.sessions.register_owner(owner)
        await store.feed.take_over("notifications", owner.id, now_us=1)
        for state in states:
            notice = Notice(f"n_{state.value}", "ops", "end", "sess_1", "", 1, 1)
            await store.outbox.add([notice])
            await store.outbox.group("notifications", owner.id, f"msg_{state.value}", [notice.id])
            outcome = MessageOutcome(state, 3, 5, "the receiver answered 503")
            await store.outbox.record_outcome("notifications", owner.id, [notice.id], outcome, now_us=9, totals={})
    finally:
        await store.close()
    return home


async def test_what_waits_and_what_was_given_up_is_listed_and_sent_again(tmp_path: Path) -> None:
    home = await site(tmp_path, NoticeState.WAITING, NoticeState.DEAD, NoticeState.SENT)

    listed = json.loads(soong("notifications", "list", "--json", home=home).stdout)["messages"]
    shown = soong("notifications", "list", "--all", home=home)
    retried = soong("notifications", "retry", "dead", home=home)
    again = json.loads(soong("notifications", "list", "--json", home=home).stdout)["messages"]

    assert [(one["id"], one["state"], one["attempts"]) for one in listed] == [
        ("msg_waiting", "waiting", 3),
        ("msg_dead", "dead", 3),
    ]
    assert "msg_sent" in shown.stdout
    assert "503" in shown.stdout
    assert "1 event will be sent again" in retried.stderr
    assert {one["state"] for one in again} == {"waiting"}


async def test_a_channel_is_tried_from_the_command_line(tmp_path: Path, receiver: HttpReceiver) -> None:
    home = await site(tmp_path, config=hook(receiver.url) + RULE)

    taken = soong("notifications", "test", "ops", home=home, OPS_SECRET=SECRET)
    receiver.status = 500
    refused = soong("notifications", "test", "ops", home=home, OPS_SECRET=SECRET)
    unset = soong("notifications", "test", "ops", home=home)
    unknown = soong("notifications", "test", "opps", home=home)

    assert (taken.returncode, receiver.taken[0].json["type"]) == (0, "soong.test")
    assert (refused.returncode, "answered 500" in refused.stderr) == (1, True)
    assert (unset.returncode, "'OPS_SECRET' is not set" in unset.stderr) == (2, True)
    assert (unknown.returncode, "there is no channel 'opps'" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("states", "config", "said"),
    [
        ((NoticeState.DEAD,), hook("http://h") + RULE, "ops: 1 events were given up (the receiver answered 503)"),
        ((NoticeState.WAITING,), hook("http://h") + RULE, "ops: 1 events wait for another attempt"),
        ((NoticeState.GONE,), hook("http://h") + RULE, "ops: the receiver answered that it takes no more"),
        ((), hook("http://h"), "ops: no rule sends anything to this channel"),
        ((), hook("http://h") + RULE, "the variable 'OPS_SECRET' is not set in this process"),
    ],
)
async def test_doctor_warns_of_what_does_not_arrive(
    tmp_path: Path, states: tuple[NoticeState, ...], config: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPS_SECRET", raising=False)
    home = await site(tmp_path, *states, config=config)

    finding = await check_notifications(load_settings(agent_home=home / "soong"))

    assert finding.level is Level.WARN
    assert said in finding.says
