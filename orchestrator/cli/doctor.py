"""``soong doctor``: problems and their fixes. Looks at everything, changes nothing, stops at nothing."""

import asyncio
import os

import typer

from soong.orchestrator.cli.checks import run_checks
from soong.orchestrator.cli.console import emit, output
from soong.orchestrator.cli.finding import Finding, Level
from soong.shared.core.inert import inert
from soong.shared.core.settings import load_settings

MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def command(*, is_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Check this machine, the home and the service; exit code 1 when there is a problem to fix."""
    findings = asyncio.run(run_checks(load_settings()))
    if is_json:
        emit({"ok": not _failed(findings), "checks": [finding.as_json() for finding in findings]})
    else:
        output(report(findings))
    raise typer.Exit(1 if _failed(findings) else 0)


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
