"""The commands on the service of this home, or the deployment that the environment names: status, down, metrics."""

import asyncio
from contextlib import suppress
from typing import Final

import typer
from msgspec.structs import asdict

from soong.orchestrator.cli.api import Api
from soong.orchestrator.cli.console import emit, emit_text, one_line, output, say
from soong.orchestrator.cli.ids import has_no_rows
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.step_words import Document, seconds_between, time_text
from soong.orchestrator.embedded.control import ControlClient, ask_once
from soong.orchestrator.embedded.service_file import ServiceRecord, read_record
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.value import Value

TASKS_SHOWN = 5
NOTHING: Final[Document] = {
    "orchestrators": 0,
    "workers": {"live": 0, "slots": 0, "busy": 0},
    "steps": {"ready": 0, "running": 0},
    "unended": [],
    "questions": 0,
    "open_tasks": 0,
    "tasks": [],
}
"""The status of a home in which nothing has run."""


class ServiceState(Value):
    """What answers. ``state`` is `ready`, `starting`, `stopping`, `servers` (a deployment), `stuck` or `none`."""

    state: str
    pid: int | None = None
    kind: str = ""
    http: str = ""

    @property
    def is_running(self) -> bool:
        return self.state not in {"none", "stuck"}


def command(*, is_json: bool = JSON) -> None:
    """Show the service, its workers, tasks and questions; exit code 1 when no service runs."""
    settings = load_settings()
    service = asyncio.run(_service_of(settings))
    found: Document = NOTHING
    if not has_no_rows(settings):
        with Api() as api:
            found = api.get("/v1/status")
    if is_json:
        emit({"service": asdict(service), "home": str(settings.home), **found})
    else:
        output(text_of(service, str(settings.home), found))
    raise typer.Exit(0 if service.is_running else 1)


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


def text_of(service: ServiceState, home: str, found: Document) -> str:
    """Return the screen."""
    lines = [f"service    {_service_text(service)}", f"home       {home}"]
    if service.http:
        lines.append(f"HTTP API   {service.http}/v1/")
    if found is not NOTHING:
        workers, steps = found["workers"], found["steps"]
        if service.is_running:
            lines += [
                f"workers    {workers['live']}, {workers['busy']} of {workers['slots']} slots in use",
                f"steps      {steps['running']} running, {steps['ready']} ready",
            ]
        lines += [f"  {one_line(one['words'], 0)}" for one in found["unended"]]
        lines += [f"questions  {found['questions']} waiting", f"tasks      {found['open_tasks']} open"]
        lines += [_task_line(task) for task in found["tasks"][:TASKS_SHOWN]]
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


def _task_line(task: Document) -> str:
    age = time_text(seconds_between(task["created"], None))
    return f"  {task['id']}  {task['status']}  {age}  {task['created'][:19]}Z  {one_line(task['title'], 60)}"


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
    with Api() as api:
        emit_text(api.text("/v1/metrics"))
