"""The view of the workers that people, programs and agents share (DIS-04), and what agents have used (DIS-11).

Read from rows alone: nobody is asked over the broker, so a busy or stalled worker is seen like any other.
"""

from collections.abc import Sequence

from soong.shared.core.value import Value
from soong.shared.engine.runs.record import UsageBy, UsageTotal
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.metrics import LimitUsage, MetricsSource, WorkerLoad
from soong.shared.engine.wire.capabilities import CATALOGUE, VERSION, announced, labels


class WorkerView(Value):
    """A worker that is not gone, and what it holds, oldest first."""

    worker: Worker
    holds: tuple[WorkerLoad, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return labels(self.worker.capabilities)

    @property
    def version(self) -> str:
        """Return the program's version; empty of a worker that does not say."""
        return announced(self.worker.capabilities, VERSION)

    @property
    def catalogue(self) -> str:
        """Return what tells its tools with their schemas from another worker's."""
        return announced(self.worker.capabilities, CATALOGUE)


class PoolView(Value):
    """A queue: what could be claimed from it now, and who could take more."""

    pool: str
    waiting: int
    free_slots: int


class WorkersView(Value):
    workers: tuple[WorkerView, ...]
    pools: tuple[PoolView, ...]
    concurrency_limits: tuple[LimitUsage, ...] = ()
    parked: int = 0
    """Runs that wait for consent and hold no slot."""


async def list_workers(claims: ClaimStore, sessions: SessionStore, metrics: MetricsSource) -> WorkersView:
    """Return the workers that are not gone and the pools that they serve or that something waits in.

    ``waiting`` counts what could be claimed within the concurrency limits, as the dispatcher does. Raises:
    UnavailableError.
    """
    workers = await sessions.workers()
    held: dict[str, list[WorkerLoad]] = {}
    for holding in await metrics.holdings():
        held.setdefault(holding.worker_id, []).append(holding)
    waiting = (await claims.backlog()).ready
    pools = sorted({pool for worker in workers for pool in worker.pools} | waiting.keys())
    return WorkersView(
        tuple(WorkerView(worker, tuple(held.get(worker.id, ()))) for worker in workers),
        tuple(PoolView(pool, waiting.get(pool, 0), free_slots(workers, pool)) for pool in pools),
        tuple(await metrics.concurrency_limits()),
        await metrics.parked(),
    )


def free_slots(workers: Sequence[Worker], pool: str) -> int:
    """Return how many more steps the live workers of a pool could run."""
    live = [worker for worker in workers if worker.state is ProcessState.LIVE]
    return sum(worker.slots - worker.busy for worker in idle_workers(live, pool))


def idle_workers(workers: Sequence[Worker], pool: str) -> list[Worker]:
    """Return the workers of ``pool`` that could run more steps now."""
    return [worker for worker in workers if pool in worker.pools and worker.busy < worker.slots]


async def usage_totals(runs: RunStore, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
    """Return the sums over the agents' runs that were made since then, the largest cost first, then most tokens."""
    totals = await runs.usage_totals(by, since_us=since_us, session_id=session_id)
    if by is UsageBy.DAY:
        return sorted(totals, key=lambda one: one.key, reverse=True)
    return sorted(totals, key=lambda one: (one.cost_usd, one.input_tokens + one.output_tokens), reverse=True)
