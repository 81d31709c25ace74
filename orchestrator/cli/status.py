"""The commands on the service of this home, or the deployment that the environment names: status, down, metrics."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Final

import typer
from msgspec.structs import asdict

from soong.orchestrator.cli.options import JSON
from soong.orchestrator.embedded.child import health_of
from soong.orchestrator.embedded.control import ask_once
from soong.orchestrator.embedded.folders import has_no_rows
from soong.orchestrator.embedded.service_file import ServiceRecord
from soong.orchestrator.embedded.starter import state_of_home
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import emit_text, one_line, say, show
from soong.orchestrator.terminal.summary import Document, seconds_between, time_text
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import inert
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

MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


class ServiceState(Value):
    """The state of the service: `ready`, `starting`, `stopping`, `servers` (a deployment), `stuck` or `none`."""

    state: str
    pid: int | None = None
    kind: str = ""
    http: str = ""

    @property
    def is_running(self) -> bool:
        return self.state not in {"none", "stuck"}


async def command(*, is_json: bool = JSON) -> None:
    """Show the service, its workers, tasks and questions; exit code 1 when no service runs."""
    settings = load_settings()
    service = await _service_of(settings)
    found: Document = NOTHING
    if not has_no_rows(settings):
        async with Api() as api:
            found = await api.get("/v1/status")
    document = {"service": asdict(service), "home": str(settings.home), **found}
    show(document, lambda: text_of(service, str(settings.home), found), is_json=is_json)
    raise typer.Exit(0 if service.is_running else 1)


async def _service_of(settings: Settings) -> ServiceState:
    if settings.database_url:
        return ServiceState("servers", kind="deployment")
    state, record = await state_of_home(settings)
    if record is None or state in ("none", "stuck"):
        return ServiceState(state)
    health = await health_of(record.control) if state == "living" else None
    if health is None:
        return ServiceState("stopping", record.pid, _kind(record))
    return ServiceState(health.state, record.pid, _kind(record), health.http)


def _kind(record: ServiceRecord) -> str:
    return "ephemeral" if record.is_ephemeral else "staying"


def text_of(service: ServiceState, home: str, found: Document) -> str:
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
        for task in found["tasks"][:TASKS_SHOWN]:
            age, title = time_text(seconds_between(task["created"], None)), one_line(task["title"], 60)
            lines.append(f"  {task['id']}  {task['status']}  {age}  {task['created'][:19]}Z  {title}")
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


async def down(
    *,
    wait_s: float = typer.Option(60.0, "--wait", metavar="SECONDS", help="How long to wait for running steps to end."),
) -> None:
    """Stop the service: running steps may finish or are handed back, nothing is lost."""
    settings = load_settings()
    state, record = await state_of_home(settings)
    if record is None or state == "none":
        say("no service is running in this home")
        return
    if state != "stopping":
        await ask_once(record.control, "stop")
    try:
        async with asyncio.timeout(wait_s):
            while record.is_process_alive:  # noqa: ASYNC110  # not our child: only polling shows its end
                await asyncio.sleep(timing.POLL_PROCESS_S)
    except TimeoutError:
        raise UnavailableError(f"the service (pid {record.pid}) is still stopping after {wait_s:g} s") from None
    say("stopped")


async def metrics() -> None:
    """Print the metrics of the deployment, or of this home's service, from the current rows."""
    async with Api() as api:
        emit_text(await api.text("/v1/metrics"))


async def doctor(*, is_json: bool = JSON) -> None:
    """Check this machine, the home and the service; exit code 1 when there is a problem to fix."""
    from soong.orchestrator.doctor.checks import run_checks  # most of the program

    checks: list[Document] = [
        {"check": name, "level": str(one.level), "says": one.says, "hint": one.hint}
        for name, one in (await run_checks(load_settings())).items()
    ]
    is_good = all(one["level"] != "fail" for one in checks)
    show({"ok": is_good, "checks": checks}, lambda: report(checks), is_json=is_json)
    raise typer.Exit(0 if is_good else 1)


def report(checks: Sequence[Document]) -> str:
    levels = Counter(one["level"] for one in checks)
    width = max(len(one["check"]) for one in checks)
    lines = []
    for one in checks:
        lines.append(f"{MARKS[one['level']]}  {one['check']:<{width}}  {inert(one['says'])}")
        if one["hint"]:
            lines.append(f"{' ' * (width + 8)}-> {inert(one['hint'])}")
    failed, warned = levels["fail"], levels["warn"]
    lines += ["", f"{failed} to fix, {warned} to know" if failed or warned else "everything is in order"]
    return os.linesep.join(lines)
