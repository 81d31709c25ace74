"""Everything of an owner, a client and a worker that reads rows which workers write: the parts of the fuzz test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from soong.orchestrator.doctor.checks import check_database
from soong.orchestrator.doctor.machine import Level
from soong.orchestrator.operations.documents import respond
from soong.orchestrator.operations.outcome import read_result, snapshot_of
from soong.orchestrator.owner.run_folder import lines_of
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.workers import Reaper
from soong.orchestrator.schemas.run import EventSchema, LineSchema, NodeSchema, RunDetail, RunSchema
from soong.orchestrator.schemas.task import StepSchema
from soong.orchestrator.schemas.worker import WorkersSchema
from soong.orchestrator.telemetry import metrics
from soong.shared.core.jsontext import dump
from soong.shared.core.settings import Settings
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.tasks.metrics import SqlMetrics
from tests.integration.bad_deployment import Deployment


@asynccontextmanager
async def while_reading(what: str) -> AsyncIterator[None]:
    """Say in an error which reader met it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while reading: {what}")
        raise


async def sweep(deployment: Deployment) -> None:
    """Do what an owner's sweep does: reports, dead and malformed workers, the session's steps, its questions."""
    bench = deployment.bench
    store, owner_id = bench.store, bench.ownership.owner_id
    async with while_reading("reports"):
        while await store.audit.take_reports(owner_id, now_us=bench.clock.now_us()):
            pass
    lease = timedelta(seconds=15)
    async with while_reading("workers, as the reaper"):
        await Reaper(store.sessions, store.claims, bench.clock, lease, max_lost_leases=1000, owner_id=owner_id).sweep()
    async with while_reading("the session, as the scheduler"):
        expander = Expander(store.tasks, store.runs, bench.clock)
        await Scheduler(store.tasks, store.runs, expander, bench.clock).reconcile(bench.ownership)
    async with while_reading("questions, as the broker"):
        await bench.broker.review([bench.session_id])
        await store.consent.open_questions(bench.session_id, limit=1000)
        await store.consent.pending(bench.session_id)
        await store.consent.questions(session_id=bench.session_id, include_closed=True)
        [use async for use in _uses(deployment)]


async def _uses(deployment: Deployment) -> AsyncIterator[object]:
    for use in await deployment.bench.store.audit.uses():
        yield use


async def read_processes(deployment: Deployment) -> None:
    """Do what ``workers list``, the metrics and ``doctor`` do."""
    store, url = deployment.bench.store, deployment.urls.orchestrator
    await store.sessions.workers(include_gone=True)
    figures = SqlMetrics(parse_url(url))
    try:
        async with while_reading("workers list"):
            respond(await WorkersSchema.read(store.claims, store.sessions, figures))
        async with while_reading("metrics"):
            metrics.text(await metrics.collect(store, figures, deployment.bench.clock))
    finally:
        await figures.close()
    async with while_reading("doctor"):
        found = await check_database(Settings(database_url=url))
        assert found.level is Level.OK, found


async def read_runs(deployment: Deployment, limit: int) -> None:
    """Do what the lists and pages of runs do, and show the newest ones whole."""
    store = deployment.bench.store
    for run in await store.runs.run_page(limit=limit):
        async with while_reading(f"run {run.id}"):
            respond(RunSchema.of(run))
            respond(RunDetail.of(run))
            await store.runs.is_tainted(run.id)
            await store.runs.calls(run.id)
        async with while_reading(f"the events of run {run.id}"):
            events = await store.runs.events_of([run.id])
            [respond(EventSchema.model_validate(event.envelope())) for event in events]
            [dump(line) for lines in lines_of(events).values() for line in lines]
        async with while_reading(f"the lines of run {run.id}"):
            [respond(LineSchema.of(line)) for line in await store.runs.lines(run.id)]
        async with while_reading(f"the nodes of run {run.id}"):
            [respond(NodeSchema.of(node)) for node in await store.runs.node_page(run.id, limit=1000)]


async def read_tasks(deployment: Deployment, limit: int, folder: Path) -> None:
    """Do what ``tasks show`` and the API's task do, and what dependents are told of each step."""
    store = deployment.bench.store
    for task in await store.tasks.list_tasks(limit=limit):
        async with while_reading(f"task {task.id}"):
            respond(await read_result(store, task.id, folder))
        for step in (await snapshot_of(store, task.id)).steps:
            async with while_reading(f"step {step.key}"):
                respond(StepSchema.of(step))
                await store.tasks.result(step.key)


async def read_everything(deployment: Deployment, folder: Path, *, limit: int) -> None:
    """Read all that stands; of runs and tasks the newest. Nothing raises, whatever a worker wrote."""
    await sweep(deployment)
    await read_processes(deployment)
    await read_runs(deployment, limit)
    await read_tasks(deployment, limit, folder)
