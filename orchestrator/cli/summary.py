"""A task for people: its summary with what to try next, and the full results of its steps (DAG-10)."""

import json
from collections.abc import Iterator, Mapping

from soong.orchestrator.cli.console import compact, number_of, one_line, spelled_out, table, visible
from soong.orchestrator.cli.display import status_text
from soong.orchestrator.cli.step_words import SYMBOLS, pull_text, seconds_of, time_text
from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.client.outcome import StepReport, TaskOutcome
from soong.orchestrator.client.program import program
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.engine.tasks.metrics import still_running
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Step

ROWS_SHOWN = 60
DENIALS_SHOWN = 10

INDENT = "  "


def text_of(outcome: TaskOutcome) -> str:
    """Return the summary of a task."""
    task = outcome.view.task
    head = f"{inert(task.title)}: {task.status}"
    if (task.status.is_terminal or task.status is TaskStatus.PAUSED) and (left := still_running(outcome.view.steps)):
        head += f", {left}"
    if task.ended_us is not None:
        head += f" in {time_text((task.ended_us - task.created_us) / 1_000_000)}"
    if task.reason:
        head += f" ({one_line(task.reason, 0)})"
    parts = [
        head,
        *_limits(outcome),
        *_answer(outcome),
        *(["", _steps(outcome)] if outcome.view.steps or task.kind is TaskKind.PLAN else []),
        *_waiting(outcome),
        *_results(outcome),
        *_denials(outcome),
        *_undone(outcome),
        *_cut(outcome),
        *_unknown(outcome),
        "",
        "next:",
    ]
    return "\n".join([*parts, *(f"  {line}" for line in _next(outcome))])


def _limits(outcome: TaskOutcome) -> list[str]:
    # Of time a tenth of a second is enough; of money every millionth counts.
    used = {one.name: round(one.used, 1) if one.name == "wall_s" else one.used for one in outcome.limits}
    shown = [f"{one.name} {used[one.name]:,.10g} of {one.limit:,.10g}" for one in outcome.limits]
    return [f"limits: {', '.join(shown)}"] if shown else []


def _answer(outcome: TaskOutcome) -> list[str]:
    """Return the answer of an ask as it is: text as text, anything else as JSON."""
    if outcome.answer is None:
        return []
    text = outcome.answer if isinstance(outcome.answer, str) else compact(outcome.answer)
    return ["", inert(text)]


def _steps(outcome: TaskOutcome) -> str:
    steps = outcome.view.steps
    text = table(
        ("step", "status", "time", "attempt", "why"),
        [_row(step, outcome.view) for step in steps[:ROWS_SHOWN]],
        uncut=("why",),
    )
    more = sum(outcome.view.counts.values()) - min(len(steps), ROWS_SHOWN)
    return text + (f"\n… and {number_of(more, 'step')} more" if more > 0 else "")


def _waiting(outcome: TaskOutcome) -> list[str]:
    sentence = pull_text(outcome.view)
    return ["", sentence] if sentence else []


def _row(step: Step, view: TaskSnapshot) -> tuple[str, ...]:
    why = step.error.message if step.error is not None and step.status is StepStatus.FAILED else ""
    return (
        f"{'  ' if step.map_key else ''}{SYMBOLS[step.status]} {inert(step.step_id)}",
        status_text(step),
        time_text(seconds_of(step)),
        str(step.attempt) if step.attempt > 1 else "",
        why or view.lacks.get(step.key, ""),
    )


def _results(outcome: TaskOutcome) -> list[str]:
    if outcome.view.totals is not None:
        return [
            "",
            f"it has too many steps for one page: {program()} tasks show {outcome.view.task.id} --json has the",
            "results, files and denials of all",
        ]
    lines = [
        f"result of {step.step_id}: {compact(step.output)}" for step in outcome.last_steps if step.output is not None
    ]
    for one in outcome.deliverables:
        lines += [f"wrote {inert(one.path)}", f"      its copy: {inert(one.copy)}"]
    return ["", *lines] if lines else []


