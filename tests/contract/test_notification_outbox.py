"""The outbox of notifications: nothing is lost, sent by two, or sent again without its first id; over each store."""

import pytest

from soong.shared.core.notification_config import EVENTS
from soong.shared.engine.sessions.session import Owner
from soong.shared.engine.tasks.event_feed import MessageOutcome, Notice, NoticeState, Totals
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness

pytestmark = pytest.mark.spec("OPS-11.c")

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


async def test_a_notice_comes_back_as_it_was_written_and_is_written_once(scene: ContractHarness) -> None:
    await opened(scene, make_notice("late", due_us=20), make_notice())
    await scene.store.outbox.add([make_notice(due_us=999)])

    found = await scene.store.outbox.waiting("ops", events=EVENTS, limit=10)

    assert found == [make_notice(), make_notice("late", due_us=20)]
    assert [one.id for one in await scene.store.outbox.waiting("ops", events=EVENTS, limit=1)] == ["n1"]


async def test_notices_become_one_message_once(scene: ContractHarness) -> None:
    await opened(scene, make_notice("a"), make_notice("b"), make_notice("c"))
    outbox, owner_id = scene.store.outbox, scene.own.owner_id

    assert await outbox.group(CONSUMER, owner_id, "msg_1", ["a", "b"])
    assert not await outbox.group(CONSUMER, owner_id, "msg_2", ["b", "c"])

    found = {one.id: one.message_id for one in await outbox.waiting("ops", events=EVENTS, limit=10)}
    assert found == {"a": "msg_1", "b": "msg_1", "c": ""}


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


async def test_what_ended_long_ago_is_removed_but_for_what_says_that_a_receiver_is_gone(scene: ContractHarness) -> None:
    ends = {state.value: state for state in NoticeState if state is not NoticeState.WAITING}
    await opened(scene, *map(make_notice, [*ends, "waiting"]))
    for id_, state in ends.items():
        await settle(scene, [id_], state, at_us=50)

    assert await scene.store.outbox.prune(50) == 0
    assert await scene.store.outbox.prune(51) == 3
    assert await states(scene.store) == {"gone": "gone", "waiting": "waiting"}
