"""Hints: rung here, heard there; one suite over the ring in memory and the one on Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from soong.shared.engine.wire.notifier import Notifier, Subscriber, Subscription
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from tests.model.memory import MemoryBus

HEARD_LIMIT_S = 10.0
SILENT_S = 0.05


@dataclass(frozen=True)
class Line:
    """Both ends of one deployment's hints."""

    notifier: Notifier
    board: Subscriber


@pytest.fixture(params=["memory", "redis"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    if request.param == "memory":
        board = MemoryBus()
        yield Line(board, board)
        return
    clients = RedisClients.of(request.getfixturevalue("redis_url"))
    notifier = RedisNotifier(clients.commands)
    yield Line(notifier, RedisSubscriber(clients.blocking))
    await notifier.close()
    await clients.close()


async def heard(subscription: Subscription, count: int = 1) -> set[str]:
    """Wait until ``count`` different ids have been heard."""
    ids: set[str] = set()
    async with asyncio.timeout(HEARD_LIMIT_S):
        while len(ids) < count:
            ids.update(await subscription.wait(HEARD_LIMIT_S))
    return ids


Listen: TypeAlias = Callable[[Subscriber], Awaitable[Subscription]]
Say: TypeAlias = Callable[[Notifier], Awaitable[None]]


async def _publish(notifier: Notifier, run_id: str, payload: str) -> None:
    await notifier.publish_answer(run_id, payload)


SUBJECTS: dict[str, tuple[Listen, Say, str]] = {
    "owners": (lambda board: board.subscribe_owner(), lambda notifier: notifier.notify_owners(["sess_1"]), "sess_1"),
    "owners, all": (lambda board: board.subscribe_owner(), lambda notifier: notifier.notify_owners(), ""),
    "worker": (
        lambda board: board.subscribe_worker("wrk_1"),
        lambda notifier: notifier.notify_worker("wrk_1"),
        "wrk_1",
    ),
    "worker, slots": (
        lambda board: board.subscribe_worker("wrk_1"),
        lambda notifier: notifier.call_worker("wrk_1"),
        "",
    ),
    "session": (lambda board: board.subscribe_session("s_1"), lambda notifier: notifier.notify_session("s_1"), "s_1"),
    "run": (
        lambda board: board.subscribe_run("run_1"),
        lambda notifier: notifier.notify_runs(["run_2", "run_1"]),
        "run_1",
    ),
    "answer": (
        lambda board: board.subscribe_answer("run_1"),
        lambda notifier: _publish(notifier, "run_1", "one"),
        "one",
    ),
    "question": (
        lambda board: board.subscribe_permissions(),
        lambda notifier: notifier.permission_raised("req_1", "s_1"),
        "s_1",
    ),
    "decision": (
        lambda board: board.subscribe_decisions("wrk_1"),
        lambda notifier: notifier.permission_decided("req_1", "wrk_1"),
        "req_1",
    ),
}


@pytest.mark.parametrize(("listen", "notifier", "expected"), SUBJECTS.values(), ids=SUBJECTS.keys())
@pytest.mark.spec("CARD-3")
async def test_hint_is_heard_on_its_subject(line: Line, listen: Listen, notifier: Say, expected: str) -> None:
    subscription = await listen(line.board)

    await notifier(line.notifier)

    assert await heard(subscription) == {expected}
    await subscription.close()


async def test_hint_before_the_wait_is_heard_in_it(line: Line) -> None:
    subscription = await line.board.subscribe_owner()
    await line.notifier.notify_owners(["sess_1"])
    await line.notifier.notify_owners(["sess_2", "sess_3"])

    assert await heard(subscription, 3) == {"sess_1", "sess_2", "sess_3"}
    await subscription.close()


async def test_hint_is_heard_once_and_silence_ends_with_nothing_heard(line: Line) -> None:
    subscription = await line.board.subscribe_permissions()
    await line.notifier.permission_raised("req_1", "sess_1")
    await heard(subscription)

    assert list(await subscription.wait(SILENT_S)) == []
    await subscription.close()


async def test_other_workers_and_sessions_hear_nothing(line: Line) -> None:
    subscriptions = [
        await line.board.subscribe_worker("wrk_2"),
        await line.board.subscribe_session("s_2"),
        await line.board.subscribe_decisions("wrk_2"),
    ]
    mine = await line.board.subscribe_worker("wrk_1")

    await line.notifier.permission_decided("req_1", "wrk_1")
    await line.notifier.notify_session("s_1")
    await line.notifier.notify_worker("wrk_1")

    assert await heard(mine) == {"wrk_1"}
    assert [list(await subscription.wait(SILENT_S)) for subscription in subscriptions] == [[], [], []]
    for subscription in (*subscriptions, mine):
        await subscription.close()


async def test_every_listener_hears_a_hint(line: Line) -> None:
    subscriptions = [await line.board.subscribe_owner() for _ in range(3)]

    await line.notifier.notify_owners(["sess_1"])

    assert [await heard(subscription) for subscription in subscriptions] == [{"sess_1"}] * 3
    for subscription in subscriptions:
        await subscription.close()


async def test_closed_subscription_may_be_closed_again_and_harms_nobody(line: Line) -> None:
    closed, open_ear = await line.board.subscribe_owner(), await line.board.subscribe_owner()
    await closed.close()
    await closed.close()

    await line.notifier.notify_owners(["sess_1"])

    assert await heard(open_ear) == {"sess_1"}
    await open_ear.close()


async def test_pieces_of_answers_come_in_their_order_and_say_how_many_hear_them(line: Line) -> None:
    assert await line.notifier.publish_answer("run_1", "lost") == 0
    subscription = await line.board.subscribe_answer("run_1")

    said = [await line.notifier.publish_answer("run_1", f"piece {number}") for number in range(3)]

    assert said == [1, 1, 1]
    heard_ids: list[str] = []
    async with asyncio.timeout(HEARD_LIMIT_S):
        while len(heard_ids) < 3:
            heard_ids += await subscription.wait(HEARD_LIMIT_S)
    assert heard_ids == ["piece 0", "piece 1", "piece 2"]
    await subscription.close()
