"""The workers, what each holds and what waits (DIS-04), and what agents have used (DIS-11), as programs see them."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from soong.orchestrator.schemas.base import From, Instant, Schema
from soong.shared.engine.runs.budgets import usd_text
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal
from soong.shared.engine.sessions.session import ProcessState, SessionStore, Worker, idle_workers
from soong.shared.engine.tasks.claims import ClaimStore
from soong.shared.engine.tasks.metrics import MetricsSource, WorkerLoad
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.wire.notifier import CATALOGUE, VERSION, announced, labels, queue_of
from soong.shared.storage.store import Store

MOST_SUMS: Final = 200
MOST_TASKS: Final = 100
_SERVING: Final = frozenset({ProcessState.LIVE, ProcessState.DRAINING})


class WorkerRun(Schema):
    """A run that a worker holds."""

    run: Annotated[str, From("run_id")]
    step: Annotated[str, From("step_key")] = Field(description="The step's key: task/step.")
    title: str
    attempt: int
    session: Annotated[str, From("session_id")]
    started: Instant | None
    unended: Annotated[str, From("words")] = Field(
        description="Why it is to end, and what of it still runs; empty when it is not to end."
    )


class WorkerSchema(Schema):
    """A worker that is not gone."""

    id: str
    name: Annotated[str, From("node_name")] = Field(description="Its name in Celery and Flower.")
    host: str
    pid: int
    state: ProcessState
    slots: int
    used: int
    pools: list[str]
    queues: Annotated[list[str], From("pools", lambda pools: [queue_of(pool) for pool in pools])]
    labels: Annotated[list[str], From("capabilities", lambda words: [*labels(words)])]
    version: Annotated[str, From("capabilities", lambda words: announced(words, VERSION))] = Field(
        description="Of the program; empty when the worker does not announce it."
    )
    catalogue: Annotated[str, From("capabilities", lambda words: announced(words, CATALOGUE))] = Field(
        description="Differs between workers whose tools or schemas differ."
    )
    protocol: int
    started: Instant
    beats: Annotated[int, From("beat")]
    runs: list[WorkerRun] = Field(description="Oldest first.")

    @classmethod
    def holding(cls, worker: Worker, loads: Sequence[WorkerLoad]) -> "WorkerSchema":
        return cls.of(worker, used=len(loads), runs=[WorkerRun.of(load) for load in loads])


class PoolSchema(Schema):
    """A queue: what could be claimed from it now, and how much more its workers could take."""

    pool: str
    queue: Annotated[str, From("pool", queue_of)]
    waiting: int
    free_slots: int


class LimitSchema(Schema):
    """A concurrency limit."""

    scope: str
    limit: int = Field(description="Most of its steps at once; 0: as many as there are slots.")
    used: int
    is_paused: bool = Field(description="Nothing of it starts until it is resumed.")


class WorkersSchema(Schema):
    workers: list[WorkerSchema]
    pools: list[PoolSchema]
    limits: list[LimitSchema]
    parked: int = Field(description="Runs that wait for consent and hold no slot.")

    @classmethod
    async def read(cls, claims: ClaimStore, sessions: SessionStore, metrics: MetricsSource) -> "WorkersSchema":
        """Read the workers that are not gone and the pools that they serve or that something waits in.

        ``waiting`` counts what could be claimed within the concurrency limits, as the dispatcher does. Nobody is asked
        over the broker, so a busy or stalled worker is seen like any other. Raises: UnavailableError.
        """
        workers = await sessions.workers()
        held: dict[str, list[WorkerLoad]] = {}
        for load in await metrics.holdings():
            held.setdefault(load.worker_id, []).append(load)
        waiting = (await claims.backlog()).ready
        pools = sorted({pool for worker in workers for pool in worker.pools} | waiting.keys())
        return cls(
            workers=[WorkerSchema.holding(worker, held.get(worker.id, ())) for worker in workers],
            pools=[
                PoolSchema(
                    pool=pool,
                    queue=queue_of(pool),
                    waiting=waiting.get(pool, 0),
                    free_slots=sum(worker.slots - worker.busy for worker in idle_workers(workers, pool)),
                )
                for pool in pools
            ],
            limits=[LimitSchema.of(limit) for limit in await metrics.concurrency_limits()],
            parked=await metrics.parked(),
        )


class SlotsSchema(Schema):
    live: int = Field(description="Workers that take work or finish it.")
    slots: int
    busy: int


class StepsSchema(Schema):
    ready: int
    running: int


class UnendedSchema(Schema):
    """A step that was asked to end, and whose functions still run."""

    step: Annotated[str, From("step_key")]
    words: str


class OpenTaskSchema(Schema):
    id: str
    title: str
    status: TaskStatus
    created: Instant


class StatusSchema(Schema):
    """The deployment in a few numbers."""

    orchestrators: int
    workers: SlotsSchema
    steps: StepsSchema
    unended: list[UnendedSchema]
    questions: int = Field(description="Questions that wait for an answer.")
    open_tasks: int
    tasks: list[OpenTaskSchema] = Field(description="Of the newest 100 tasks those that are open, newest first.")

    @classmethod
    async def read(cls, store: Store, source: MetricsSource) -> "StatusSchema":
        workers, metrics = await store.sessions.workers(), await source.metrics()
        tasks = await store.tasks.list_tasks(limit=MOST_TASKS)
        return cls.of(
            metrics,
            orchestrators=len(await store.sessions.owners()),
            workers=SlotsSchema(
                live=sum(one.state in _SERVING for one in workers),
                slots=sum(one.slots for one in workers),
                busy=sum(one.busy for one in workers),
            ),
            steps=StepsSchema(
                ready=sum(pool.ready for pool in metrics.pools.values()),
                running=sum(pool.running for pool in metrics.pools.values()),
            ),
            unended=[UnendedSchema.of(one) for one in await source.holdings() if one.asked_to_end],
            tasks=[OpenTaskSchema.of(task) for task in tasks if not task.status.is_terminal],
        )


class UsageSum(Schema):
    """The usage of the runs of one day, session, task, agent or model."""

    key: str = Field(description="The day (UTC), or the id or name of the session, task, agent or model.")
    runs: int
    requests: int = Field(description="Requests to models that were answered.")
    input_tokens: int
    cached_tokens: int = Field(description="Of the input tokens, those that came from the provider's cache.")
    output_tokens: int
    tool_calls: int
    cost_usd: Annotated[str, From("cost_usd", str)] = Field(
        description="Cost of the runs whose price is known, a decimal number."
    )
    unpriced_runs: Annotated[int, From("unpriced")] = Field(
        description="Runs whose price is not known; they are not part of `cost_usd`."
    )


class UsageSums(Schema):
    """The usage of agents: the newest day first, otherwise the largest cost first."""

    by: UsageBy
    items: list[UsageSum]
    left_out: int = Field(description=f"Sums after the first {MOST_SUMS}.")
    open_runs: int = Field(description="Runs of agents under way or parked; they are in no sum.")
    lost_requests: int = Field(
        description="Requests whose process died or was cancelled, where a budget held; in no sum."
    )
    lost_tokens: int = Field(description="Their estimate in tokens.")
    lost_cost_usd: Annotated[str, From("lost_microusd", usd_text)] = Field(
        description="Their estimate in US dollars, a decimal number."
    )

    @classmethod
    def of_totals(cls, by: UsageBy, totals: Sequence[UsageTotal], unsummed: UnsummedUsage) -> "UsageSums":
        shown = [UsageSum.of(one) for one in totals[:MOST_SUMS]]
        return cls.of(unsummed, by=by, items=shown, left_out=len(totals) - len(shown))
