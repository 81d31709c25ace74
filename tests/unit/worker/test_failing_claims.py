"""A worker that cannot claim: an owner that hears of it calls it again, and both have a pause."""

import asyncio
from collections.abc import Sequence
from typing import Any

from soong.shared.core.clock import SystemClock
from soong.shared.engine.tasks.step import Advance, StepEnd
from soong.worker.claim_loop import ClaimLoop
from soong.worker.heartbeat import Incarnation
from tests.model.builders import make_session, make_task
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore

WATCHED_S = 0.5


class FailingStore(MemoryStore):
    """Fails each claim, for as long as it is told to, in a way that nobody foresaw."""

    fails = True
    tries = 0

    async def advance(self, worker_id: str, ends: Sequence[StepEnd], **wish: Any) -> Advance:
        self.tries += 1
        if self.fails:
            raise OSError(28, "No space left on device")
        return await super().advance(worker_id, ends, **wish)


async def test_a_worker_that_can_claim_nothing_is_not_called_all_the_time() -> None:
    store, clock, bus = FailingStore(), SystemClock(), MemoryBus()
    incarnation = Incarnation(store, clock, "w@h", 1, ("default",), ())
    started: asyncio.Queue[object] = asyncio.Queue()
    claim_loop = ClaimLoop(store, bus, clock, incarnation.capacity, lambda: 1, started.put_nowait)
    session = make_session()
    await store.sessions.open_session(session)
    await store.tasks.create_task(make_task(session.id, "a"))
    await incarnation.register()
    ear = await bus.subscribe_owner()

    async def own() -> None:
        """Call the worker whenever it is notified of work, as an owner does."""
        while True:
            if await ear.wait(1.0):
                claim_loop.fill()

    tasks = [asyncio.create_task(claim_loop.run()), asyncio.create_task(own())]
    claim_loop.fill()
    await asyncio.sleep(WATCHED_S)

    assert store.tries <= 5  # after 0, 0.05, 0.15, 0.35 s

    store.fails = False
    async with asyncio.timeout(5):
        await started.get()
    for task in tasks:
        task.cancel()
