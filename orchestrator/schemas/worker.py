"""The workers, what each holds, and what waits, as programs see them (DIS-04)."""

from pydantic import Field

from soong.orchestrator.client.workers import PoolView, WorkersView, WorkerView
from soong.orchestrator.schemas.base import Instant, Schema, instant
from soong.shared.core.clock import rfc3339
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.metrics import LimitUsage, WorkerLoad
from soong.shared.engine.wire.jobs import queue_of


class WorkerRun(Schema):
    """A run that a worker holds."""

    run: str
    step: str = Field(description="The step's key: task/step.")
    title: str
    attempt: int
    session: str
    started: Instant | None
    unended: str = Field(description="Why it is to end, and what of it still runs; empty when it is not to end.")

    @classmethod
    def of(cls, held: WorkerLoad) -> "WorkerRun":
        return cls(
            run=held.run_id,
            step=held.step_key,
            title=held.title,
            attempt=held.attempt,
            session=held.session_id,
            started=instant(held.started_us),
            unended=held.words,
        )


class WorkerSchema(Schema):
    """A worker that is not gone."""

    id: str
    name: str = Field(description="Its name in Celery and Flower.")
    host: str
    pid: int
    state: ProcessState
    slots: int
    used: int
    pools: list[str]
    queues: list[str]
    labels: list[str]
    version: str = Field(description="Of the program; empty when the worker does not announce it.")
    catalogue: str = Field(description="Differs between workers whose tools or schemas differ.")
    protocol: int
    started: Instant
    beats: int
    runs: list[WorkerRun] = Field(description="Oldest first.")

    @classmethod
    def of(cls, view: WorkerView) -> "WorkerSchema":
        worker = view.worker
        return cls(
            id=worker.id,
            name=worker.node_name,
            host=worker.host,
            pid=worker.pid,
            state=worker.state,
            slots=worker.slots,
            used=len(view.holds),
            pools=list(worker.pools),
            queues=[queue_of(pool) for pool in worker.pools],
            labels=list(view.labels),
            version=view.version,
            catalogue=view.catalogue,
            protocol=worker.protocol,
            started=rfc3339(worker.started_us),
            beats=worker.beat,
            runs=[WorkerRun.of(held) for held in view.holds],
        )


class PoolSchema(Schema):
    """A queue: what could be claimed from it now, and how much more its workers could take."""

    pool: str
    queue: str
    waiting: int
    free_slots: int

    @classmethod
    def of(cls, view: PoolView) -> "PoolSchema":
        return cls(pool=view.pool, queue=queue_of(view.pool), waiting=view.waiting, free_slots=view.free_slots)


class LimitSchema(Schema):
    """A concurrency limit."""

    scope: str
    limit: int
    used: int

    @classmethod
    def of(cls, usage: LimitUsage) -> "LimitSchema":
        return cls(scope=usage.scope, limit=usage.limit, used=usage.used)


class WorkersSchema(Schema):
    workers: list[WorkerSchema]
    pools: list[PoolSchema]
    limits: list[LimitSchema]
    parked: int = Field(description="Runs that wait for consent and hold no slot.")

    @classmethod
    def of(cls, view: WorkersView) -> "WorkersSchema":
        return cls(
            workers=[WorkerSchema.of(worker) for worker in view.workers],
            pools=[PoolSchema.of(pool) for pool in view.pools],
            limits=[LimitSchema.of(usage) for usage in view.concurrency_limits],
            parked=view.parked,
        )
