"""The workers of a deployment, as an owner sees them: it calls those with free slots, and declares silent ones gone.

The dispatcher compares claimable steps with free slots and sends one message for each worker it wants. A message only
means "read the rows"; the worker that takes it fills as many of its slots as there is work for. A message in the queue
counts as sent, so a burst of wake-ups sends nothing twice; a lost message is sent again at the next dispatch, a
duplicate finds nothing to claim.

A worker can also be **called**, over its channel for interrupts. A message goes to the first worker that takes it,
perhaps one that has filled its slots meanwhile; so each wanted worker is called, too. For a new task, one worker is
called before the rows are read: no queue lies between the owner and the claim. A call is a guess: the worker may be
busy, frozen or unable, and a lost call is not repeated. The message makes up for it.

The reaper alone declares processes gone, by its own monotonic clock. It watches beat counters. A counter that has not
moved for the lease time, as this process measured it, means the process is gone; no comparison of two machines' clocks
decides anything, and a clock that jumps expires nobody. Time in which the reaper itself could not read the counters is
nobody's silence: while the database does not answer, no heartbeat can be written either.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from soong.shared.core.errors import LeaseLostError, NotOwnerError, UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Ownership, ProcessState, SessionStore, Worker, idle_workers
from soong.shared.engine.tasks.claims import ClaimStore, is_able, lacking, lost_to
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Step, WaitingSteps
from soong.shared.engine.tasks.store import TaskStore
from soong.shared.engine.wire.notifier import Notifier

log = get_logger(__name__)

HEARD_OF = 1_000
"""How many sessions are remembered to be no news. One more call for a session does no harm."""


class Broker(Protocol):
    """The queue seen by the dispatcher. Blocking: it is called on the dispatcher's own thread."""

    def queued(self, pool: str) -> int:
        """Return how many messages wait in the pool's queue. Raises: UnavailableError."""

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        """Send one message for each id. Raises: UnavailableError."""

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


