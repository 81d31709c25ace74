"""When an embedded service starts more workers than its least number: when work waits that one more could do.

The rows show it: what the workers hold, and what is ready and held by nobody. The owner hints that there may be news;
nothing is read without a hint, and little with one. What is seen once may be over in a millisecond, so that only what
is seen twice counts. A worker ends by itself when it has been idle (:mod:`soong.worker.lifetime`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.step import Backlog, WaitingSteps
from soong.shared.storage.store import Store

log = get_logger(__name__)


class Demand(Value):
    """What the rows show at one moment: ``held`` steps of ``live`` workers, and what waits for one of them."""

    live: int = 0
    held: int = 0
    waiting: frozenset[WaitingSteps] = frozenset()

    @classmethod
    def of(cls, workers: Sequence[Worker], backlog: Backlog) -> "Demand":
        """Leave out what none of the workers is able to run: one more of them is not either."""
        live = [worker for worker in workers if worker.state is ProcessState.LIVE]
        able = frozenset(one for one in backlog.waiting if not lacking(one.pool, one.needs, live))
        return cls(len(live), sum(worker.busy for worker in live), able if backlog.ready else frozenset())

    @property
    def is_high(self) -> bool:
        """Say whether a worker has several steps at once, or steps have none, at this moment."""
        return self.live > 0 and (self.held > self.live or bool(self.waiting))

    def lasts_from(self, before: "Demand") -> bool:
        """Say whether it was as high before: the same steps still wait, or there are still several for one worker."""
        is_crowded = before.held > before.live and self.held > self.live
        return before.is_high and self.is_high and (is_crowded or not self.waiting.isdisjoint(before.waiting))


class WorkerPool(Protocol):
    """The workers of the service (:class:`soong.orchestrator.embedded.supervisor.Supervisor`)."""

    @property
    def may_grow(self) -> bool: ...

    def grow(self) -> None: ...


class WorkerScaler:
    """Adds one worker at a time to the pool. ``look`` reads the rows and may raise UnavailableError."""

    def __init__(
        self,
        pool: WorkerPool,
        look: Callable[[], Awaitable[Demand]],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._look = look
        self._sleep = sleep
        self._hinted = asyncio.Event()

    def hint(self) -> None:
        """Say that there may be more work than before."""
        self._hinted.set()

    async def run(self) -> None:
        """Look after hints, until cancelled."""
        while True:
            await self._hinted.wait()
            await self._sleep(timing.HINTS_S)  # what a called worker claims, it has claimed by then
            self._hinted.clear()
            if self._pool.may_grow and await self._is_needed() and self._pool.may_grow:
                self._pool.grow()
            await self._sleep(timing.LEAST_PAUSE_S)

    async def _is_needed(self) -> bool:
        try:
            seen = await self._look()
            if not seen.is_high:
                return False
            # A start takes a second of CPU time, and on a busy machine a step that is about to be claimed waits 50 ms.
            await self._sleep(timing.LEAST_PAUSE_S)
            now = await self._look()
            if now.lasts_from(seen):
                log.info("workers_wanted", live=now.live, held=now.held, waiting=len(now.waiting & seen.waiting))
                return True
        except UnavailableError as error:
            log.warning("demand_unknown", error=str(error))
        except Exception:  # the service works on with the workers that it has
            log.exception("demand_unread")
        return False


async def demand_of(store: Store) -> Demand:
    """Read the demand of now. Raises: UnavailableError."""
    return Demand.of(await store.sessions.workers(), await store.claims.backlog(limit=1))
