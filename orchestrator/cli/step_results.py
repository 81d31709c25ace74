"""``soong tasks show --result``: the full result of every step, and partial results of failed ones (DAG-10)."""

import json
from collections.abc import Iterator, Mapping

from soong.orchestrator.client.outcome import StepReport, TaskOutcome
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.step import Outcome, Step

INDENT = "  "


def results_text(outcome: TaskOutcome) -> str:
    """Return every step that has run with its result, in plan order."""
    told = [step for step in outcome.view.steps if step.started_us is not None or step.ended_us is not None]
    blocks = ["\n".join(_block(step, outcome.report_of(step))) for step in told]
    return "\n\n".join(blocks) or "nothing has run yet"


def _block(step: Step, report: StepReport) -> Iterator[str]:
    how = f"{step.status}, {step.outcome}" if step.outcome is Outcome.PARTIAL else str(step.status)
    yield f"{_line(step.step_id)}: {how}"
    if step.error is not None:
        yield f"{INDENT}error: {_line(step.error.type)}: {_line(step.error.message)}"
    if report.tools is not None and report.tools.get("requested") is not None:
        yield f"{INDENT}tools asked for: {_names(report.tools.get('requested'))}"
        yield f"{INDENT}tools given: {_names(report.tools.get('granted'))}"
    for entry in report.denials:
        yield f"{INDENT}denied: {_entry(entry, ('tool', 'type', 'message'))}"
    for entry in report.unknown_effects:
        yield f"{INDENT}unknown: {_entry(entry, ('tool', 'shown', 'message'))}"
    if report.partial is not None:
        yield from _value("so far", report.partial)
    if step.output is not None:
        yield from _value("output", step.output)


def _names(value: Json) -> str:
    return ", ".join(_line(str(name)) for name in value) or "none" if isinstance(value, list | tuple) else "none"


def _entry(entry: Mapping[str, Json], fields: tuple[str, ...]) -> str:
    return ": ".join(_line(str(entry[field])) for field in fields if entry.get(field))


def _value(name: str, value: Json) -> Iterator[str]:
    """Yield a value uncut: a text as its lines, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    lines = inert(text).split("\n")
    if len(lines) == 1:
        yield f"{INDENT}{name}: {lines[0]}"
        return
    yield f"{INDENT}{name}:"
    yield from (f"{INDENT}{INDENT}{line}" for line in lines)


def _line(text: str) -> str:
    return inert(text).replace("\n", "\\n").replace("\t", "\\t")
