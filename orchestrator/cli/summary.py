"""What a task came to: a table of its steps, what it wrote, what was denied, what to try next, and the exit code."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.console import compact, inert, one_line, table
from orchestrator.cli.display import SYMBOLS, seconds_of, status_text, time_text
from orchestrator.client import View, all_events
from shared.jsontext import Json
from shared.runs.events import Event, EventType
from shared.store import Store
from shared.tasks.status import StepStatus, TaskStatus
from shared.tasks.step import Outcome, Step

ROWS_SHOWN = 60
EXIT_COMPLETED, EXIT_FAILED, EXIT_DENIED, EXIT_INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True, slots=True)
class Denial:
    """A call that did not get a yes."""

    step_id: str
    run_id: str
    tool: str
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Deliverable:
    """A file that a run wrote. ``copy`` is the run's own, kept in the home."""

    run_id: str
    path: str
    copy: str


@dataclass(frozen=True, slots=True)
class Summary:
    view: View
    deliverables: tuple[Deliverable, ...]
    denials: tuple[Denial, ...]

    @property
    def exit_code(self) -> int:
        """Say how it ended, for programs."""
        match self.view.task.status:
            case TaskStatus.FAILED | TaskStatus.CANCELLED:
                return EXIT_FAILED
            case TaskStatus.PAUSED | TaskStatus.RUNNING:
                return EXIT_INTERRUPTED
            case TaskStatus.COMPLETED:
                # A failure that its plan tolerates (`keep`) is still a step that failed.
                if any(step.status is StepStatus.FAILED for step in self.view.steps):
                    return EXIT_FAILED
                return EXIT_DENIED if self.denials else EXIT_COMPLETED

    def as_json(self) -> dict[str, Json]:
        """Return the document that ``--json`` prints."""
        task = self.view.task
        return {
            "task": task.id,
            "session": task.session_id,
            "title": task.title,
            "status": str(task.status),
            "reason": task.reason,
            "exit_code": self.exit_code,
            "steps": [step_json(step) for step in self.view.steps],
            "deliverables": [{"run": one.run_id, "path": one.path, "copy": one.copy} for one in self.deliverables],
            "denials": [
                {"step": one.step_id, "run": one.run_id, "tool": one.tool, "error": one.error, "message": one.message}
                for one in self.denials
            ],
        }

    def text(self) -> str:
        """Return it for people."""
        task = self.view.task
        ended = (task.ended_us or task.created_us) - task.created_us
        head = f"{inert(task.title)}: {task.status}" + (f" in {time_text(ended / 1e6)}" if task.ended_us else "")
        parts = [head + (f" ({one_line(task.reason, 200)})" if task.reason else ""), "", self._steps()]
        parts += self._results() + self._denials() + ["", "next:"] + [f"  {line}" for line in self._next()]
        return "\n".join(parts)

    def _steps(self) -> str:
        rows = [
            (
                f"{'  ' if step.map_key else ''}{SYMBOLS[step.status]} {step.step_id}",
                status_text(step),
                time_text(seconds_of(step)),
                str(step.attempt) if step.attempt > 1 else "",
                step.error.message if step.error is not None and step.status is StepStatus.FAILED else "",
            )
            for step in self.view.steps[:ROWS_SHOWN]
        ]
        more = len(self.view.steps) - len(rows)
        text = table(("step", "status", "time", "attempt", "why"), rows)
        return text + (f"\n… and {more} steps more" if more > 0 else "")

    def _results(self) -> list[str]:
        lines = [
            f"result of {step.step_id}: {compact(step.output)}"
            for step in _last_steps(self.view.steps)
            if step.output is not None
        ]
        for one in self.deliverables:
            lines += [f"wrote {inert(one.path)}", f"      its copy: {inert(one.copy)}"]
        return ["", *lines] if lines else []

    def _denials(self) -> list[str]:
        if not self.denials:
            return []
        lines = [f"  {one.step_id}: {one.tool}: {one.error}: {one_line(one.message, 200)}" for one in self.denials[:10]]
        return [
            "",
            f"denied: {len(self.denials)}",
            *lines,
            "  allow it with --allow TOOL:SCOPE, or run it in a terminal and be asked",
        ]

    def _next(self) -> list[str]:
        task = self.view.task
        lines = [f"soong tasks show {task.id}"]
        failed = [step for step in self.view.steps if step.status is StepStatus.FAILED and step.run_id]
        told = failed or [step for step in _last_steps(self.view.steps) if step.run_id]
        lines += [f"soong runs tail {step.run_id}    # {one_line(step.step_id, 40)}" for step in told[:2]]
        if task.status is not TaskStatus.COMPLETED:
            lines.append(f"soong resume {task.id}")
        return lines


async def summarise(store: Store, view: View, home: Path) -> Summary:
    """Read what the steps' runs wrote and were denied."""
    deliverables: list[Deliverable] = []
    denials: list[Denial] = []
    current = {step.run_id: step for step in view.steps if step.run_id}
    for run in await store.runs(task_id=view.task.id, limit=100_000):
        step = current.get(run.id)
        if step is not None and (run.usage.tool_calls or step.outcome is Outcome.PARTIAL):
            for event in await all_events(store, run.id):
                deliverables += _deliverables(event, home)
                denials += _denied(event, step)
    return Summary(view, tuple(deliverables), tuple(denials))


def step_json(step: Step) -> dict[str, Json]:
    """Return a step for programs."""
    return {
        "id": step.step_id,
        "status": str(step.status),
        "outcome": None if step.outcome is None else str(step.outcome),
        "kind": str(step.kind),
        "title": step.title,
        "run": step.run_id,
        "attempt": step.attempt,
        "fence": step.fence,
        "lost_leases": step.lost_leases,
        "seconds": seconds_of(step),
        "depends_on": [key.partition("/")[2] for key in step.depends_on],
        "map": step.map_key.partition("/")[2],
        "output": step.output,
        "error": None if step.error is None else step.error.as_json(),
    }


def _deliverables(event: Event, home: Path) -> list[Deliverable]:
    value = event.data.get("deliverable")
    if not isinstance(value, dict):
        return []
    copy = home / "runs" / event.run_id / "deliverables" / str(value.get("name", ""))
    return [Deliverable(event.run_id, str(value.get("path", "")), str(copy))]


def _denied(event: Event, step: Step) -> list[Denial]:
    if event.type != EventType.TOOL_DENIED:
        return []
    error, message = str(event.data.get("error", "")), str(event.data.get("message", ""))
    return [Denial(step.step_id, event.run_id, str(event.data.get("tool", "")), error, message)]


def _last_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that nothing waits for: what the task was for."""
    waited_for = {key for step in steps for key in step.depends_on}
    return [step for step in steps if step.key not in waited_for and not step.map_key]