@dataclass(slots=True)
class BeatWatch:
    """Remembers when each counter was last seen to move."""

    clock: Clock
    lease_s: float
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict)
    _looked_s: float = 0.0
    _is_blind: bool = False

    def look_failed(self) -> None:
        """Note that the counters could not be read: the time from the last look to the next one is not counted."""
        self._is_blind = True

    def overdue(self, beats: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Take the current counters and return those that have stood still for the lease time."""
        now = self.clock.monotonic_s()
        unseen_s = now - self._looked_s if self._is_blind else 0.0
        self._looked_s, self._is_blind = now, False
        before = self._seen
        self._seen = {
            key: (beat, before[key][1] + unseen_s) if key in before and before[key][0] == beat else (beat, now)
            for key, beat in beats
        }
        return [(key, beat) for key, (beat, since) in self._seen.items() if now - since >= self.lease_s]


@dataclass(slots=True)
class Reaper:
    """Expires workers and owners of the deployment; several owners may reap at once, the beat in the WHERE decides."""

    sessions: SessionStore
    claims: ClaimStore
    clock: Clock
    lease: timedelta
    max_lost_leases: int
    owner_id: str
    _workers: BeatWatch = field(init=False)
    _owners: BeatWatch = field(init=False)

    def __post_init__(self) -> None:
        self._workers = BeatWatch(self.clock, self.lease.total_seconds())
        self._owners = BeatWatch(self.clock, self.lease.total_seconds())

    async def sweep(self) -> frozenset[str]:
        """Expire processes that are overdue or whose row is malformed; return the sessions that lost something.
        Raises: UnavailableError, the database did not answer.
        """
        try:
            ended = await self.claims.expire_bad_workers(
                max_lost_leases=self.max_lost_leases, now_us=self.clock.now_us()
            )
            for one in ended:
                log.error("malformed_worker_ended", worker=one.id, problem=one.problem, sessions=len(one.sessions))
            return frozenset[str]().union(*(one.sessions for one in ended), await self._expire_overdue())
        except UnavailableError:
            self._workers.look_failed()
            self._owners.look_failed()
            raise

    async def _expire_overdue(self) -> set[str]:
        concerned: set[str] = set()
        workers = await self.sessions.workers()
        names = {worker.id: worker.node_name for worker in workers}
        how = f"sent no heartbeat for {self.lease.total_seconds():g} s"
        for worker_id, beat in self._workers.overdue((worker.id, worker.beat) for worker in workers):
            concerned |= await self._expire(worker_id, beat, lost_to(names[worker_id], how))
        owners = await self.sessions.owners()
        others = ((owner.id, owner.beat) for owner in owners if owner.id != self.owner_id)
        for owner_id, beat in self._owners.overdue(others):
            if await self.sessions.expire_owner(owner_id, beat):
                log.warning("owner_expired", owner=owner_id)
        return concerned

    async def process_died(self, host: str, pid: int, how: str) -> frozenset[str]:
        """Expire the workers of a process that is known to have ended, without waiting for the lease.

        ``how`` completes the sentence that begins with the worker's name: ``died (SIGKILL, killed)``.
        """
        concerned: set[str] = set()
        for worker in await self.sessions.workers():
            if worker.host == host and worker.pid == pid and worker.state is not ProcessState.GONE:
                concerned |= await self._expire(worker.id, worker.beat, lost_to(worker.node_name, how))
        return frozenset(concerned)

    async def _expire(self, worker_id: str, beat: int, because: str) -> frozenset[str]:
        freed = await self.claims.expire_worker(
            worker_id, beat, max_lost_leases=self.max_lost_leases, now_us=self.clock.now_us(), because=because
        )
        if freed is None:
            return frozenset()
        log.warning("worker_expired", worker=worker_id, reason=because, sessions=len(freed))
        return freed


@dataclass(slots=True)
class UnschedulableSteps:
    """Remembers since when each kind of step has waited without success; each is reported once."""

    tasks: TaskStore
    runs: RunStore
    clock: Clock
    patience_s: float
    _since: dict[WaitingSteps, float] = field(default_factory=dict)
    _told: set[WaitingSteps] = field(default_factory=set)

    async def tell(self, unclaimable: Mapping[WaitingSteps, str], owned: Mapping[str, Ownership]) -> None:
        """Write down what of our sessions has waited for too long. Raises: UnavailableError."""
        now = self.clock.monotonic_s()
        self._since = {one: self._since.get(one, now) for one in unclaimable}
        self._told &= unclaimable.keys()
        for one, since in self._since.items():
            if one in self._told or now - since < self.patience_s or one.session_id not in owned:
                continue
            with suppress(NotOwnerError):  # the session is another's by now, which will report it
                await self._tell(one, unclaimable[one], owned[one.session_id])
            self._told.add(one)

    async def _tell(self, one: WaitingSteps, words: str, ownership: Ownership) -> None:
        by_task: dict[str, list[Step]] = {}
        for step in await self.tasks.steps_in(ownership, StepStatus.READY):
            if (step.pool, step.needs) == (one.pool, one.needs):
                by_task.setdefault(step.task_id, []).append(step)
        for task_id, steps in by_task.items():
            names = [step.step_id for step in steps]
            log.warning("no_capable_worker", task=task_id, steps=names[:10], number=len(names), reason=words)
            root_run_id = (await self.tasks.task(task_id)).root_run_id
            now_us = self.clock.now_us()
            data = {"steps": list(names), "pool": one.pool, "needs": list(one.needs), "reason": words}
            event = NewEvent(EventType.STEP_UNCLAIMABLE, data, now_us)
            try:
                # The root run of an ask is held by this owner, under a fence.
                fence = (await self.runs.run(root_run_id)).fence
                await self.runs.append(root_run_id, fence, events=(event,), now_us=now_us)
            except LeaseLostError:
                log.info("task_over", task=task_id)  # it was ended at this moment
