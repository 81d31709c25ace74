"""``soong doctor``: problems and their fixes. Looks at everything, changes nothing, stops at nothing."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

import typer

from soong.orchestrator.cli.boundary_checks import (
    check_answers,
    check_artifacts,
    check_boundary,
    check_configuration,
    check_data,
    check_sandbox,
)
from soong.orchestrator.cli.checks import (
    Finding,
    Level,
    check_agent_files,
    check_clock,
    check_database,
    check_home,
    check_modules,
    check_python,
    check_redis,
    check_ripgrep,
    check_runtime_folder,
    check_service,
    check_tool_files,
)
from soong.orchestrator.cli.console import emit, output
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.cli.work_checks import (
    check_notifications,
    check_servers,
    check_steps,
    check_telemetry,
    check_workers,
)
from soong.shared.core.inert import inert
from soong.shared.core.settings import Settings, load_settings

MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def command(*, is_json: bool = JSON) -> None:
    """Check this machine, the home and the service; exit code 1 when there is a problem to fix."""
    findings = asyncio.run(run_checks(load_settings()))
    if is_json:
        emit({"ok": not _failed(findings), "checks": [finding.as_json() for finding in findings]})
    else:
        output(report(findings))
    raise typer.Exit(1 if _failed(findings) else 0)


async def run_checks(settings: Settings) -> list[Finding]:
    """Run every check, in an order in which the first failure explains the later ones."""
    checks: Sequence[Callable[[Settings], Awaitable[Finding]]] = (
        check_python,
        check_home,
        check_data,
        check_artifacts,
        check_configuration,
        check_boundary,
        check_runtime_folder,
        check_service,
        check_database,
        check_workers,
        check_steps,
        check_redis,
        check_ripgrep,
        check_sandbox,
        check_tool_files,
        check_agent_files,
        check_servers,
        check_notifications,
        check_telemetry,
        check_modules,
        check_clock,
        check_answers,
    )
    return [await check(settings) for check in checks]


def report(findings: list[Finding]) -> str:
    """Return the findings for people."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.level]}  {finding.check:<{width}}  {inert(finding.says)}")
        if finding.hint:
            lines.append(f"{' ' * (width + 8)}-> {inert(finding.hint)}")
    failed, warned = _failed(findings), sum(finding.level is Level.WARN for finding in findings)
    lines.append("")
    lines.append(f"{failed} to fix, {warned} to know" if failed or warned else "everything is in order")
    return os.linesep.join(lines)


def _failed(findings: list[Finding]) -> int:
    return sum(finding.level is Level.FAIL for finding in findings)
