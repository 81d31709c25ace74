"""The commands on the service of this home, or the deployment that the environment names: status, down, metrics."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import typer

from soong.orchestrator.cli.console import emit, emit_text, one_line, output, say
from soong.orchestrator.cli.ids import has_no_rows, opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.step_words import time_text
from soong.orchestrator.embedded.control import ControlClient, ask_once
from soong.orchestrator.embedded.service_file import ServiceRecord, read_record
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core import timing
from soong.shared.core.clock import SystemClock, to_the_second
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.metrics import Metrics, WorkerLoad
from soong.shared.engine.tasks.step import Task

TASKS_SHOWN = 5
_SERVING = frozenset({ProcessState.LIVE, ProcessState.DRAINING})


class ServiceState(Value):
    """What answers. ``state`` is `ready`, `starting`, `stopping`, `servers` (a deployment), `stuck` or `none`."""

    state: str
    pid: int | None = None
    kind: str = ""
    http: str = ""

    @property
    def is_running(self) -> bool:
        return self.state not in {"none", "stuck"}


class Status(Value):
    """The service and its rows; the rows are None where there is no database yet."""

    service: ServiceState
    home: str
    workers: Sequence[Worker] = ()
    owners: int = 0
    metrics: Metrics | None = None
    open_tasks: Sequence[Task] = ()
    unended: Sequence[WorkerLoad] = ()
    """Steps that were asked to end, and whose functions still run."""

    def as_json(self) -> dict[str, Json]:
        metrics = self.metrics or Metrics()
        return {
            "service": {
                "state": self.service.state,
                "pid": self.service.pid,
                "kind": self.service.kind,
                "http": self.service.http,
            },
            "home": self.home,
            "orchestrators": self.owners,
            "workers": {
                "live": sum(one.state in _SERVING for one in self.workers),
                "slots": sum(one.slots for one in self.workers),
                "busy": sum(one.busy for one in self.workers),
            },
            "steps": {
                "ready": sum(pool.ready for pool in metrics.pools.values()),
                "running": sum(pool.running for pool in metrics.pools.values()),
            },
            "unended": [{"step": one.step_key, "words": one.words} for one in self.unended],
            "questions": metrics.questions,
            "open_tasks": metrics.open_tasks,
            "tasks": [{"id": one.id, "title": one.title, "status": str(one.status)} for one in self.open_tasks],
        }


def command(*, is_json: bool = JSON) -> None:
    """Show the service, its workers, tasks and questions; exit code 1 when no service runs."""
    status = asyncio.run(status_of(load_settings()))
    if is_json:
        emit(status.as_json())
    else:
        output(status_text(status))
    raise typer.Exit(0 if status.service.is_running else 1)


async def status_of(settings: Settings) -> Status:
    """Ask the service and read the rows. Raises: UnavailableError."""
    service = await _service_of(settings)
    if has_no_rows(settings):
        return Status(service, str(settings.home))
    from soong.orchestrator.client.bootstrap import opened_metrics

    async with opened_store(settings) as store, opened_metrics(settings) as metrics:
        workers = await store.sessions.workers()
        tasks = [task for task in await store.tasks.list_tasks(limit=100) if not task.status.is_terminal]
        owners = await store.sessions.owners()
        unended = [one for one in await metrics.holdings() if one.asked_to_end]
        return Status(service, str(settings.home), workers, len(owners), await metrics.metrics(), tasks, unended)


async def _service_of(settings: Settings) -> ServiceState:
    if settings.database_url:
        return ServiceState("servers", kind="deployment")
    try:
        record = await living_service(settings)
    except UnavailableError:
        return ServiceState("stuck")
    if record is None:
        ending = read_record(settings.home)
        if ending is None or not ending.is_stopping:
            return ServiceState("none")
        return ServiceState("stopping", ending.pid, _kind(ending))
    with suppress(UnavailableError):
        answer = await ask_once(record.control, "status")
        return ServiceState(str(answer.get("state")), record.pid, _kind(record), str(answer.get("http") or ""))
    return ServiceState("stopping", record.pid, _kind(record))


def _kind(record: ServiceRecord) -> str:
    return "ephemeral" if record.is_ephemeral else "staying"


def status_text(status: Status) -> str:
    """Return the screen."""
    found = status.as_json()
    service = status.service
    lines = [f"service    {_service_text(service)}", f"home       {status.home}"]
    if service.http:
        lines.append(f"HTTP API   {service.http}/v1/")
    if service.is_running and status.metrics is not None:
        workers, steps = found["workers"], found["steps"]
        assert isinstance(workers, dict)
        assert isinstance(steps, dict)
        lines += [
            f"workers    {workers['live']}, {workers['busy']} of {workers['slots']} slots in use",
            f"steps      {steps['running']} running, {steps['ready']} ready",
        ]
    lines += [f"  {one_line(one.words, 0)}" for one in status.unended]
    if status.metrics is not None:
        lines.append(f"questions  {status.metrics.questions} waiting")
        lines.append(f"tasks      {status.metrics.open_tasks} open")
        lines += [_task_line(task) for task in status.open_tasks[:TASKS_SHOWN]]
    return "\n".join(lines)


def _service_text(service: ServiceState) -> str:
    match service.state:
        case "none":
            return "not running; `soong run` starts one, `soong up` starts one that stays"
        case "stuck":
            return "holds the home and does not answer; run `soong doctor`"
        case "servers":
            return "the deployment that SOONG_DATABASE_URL names"
        case state:
            return f"{state}, pid {service.pid}, {service.kind}"


def _task_line(task: Task) -> str:
    age = time_text((SystemClock().now_us() - task.created_us) / 1_000_000)
    return f"  {task.id}  {task.status}  {age}  {to_the_second(task.created_us)}  {one_line(task.title, 60)}"


def down(
    *,
    wait_s: float = typer.Option(60.0, "--wait", metavar="SECONDS", help="How long to wait for running steps to end."),
) -> None:
    """Stop the service: running steps may finish or are handed back, nothing is lost."""
    asyncio.run(_stop(wait_s))


async def _stop(wait_s: float) -> None:
    settings = load_settings()
    record = await living_service(settings)
    if record is None:
        ending = read_record(settings.home)
        if ending is None or not ending.is_stopping:
            say("no service is running in this home")
        elif await _is_gone(ending, wait_s):
            say("stopped")
        else:
            raise UnavailableError(f"the service (pid {ending.pid}) is still stopping after {wait_s:g} s")
        return
    control = await ControlClient.open(record.control)
    try:
        await control.ask("stop")
        async with asyncio.timeout(wait_s):
            await control.ended()
    except TimeoutError:
        raise UnavailableError(f"the service (pid {record.pid}) is still stopping after {wait_s:g} s") from None
    finally:
        await control.close()
    say("stopped")


async def _is_gone(record: ServiceRecord, limit_s: float) -> bool:
    """Wait for the end of a process that has begun to stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while record.is_process_alive:  # noqa: ASYNC110  # another's child: nobody tells of its end
                await asyncio.sleep(timing.POLL_PROCESS_S)
    return not record.is_process_alive


def metrics() -> None:
    """Print the metrics of the deployment, or of this home's service, from the current rows."""
    emit_text(asyncio.run(_metrics_text(load_settings())).decode())


async def _metrics_text(settings: Settings) -> bytes:
    from soong.orchestrator.client.bootstrap import opened_metrics
    from soong.orchestrator.telemetry.metrics import collect, text

    async with opened_store(settings) as store, opened_metrics(settings) as metrics:
        return text(await collect(store, metrics, SystemClock()))