def _denials(outcome: TaskOutcome) -> list[str]:
    if not outcome.denials:
        return []
    lines = [
        f"  {visible(one.step_id)}: {visible(one.tool)}: {one_line(one.sentence, 0)} ({one.error})"
        for one in outcome.denials[:DENIALS_SHOWN]
    ]
    if all(one.author == "person" for one in outcome.denials):
        return ["", f"denied: {len(outcome.denials)}", *lines]
    hint = "  allow it with --allow TOOL:SCOPE, or run it in a terminal and be asked"
    return ["", f"denied: {len(outcome.denials)}", *lines, hint]


def _cut(outcome: TaskOutcome) -> list[str]:
    """Name the steps that a budget or a limit ended."""
    names = ", ".join(visible(step.step_id) for step in outcome.cut[:DENIALS_SHOWN])
    return ["", f"cut by a budget or a limit: {number_of(len(outcome.cut), 'step')} ({names})"] if names else []


def _undone(outcome: TaskOutcome) -> list[str]:
    """Name what a person allowed and did not get: an approval is for what was shown, and that had changed."""
    lines = [
        f"  {visible(one.step_id)}: {visible(one.tool)}: {one_line(one.sentence, 0)} ({one.error})"
        for one in outcome.undone[:DENIALS_SHOWN]
    ]
    return ["", f"allowed and not done: {len(outcome.undone)}", *lines] if lines else []


def _unknown(outcome: TaskOutcome) -> list[str]:
    """Name what may or may not have happened when a worker died: nobody but a person can look (DAG-09)."""
    lines = [
        f"  {inert(step_id)}: {inert(str(entry.get('tool')))}: {one_line(str(entry.get('message')), 0)}"
        for step_id, report in outcome.reports.items()
        for entry in report.unknown_effects
    ]
    return ["", f"unknown effects: {len(lines)}", *lines[:DENIALS_SHOWN]] if lines else []


def _next(outcome: TaskOutcome) -> list[str]:
    task = outcome.view.task
    failed = [step for step in outcome.view.steps if step.status is StepStatus.FAILED and step.run_id]
    told = failed or [step for step in outcome.last_steps if step.run_id and step.fence]  # that were ever begun
    name = program()
    lines = [f"{name} tasks show {task.id}"]
    lines += [f"{name} runs tail {step.run_id}    # {one_line(step.step_id, 40)}" for step in told[:2]]
    if task.status is not TaskStatus.COMPLETED:
        more = "".join(f" --limit {one.name}=…" for one in outcome.limits if one.is_reached and one.name != "wall_s")
        lines.append(f"{name} resume {task.id}{more}")
    return lines


def results_text(outcome: TaskOutcome) -> str:
    """Return every step that has run with its result, in plan order."""
    told = [step for step in outcome.view.steps if step.started_us is not None or step.ended_us is not None]
    blocks = ["\n".join(_block(step, outcome.report_of(step))) for step in told]
    return "\n\n".join(blocks) or "nothing has run yet"


def _block(step: Step, report: StepReport) -> Iterator[str]:
    how = f"{step.status}, {step.outcome}" if step.outcome is Outcome.PARTIAL else str(step.status)
    yield f"{spelled_out(step.step_id)}: {how}"
    if step.error is not None:
        yield f"{INDENT}error: {spelled_out(step.error.type)}: {spelled_out(step.error.message)}"
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
    return ", ".join(spelled_out(str(name)) for name in value) or "none" if isinstance(value, list | tuple) else "none"


def _entry(entry: Mapping[str, Json], fields: tuple[str, ...]) -> str:
    return ": ".join(spelled_out(str(entry[field])) for field in fields if entry.get(field))


def _value(name: str, value: Json) -> Iterator[str]:
    """Yield a value uncut: a text as its lines, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    lines = inert(text).split("\n")
    if len(lines) == 1:
        yield f"{INDENT}{name}: {lines[0]}"
        return
    yield f"{INDENT}{name}:"
    yield from (f"{INDENT}{INDENT}{line}" for line in lines)
