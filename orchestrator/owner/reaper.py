"""The reaper: alone declares processes gone, by its own monotonic clock.

It watches beat counters. A counter that has not moved for the lease time, as this process measured it, means the
process is gone; no comparison of two machines' clocks decides anything, and a clock that jumps expires nobody.

Time in which the reaper itself could not read the counters is nobody's silence: while the database does not answer, no
heartbeat can be written either. Steps that no living worker may take are reported here too.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from soong.shared.core.errors import LeaseLostError, NotOwnerError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import Ownership, ProcessState
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import ClaimStore, lost_to
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step, WaitingSteps
from soong.shared.engine.tasks.store import TaskStore

log = get_logger(__name__)


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

        Raises:
            UnavailableError: The database did not answer.
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
