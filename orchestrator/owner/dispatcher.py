"""The dispatcher: compares claimable steps with free slots and sends one message for each worker it wants.

A message only means "read the rows"; the worker that takes it fills as many of its slots as there is work for. A
message in the queue counts as sent, so a burst of wake-ups sends nothing twice; a lost message is sent again at
the next dispatch, a duplicate finds nothing to claim.

A worker can also be **called**, over its channel for interrupts. A message goes to the first worker that takes it,
perhaps one that has filled its slots meanwhile; so each wanted worker is called, too. For a new task, one worker is
called before the rows are read: no queue lies between the owner and the claim. A call is a guess: the worker may be
busy, frozen or unable, and a lost call is not repeated. The message makes up for it.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from soong.shared.core.errors import UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import ProcessState, Worker, idle_workers
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import ClaimStore, is_able, lacking
from soong.shared.engine.tasks.step import WaitingSteps
from soong.shared.engine.wire.notifier import Notifier

log = get_logger(__name__)

HEARD_OF = 1_000
"""How many sessions are remembered to be no news. One more call for a session does no harm."""


class Broker(Protocol):
    """The queue seen by the dispatcher. Blocking: it is called on the dispatcher's own thread."""

    def queued(self, pool: str) -> int:
        """Return how many messages wait in the pool's queue. Raises: UnavailableError."""
        ...

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        """Send one message for each id. Raises: UnavailableError."""
        ...

    def close(self) -> None: ...


class Dispatcher:
    """Stateless but for its thread: every look starts from rows and the queue's length.

    Without a ``notifier`` it calls nobody.
    """

    def __init__(
        self, claims: ClaimStore, sessions: SessionStore, broker: Broker, notifier: Notifier | None = None
    ) -> None:
        self._notifier = notifier
        self._idle: Sequence[str] = ()
        """The live workers that had free slots at the last look, the one that was called last at the end."""
        self._heard_of: dict[str, None] = {}
        self._claims = claims
        self._sessions = sessions
        self._broker = broker
        self.unclaimable: Mapping[WaitingSteps, str] = {}
        """The steps that no living worker may claim, with the reason, as of the last look."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="soong-dispatch")

    async def dispatch(self, *, is_full: bool = False) -> int:
        """Send what is wanted now; return the number of messages sent.

        Without a free slot no message is sent; only a full look finds the steps that no worker may claim.
        """
        workers = [worker for worker in await self._sessions.workers() if worker.state is ProcessState.LIVE]
        idle = [worker.id for worker in workers if worker.busy < worker.slots]
        # New workers are called first; known ones keep their order.
        known = [one for one in self._idle if one in idle]
        self._idle = (*(one for one in idle if one not in known), *known)
        most = len(idle)
        if not most and workers and not is_full:
            return 0
        # Counted no further than there are workers to wake: what waits may be much more.
        backlog = await self._claims.backlog(limit=max(most, 1))
        said = ((one, lacking(one.pool, one.needs, workers)) for one in backlog.waiting)
        self.unclaimable = {one: words for one, words in said if words}
        sent = 0
        for pool, ready in backlog.ready.items():
            idle_ones = idle_workers(workers, pool)
            able = _able(pool, idle_ones, backlog.waiting)
            if able:
                await self.call(able, min(ready, len(able)))
                # So that messages do not all go to a worker that cannot use them, they are sent for all idle ones where
                # only some are able.
                wanted = min(ready, len(able)) if len(able) == len(idle_ones) else len(idle_ones)
                sent += await asyncio.get_running_loop().run_in_executor(self._thread, self._fill, pool, wanted)
        return sent

    def news(self, sessions: Collection[str]) -> set[str]:
        """Return the sessions that are named for the first time.

        A forged name of a new session costs one call of a worker, which reads rows.
        """
        new = {one for one in sessions if one not in self._heard_of}
        self._heard_of.update(dict.fromkeys(new))
        while len(self._heard_of) > HEARD_OF:
            del self._heard_of[next(iter(self._heard_of))]
        return new

    async def call(self, able: Collection[str] | None = None, number: int = 1) -> bool:
        """Call workers in turn that had free slots at the last look, of these if named; False when there was none."""
        called = [one for one in self._idle if able is None or one in able][:number]
        if self._notifier is None or not called:
            return False
        self._idle = (*(one for one in self._idle if one not in called), *called)
        for worker_id in called:
            await self._notifier.call_worker(worker_id)
        await asyncio.sleep(0)  # it is sent before a read's thread takes the interpreter
        return True

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._broker.close()

    def _fill(self, pool: str, wanted: int) -> int:
        try:
            missing = wanted - self._broker.queued(pool)
            if missing <= 0:
                return 0
            self._broker.send(pool, [new_id("disp") for _ in range(missing)])
        except UnavailableError as error:
            log.warning("dispatch_unanswered", pool=pool, error=str(error))
            return 0
        return missing


def _able(pool: str, idle: Sequence[Worker], waiting: Collection[WaitingSteps]) -> set[str]:
    """Return the ids of those of the idle workers that can take one of the steps that wait."""
    needs = {one.needs for one in waiting if one.pool == pool}
    return {worker.id for worker in idle if any(is_able(worker, pool, need) for need in needs)}
