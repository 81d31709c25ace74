"""The view of the workers that people, programs and agents share (DIS-04): who lives, what each holds, what waits.

Read from rows alone: nobody is asked over the broker, so a busy or stalled worker is seen like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from soong.shared.core.clock import rfc3339
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.metrics import FigureSource, LimitUsage, WorkerLoad
from soong.shared.engine.wire.capabilities import CATALOGUE, VERSION, labels
from soong.shared.engine.wire.jobs import queue_of


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that is not gone, and what it holds, oldest first."""

    worker: Worker
    holds: tuple[WorkerLoad, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return labels(self.worker.capabilities)

    @property
    def version(self) -> str:
        """Return the program's version; empty of a worker that does not say."""
        return self._announced(VERSION)

    @property
    def catalogue(self) -> str:
        """Return what tells its tools with their schemas from another worker's."""
        return self._announced(CATALOGUE)

    def _announced(self, kind: str) -> str:
        return next((name.removeprefix(kind) for name in self.worker.capabilities if name.startswith(kind)), "")

    def as_json(self) -> JsonObject:
        worker = self.worker
        return {
            "id": worker.id,
            "name": worker.node_name,
            "host": worker.host,
            "pid": worker.pid,
            "state": worker.state.value,
            "slots": worker.slots,
            "used": len(self.holds),
            "pools": list(worker.pools),
            "queues": [queue_of(pool) for pool in worker.pools],
            "labels": list(self.labels),
            "version": self.version,
            "catalogue": self.catalogue,
            "protocol": worker.protocol,
            "started": rfc3339(worker.started_us),
            "beats": worker.beat,
            "runs": [
                {
                    "run": held.run_id,
                    "step": held.step_key,
                    "title": held.title,
                    "attempt": held.attempt,
                    "session": held.session_id,
                    "started": None if held.started_us is None else rfc3339(held.started_us),
                }
                for held in self.holds
            ],
        }


@dataclass(frozen=True, slots=True)
class PoolView:
    """A queue: what could be claimed from it now, and who could take more."""

    pool: str
    waiting: int
    free_slots: int

    def as_json(self) -> JsonObject:
        return {"pool": self.pool, "queue": queue_of(self.pool), "waiting": self.waiting, "free_slots": self.free_slots}


@dataclass(frozen=True, slots=True)
class WorkersView:
    workers: tuple[WorkerView, ...]
    pools: tuple[PoolView, ...]
    concurrency_limits: tuple[LimitUsage, ...] = ()
    parked: int = 0
    """Runs that wait for consent and hold no slot."""

    def as_json(self) -> JsonObject:
        return {
            "workers": [worker.as_json() for worker in self.workers],
            "pools": [pool.as_json() for pool in self.pools],
            "limits": [limit_as_json(bound) for bound in self.concurrency_limits],
            "parked": self.parked,
        }


def limit_as_json(bound: LimitUsage) -> JsonObject:
    return {"scope": bound.scope, "limit": bound.limit, "used": bound.used}


async def list_workers(claims: ClaimStore, sessions: SessionStore, figures: FigureSource) -> WorkersView:
    """Return the workers that are not gone and the pools that they serve or that something waits in.

    ``waiting`` counts what could be claimed within the concurrency limits, as the dispatcher does. Raises:
    UnavailableError.
    """
    workers = await sessions.workers()
    held: dict[str, list[WorkerLoad]] = {}
    for holding in await figures.holdings():
        held.setdefault(holding.worker_id, []).append(holding)
    waiting = (await claims.backlog()).ready
    pools = sorted({pool for worker in workers for pool in worker.pools} | waiting.keys())
    return WorkersView(
        tuple(WorkerView(worker, tuple(held.get(worker.id, ()))) for worker in workers),
        tuple(PoolView(pool, waiting.get(pool, 0), free_slots(workers, pool)) for pool in pools),
        tuple(await figures.concurrency_limits()),
        await figures.parked(),
    )


def free_slots(workers: Sequence[Worker], pool: str) -> int:
    """Return how many more steps the live workers of a pool could run."""
    live = [worker for worker in workers if worker.state is ProcessState.LIVE]
    return sum(worker.slots - worker.busy for worker in idle_workers(live, pool))


def idle_workers(workers: Sequence[Worker], pool: str) -> list[Worker]:
    """Return the workers of ``pool`` that could run more steps now."""
    return [worker for worker in workers if pool in worker.pools and worker.busy < worker.slots]
