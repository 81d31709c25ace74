"""The reaper: alone declares processes gone, by its own monotonic clock.

It watches beat counters. A counter that has not moved for the lease time, as this process measured it, means the
process is gone; no comparison of two machines' clocks decides anything, and a clock that jumps expires nobody.

Time in which the reaper itself could not read the counters is nobody's silence: while the database does not answer, no
heartbeat can be written either.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from soong.shared.core.clock import Clock
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import ClaimStore, lost_to

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
            return await self._look()
        except UnavailableError:
            self._workers.look_failed()
            self._owners.look_failed()
            raise

    async def _look(self) -> frozenset[str]:
        concerned = await self._end_bad_workers()
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
        return frozenset(concerned)

    async def process_died(self, host: str, pid: int, how: str) -> frozenset[str]:
        """Expire the workers of a process that is known to have ended, without waiting for the lease.

        ``how`` completes the sentence that begins with the worker's name: ``died (SIGKILL, killed)``.
        """
        concerned: set[str] = set()
        for worker in await self.sessions.workers():
            if worker.host == host and worker.pid == pid and worker.state is not ProcessState.GONE:
                concerned |= await self._expire(worker.id, worker.beat, lost_to(worker.node_name, how))
        return frozenset(concerned)

    async def _end_bad_workers(self) -> set[str]:
        ended = await self.claims.expire_bad_workers(max_lost_leases=self.max_lost_leases, now_us=self.clock.now_us())
        for one in ended:
            log.error("malformed_worker_ended", worker=one.id, problem=one.problem, sessions=len(one.sessions))
        return {session_id for one in ended for session_id in one.sessions}

    async def _expire(self, worker_id: str, beat: int, because: str) -> frozenset[str]:
        freed = await self.claims.expire_worker(
            worker_id, beat, max_lost_leases=self.max_lost_leases, now_us=self.clock.now_us(), because=because
        )
        if freed is None:
            return frozenset()
        log.warning("worker_expired", worker=worker_id, reason=because, sessions=len(freed))
        return freed
