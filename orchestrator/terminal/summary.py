"""A task for people: its summary with what to try next, and the full results of its steps (DAG-10)."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from soong.orchestrator.client.program import program
from soong.orchestrator.terminal.console import compact, number_of, one_line, spelled_out, table, visible
from soong.shared.core.jsontext import Json, inert

Document: TypeAlias = Mapping[str, Any]
SYMBOLS: Final[Mapping[str, str]] = {
    "pending": "·",
    "ready": "○",
    "running": "▸",
    "blocked": "?",
    "expanding": "…",
    "waiting": "…",
    "completed": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "-",
}
TOLD: Final = frozenset({"running", "blocked", "waiting", "completed", "failed", "cancelled", "skipped"})
ENDED: Final = frozenset({"completed", "failed", "cancelled", "skipped"})
_GOES_ON: Final = frozenset({"ready", "running", "blocked", "expanding"})
"""The statuses of an assigned step whose run may have begun; a map step that waits for its items has none of them."""
LIVE: Final = "live"
"""The state of a worker that serves."""
WAITS_FOR_CONSENT: Final = "waits for consent, without a slot"
"""The words for a step whose run is parked."""

ROWS_SHOWN: Final = 60
DENIALS_SHOWN: Final = 10
RESULTS_SHOWN: Final = 10
ANSWER_LINES: Final = 200
CUT: Final = frozenset({"budget_exceeded", "limit_exceeded"})
INDENT: Final = "  "


def pull_text(task: Document, steps: Sequence[Document]) -> str:
    """Say what to do about ready steps that wait to be pulled, while nothing of the task runs that could take them."""
    if task["status"] in ENDED or any(one["status"] in _GOES_ON and one["claim"] == "assigned" for one in steps):
        return ""
    number = sum(one["status"] == "ready" and one["claim"] == "pull" for one in steps)
    words = "1 step waits" if number == 1 else f"{number} steps wait"
    return f"{words} for a pull worker: {program()} tasks add-workers {task['id']}" if number else ""


def still_running(steps: Sequence[Document]) -> str:
    """Say how many of the steps a worker holds; empty when none is held."""
    left = [step for step in steps if step["status"] == "running"]
    noun = "function" if {step["kind"] for step in left} == {"python"} else "step"
    return f"{len(left)} {noun}{'s' if len(left) > 1 else ''} still running" if left else ""


def seconds_between(begin: str | None, end: str | None) -> float | None:
    """Return the seconds between two instants; without an end until now."""
    if begin is None:
        return None
    until_s = time.time() if end is None else datetime.fromisoformat(end).timestamp()
    return max(0.0, until_s - datetime.fromisoformat(begin).timestamp())


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def counted(status: str) -> str:
    """Return what steps of a status are called where they are counted."""
    return "waiting for consent" if status == "blocked" else str(status)


def status_text(step: Document) -> str:
    """Return a step's status with its outcome or what it waits for, where that says more."""
    if step["status"] == "blocked":
        return "blocked (waits for consent)"
    return f"{step['status']} (partial)" if step["outcome"] == "partial" else str(step["status"])


def said_of(step: Document) -> str:
    """Return why a step failed, or its last attempt, or was skipped, what keeps it, or how far it is."""
    if step["status"] in ("failed", "pending", "skipped") and step["error"] is not None:
        return str(step["error"]["message"])
    return str(step["lacks"] or (step["progress"] if step["status"] == "running" else ""))


def step_line(step: Document) -> str:
    """Return a step as one line that tells its last change."""
    line = f"{SYMBOLS[step['status']]} {one_line(step['id'], 60)} {step['status']}"
    if step["outcome"] == "partial":
        line += " (partial)"
    if step["status"] == "blocked":
        line += f": {WAITS_FOR_CONSENT}"
    if step["status"] in ENDED and step["started"] is not None:
        line += f" in {time_text(seconds_between(step['started'], step['ended']))}"
    if step["attempt"] > 1:
        line += f", attempt {step['attempt']}"
    if step["error"] is not None and step["status"] in ("failed", "skipped"):
        line += f": {one_line(step['error']['message'], 0)}"
    return line


