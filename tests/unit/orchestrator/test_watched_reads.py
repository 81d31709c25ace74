"""Waiting for rows to change: one looks for all, everybody hears of a change, nobody of none."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from soong.orchestrator.operations.watched_reads import WatchedReads
from soong.shared.engine.wire.notifier import Subscription
from tests.waiting import others_run


@dataclass
class Rows:
    """What is read, and the hint that it may have changed. Implements ``Subscription``."""

    value: str = "old"
    reads: int = 0
    is_gone: bool = False
    closed: int = 0
    rung: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    async def load(self) -> str:
        self.reads += 1
        self.looked.set()
        if self.is_gone:
            raise ConnectionError("gone")
        return self.value

    async def subscribe(self) -> Subscription:
        return self

    async def wait(self, timeout_s: float) -> Sequence[str]:
        await self.rung.wait()
        self.rung.clear()
        return ("heard",)

    async def close(self) -> None:
        self.closed += 1


async def test_two_hundred_who_wait_for_the_same_cost_one_reading_for_each_hint() -> None:
    rows, reads = Rows(), WatchedReads()
    watches = [reads.watch("all", rows.load, rows.subscribe) for _ in range(200)]
    await asyncio.gather(*(one.wait(60.0) for one in watches))  # of the first reading everybody hears

    waiting = [asyncio.create_task(one.wait(60.0)) for one in watches]
    rows.looked.clear()
    rows.rung.set()
    await rows.looked.wait()
    await others_run()
    is_woken = any(one.done() for one in waiting)
    rows.value = "new"
    rows.rung.set()
    heard = await asyncio.gather(*waiting)
    for one in watches:
        await one.close()

    assert not is_woken, "what is as it was wakes nobody"
    assert all(heard)
    assert (rows.reads, rows.closed) == (3, 1)


async def test_a_failure_wakes_those_who_wait_and_the_reading_continues() -> None:
    rows, reads = Rows(), WatchedReads()
    watch = reads.watch("all", rows.load, rows.subscribe)
    await watch.wait(60.0)

    rows.is_gone = True
    rows.rung.set()
    failed = await watch.wait(60.0)
    rows.is_gone = False
    rows.rung.set()
    back = await watch.wait(60.0)
    await reads.close()

    assert failed
    assert back
    assert rows.closed == 1


async def test_a_stop_wakes_everybody_and_a_wait_ends_in_time() -> None:
    rows, reads = Rows(), WatchedReads()
    watch = reads.watch("all", rows.load, rows.subscribe)
    await watch.wait(60.0)

    nothing = await watch.wait(0.0)
    reads.wake()
    woken = await watch.wait(60.0)
    await watch.close()

    assert not nothing
    assert woken
    assert rows.closed == 1
