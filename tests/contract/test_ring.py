"""Hints: rung here, heard there; one suite over the ring in memory and the one on Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import pytest

from soong.shared.engine.wire.notifier import Ear, Ring, Switchboard
from soong.shared.storage.redis.client import RedisClients
from soong.shared.storage.redis.notifier import RedisRing
from soong.shared.storage.redis.subscriber import RedisSwitchboard
from tests.model.memory import MemorySwitchboard

HEARD_LIMIT_S = 10.0
SILENT_S = 0.05


@dataclass(frozen=True)
class Line:
    """Both ends of one deployment's hints."""

    ring: Ring
    board: Switchboard


@pytest.fixture(params=["memory", "redis"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    if request.param == "memory":
        board = MemorySwitchboard()
        yield Line(board, board)
        return
    clients = RedisClients.of(request.getfixturevalue("redis_url"))
    ring = RedisRing(clients.commands)
    yield Line(ring, RedisSwitchboard(clients.blocking))
    await ring.close()
    await clients.close()


async def heard(ear: Ear, count: int = 1) -> set[str]:
    """Wait until ``count`` different ids have been heard."""
    ids: set[str] = set()
    async with asyncio.timeout(HEARD_LIMIT_S):
        while len(ids) < count:
            ids.update(await ear.wait(HEARD_LIMIT_S))
    return ids


Listen: TypeAlias = Callable[[Switchboard], Awaitable[Ear]]
Say: TypeAlias = Callable[[Ring], Awaitable[None]]

SUBJECTS: dict[str, tuple[Listen, Say, str]] = {
    "owners": (lambda board: board.owner_ear(), lambda ring: ring.wake_owners(["sess_1"]), "sess_1"),
    "owners, all": (lambda board: board.owner_ear(), lambda ring: ring.wake_owners(), ""),
    "worker": (lambda board: board.worker_ear("wrk_1"), lambda ring: ring.wake_worker("wrk_1"), "wrk_1"),
    "session": (lambda board: board.session_ear("s_1"), lambda ring: ring.wake_session("s_1"), "s_1"),
    "run": (lambda board: board.run_ear("run_1"), lambda ring: ring.wake_runs(["run_2", "run_1"]), "run_1"),
    "question": (
        lambda board: board.permission_ear(),
        lambda ring: ring.permission_raised("req_1", "s_1"),
        "s_1",
    ),
    "decision": (
        lambda board: board.decision_ear("wrk_1"),
        lambda ring: ring.permission_decided("req_1", "wrk_1"),
        "req_1",
    ),
}


@pytest.mark.parametrize(("listen", "ring", "expected"), SUBJECTS.values(), ids=SUBJECTS.keys())
@pytest.mark.spec("CARD-3")
async def test_hint_is_heard_on_its_subject(line: Line, listen: Listen, ring: Say, expected: str) -> None:
    ear = await listen(line.board)

    await ring(line.ring)

    assert await heard(ear) == {expected}
    await ear.close()


async def test_hint_before_the_wait_is_heard_in_it(line: Line) -> None:
    ear = await line.board.owner_ear()
    await line.ring.wake_owners(["sess_1"])
    await line.ring.wake_owners(["sess_2", "sess_3"])

    assert await heard(ear, 3) == {"sess_1", "sess_2", "sess_3"}
    await ear.close()


async def test_silence_ends_with_nothing_heard(line: Line) -> None:
    ear = await line.board.permission_ear()

    assert list(await ear.wait(SILENT_S)) == []
    await ear.close()


async def test_hint_is_heard_once(line: Line) -> None:
    ear = await line.board.permission_ear()
    await line.ring.permission_raised("req_1", "sess_1")
    await heard(ear)

    assert list(await ear.wait(SILENT_S)) == []
    await ear.close()


async def test_other_workers_and_sessions_hear_nothing(line: Line) -> None:
    ears = [
        await line.board.worker_ear("wrk_2"),
        await line.board.session_ear("s_2"),
        await line.board.decision_ear("wrk_2"),
    ]
    mine = await line.board.worker_ear("wrk_1")

    await line.ring.permission_decided("req_1", "wrk_1")
    await line.ring.wake_session("s_1")
    await line.ring.wake_worker("wrk_1")

    assert await heard(mine) == {"wrk_1"}
    assert [list(await ear.wait(SILENT_S)) for ear in ears] == [[], [], []]
    for ear in (*ears, mine):
        await ear.close()


async def test_every_listener_hears_a_hint(line: Line) -> None:
    ears = [await line.board.owner_ear() for _ in range(3)]

    await line.ring.wake_owners(["sess_1"])

    assert [await heard(ear) for ear in ears] == [{"sess_1"}] * 3
    for ear in ears:
        await ear.close()


async def test_closed_ear_may_be_closed_again_and_harms_nobody(line: Line) -> None:
    closed, open_ear = await line.board.owner_ear(), await line.board.owner_ear()
    await closed.close()
    await closed.close()

    await line.ring.wake_owners(["sess_1"])

    assert await heard(open_ear) == {"sess_1"}
    await open_ear.close()


async def test_ringing_without_a_listener_is_no_error(line: Line) -> None:
    await line.ring.wake_owners()
    await line.ring.wake_worker("wrk_1")
    await line.ring.permission_raised("req_1", "sess_1")