def text_of(task: Document) -> str:
    """Return the summary of a task's result; its answer, or its results, are the last thing that a person reads."""
    return "\n".join(filter(None, (summary_of(task), answer_of(task))))


def summary_of(task: Document) -> str:
    """Return the summary of a task without what it has given."""
    steps = task["steps"]
    head = f"{inert(task['title'])}: {task['status']}"
    if (task["status"] in ENDED or task["status"] == "paused") and (left := still_running(steps)):
        head += f", {left}"
    if task["ended"] is not None:
        head += f" in {time_text(seconds_between(task['created'], task['ended']))}"
    if task["reason"]:
        head += f" ({one_line(task['reason'], 0)})"
    # Time is shown to a tenth of a second, money to a millionth.
    limits = [
        f"{name} {round(one['used'], 1) if name == 'wall_s' else one['used']:,.10g} of {one['limit']:,.10g}"
        for name, one in (task["limits"] or {}).items()
        if one is not None
    ]
    waiting = pull_text(task, steps)
    parts = [
        head,
        *([f"limits: {', '.join(limits)}"] if limits else []),
        *(["", _steps(task)] if steps or task["kind"] == "plan" else []),
        *(["", waiting] if waiting else []),
        *_files(task),
        *_shortfalls(task),
        "",
        "next:",
    ]
    return "\n".join([*parts, *(f"  {line}" for line in _next(task)), ""])


def _steps(task: Document) -> str:
    rows = [
        (
            f"{'  ' if step['map'] else ''}{SYMBOLS[step['status']]} {inert(step['id'])}",
            status_text(step),
            time_text(seconds_between(step["started"], step["ended"])),
            str(step["attempt"]) if step["attempt"] > 1 else "",
            said_of(step),
        )
        for step in task["steps"][:ROWS_SHOWN]
    ]
    text = table(("step", "status", "time", "attempt", "why"), rows, uncut=("why",))
    more = sum(task["step_counts"].values()) - len(rows)
    return text + (f"\n… and {number_of(more, 'step')} more" if more > 0 else "")


def _last_steps(task: Document) -> list[Document]:
    """Return the steps that nothing waits for: what the task was for."""
    waited_for = {one for step in task["steps"] for one in step["depends_on"]}
    own = [step for step in task["steps"] if not (step["map"] or step["is_pull_worker"])]
    return [step for step in own if step["id"] not in waited_for]


def _files(task: Document) -> list[str]:
    files = task["deliverables"]
    written = [f"wrote {inert(one['path'])}" for one in files[:DENIALS_SHOWN]]
    if (more := len(files) - len(written)) > 0:
        written.append(f"… and {number_of(more, 'file')} more")
    return ["", *written] if written else []


def answer_of(task: Document) -> str:
    """Return what a task has given: an answer, the text of its only last step, or its results, a line each."""
    if task["answer"] is not None:  # made of the results
        return "\n".join(_text_lines(task["answer"], task["id"]))
    if task["output"] is not None:
        return f"result: {compact(task['output'])}"
    if sum(task["step_counts"].values()) > len(task["steps"]):
        return (
            f"it has too many steps for one page: {program()} tasks show {task['id']} --json has the\n"
            "results, files and denials of all"
        )
    told = [step for step in _last_steps(task) if step["output"] is not None]
    if len(told) > RESULTS_SHOWN:
        return f"{len(told)} results: {program()} tasks show {task['id']} --result"
    if len(told) == 1 and isinstance(text := told[0]["output"], str) and "\n" in text:
        return "\n".join([f"result of {told[0]['id']}:", "", *_text_lines(text, task["id"])])
    return "\n".join(f"result of {step['id']}: {compact(step['output'])}" for step in told)


def _text_lines(value: Json, task_id: str) -> list[str]:
    """Return an answer as it is, its first lines where it is long: text as text, anything else as JSON."""
    lines = inert(value if isinstance(value, str) else compact(value)).rstrip("\n").split("\n")
    if (more := len(lines) - ANSWER_LINES) <= 0:
        return lines
    return [*lines[:ANSWER_LINES], f"… and {number_of(more, 'line')} more: {program()} tasks show {task_id} --json"]


def _calls(calls: Sequence[Document]) -> list[str]:
    return [
        f"  {visible(one['step'])}: {visible(one['tool'])}: {one_line(one['sentence'], 0)} ({one['error']})"
        for one in calls[:DENIALS_SHOWN]
    ]


def _shortfalls(task: Document) -> Iterator[str]:
    """Yield what did not go as asked: denials, what was allowed and not done, ends by a limit, unknown effects."""
    if denials := task["denials"]:
        yield from ("", f"denied: {len(denials)}", *_calls(denials))
    # A person allowed it and did not get it: an approval is for what was shown, and that had changed.
    if undone := task["undone"]:
        yield from ("", f"allowed and not done: {len(undone)}", *_calls(undone))
    steps = task["steps"]
    cut = [step for step in steps if step["error"] is not None and step["error"]["type"] in CUT]
    if cut:
        names = ", ".join(visible(step["id"]) for step in cut[:DENIALS_SHOWN])
        yield from ("", f"cut by a budget or a limit: {number_of(len(cut), 'step')} ({names})")
    # A worker died during these, and they may or may not have happened: nobody but a person can look (DAG-09).
    unknown = [
        f"  {inert(step['id'])}: {inert(str(entry.get('tool')))}: {one_line(str(entry.get('message')), 0)}"
        for step in steps
        for entry in step["unknown_effects"]
    ]
    if unknown:
        yield from ("", f"unknown effects: {len(unknown)}", *unknown[:DENIALS_SHOWN])


def _next(task: Document) -> list[str]:
    failed = [step for step in task["steps"] if step["status"] == "failed" and step["run"]]
    told = failed or [step for step in _last_steps(task) if step["run"] and step["fence"]]  # that were ever begun
    name = program()
    lines = [f"{name} tasks show {task['id']}"]
    for step in told[:2]:
        # A function has no log of turns and calls, but what it prints and raises.
        act = "tail" if step["kind"] == "agent" else "logs"
        lines.append(f"{name} runs {act} {step['run']}    # {one_line(step['id'], 40)}")
    if failed or task["status"] != "completed":
        limits = {limit: one for limit, one in (task["limits"] or {}).items() if one is not None and limit != "wall_s"}
        more = "".join(f" --limit {limit}=…" for limit, one in limits.items() if one["used"] >= one["limit"])
        lines.append(f"{name} resume {task['id']}{more}")
    return lines


def results_text(task: Document) -> str:
    """Return every step that has run with its result, in plan order."""
    told = [step for step in task["steps"] if step["started"] is not None or step["ended"] is not None]
    return "\n\n".join("\n".join(_block(step)) for step in told) or "nothing has run yet"


def _block(step: Document) -> Iterator[str]:
    partial = ", partial" if step["outcome"] == "partial" else ""
    yield f"{spelled_out(step['id'])}: {step['status']}{partial}"
    if step["error"] is not None:
        yield f"{INDENT}error: {spelled_out(step['error']['type'])}: {spelled_out(step['error']['message'])}"
    if step["tools"] is not None and step["tools"].get("requested") is not None:
        yield f"{INDENT}tools asked for: {_names(step['tools'].get('requested'))}"
        yield f"{INDENT}tools given: {_names(step['tools'].get('granted'))}"
    for entry in step["denials"]:
        yield f"{INDENT}denied: {_entry(entry, ('tool', 'type', 'message'))}"
    for entry in step["unknown_effects"]:
        yield f"{INDENT}unknown: {_entry(entry, ('tool', 'shown', 'message'))}"
    if step["partial"] is not None:
        yield from _value("so far", step["partial"])
    if step["output"] is not None:
        yield from _value("output", step["output"])


def _names(value: Any) -> str:
    return ", ".join(spelled_out(str(name)) for name in value) or "none" if isinstance(value, list | tuple) else "none"


def _entry(entry: Document, fields: tuple[str, ...]) -> str:
    return ": ".join(spelled_out(str(entry[field])) for field in fields if entry.get(field))


def _value(name: str, value: Any) -> Iterator[str]:
    """Yield a value uncut: a text as its lines, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
    lines = inert(text).split("\n")
    if len(lines) == 1:
        yield f"{INDENT}{name}: {lines[0]}"
        return
    yield f"{INDENT}{name}:"
    yield from (f"{INDENT}{INDENT}{line}" for line in lines)
