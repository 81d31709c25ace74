"""What a task came to: its steps, what its runs wrote, what they were denied, and how that counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from soong.orchestrator.approvals.question_status import denial_sentence
from soong.orchestrator.client.client import TaskSnapshot, all_events
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import Event, EventType, NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.failure_report import is_unclean, tools_of
from soong.shared.engine.tasks.kinds import StepKind, TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Step, Task
from soong.shared.storage.store import Store
from soong.shared.tools.result import ErrorType


class ExitCode(IntEnum):
    """How a task ended, for programs. 2 is a wrong use of the command line."""

    COMPLETED = 0
    FAILED = 1
    DENIED = 3
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Denial:
    """A call that did not get a yes. ``author``, ``principal`` and ``channel`` are of the decision, if there is one.

    ``reason`` is the one that was given for it; empty when a person gave none.
    """

    step_id: str
    run_id: str
    tool: str
    error: str
    message: str
    reason: str
    author: str = ""
    principal: str = ""
    channel: str = ""

    @property
    def sentence(self) -> str:
        """Every way of not getting a yes has its own (PER-14)."""
        said = {"author": self.author, "principal": self.principal, "channel": self.channel}
        return denial_sentence(self.error, self.reason, **said)


@dataclass(frozen=True, slots=True)
class Deliverable:
    """A file that a run wrote. ``copy`` is the run's own, kept in the data folder."""

    run_id: str
    path: str
    copy: str


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report of a step in addition to its row (DAG-10): its tools, and for an unclean one what it left.

    ``tools`` are those ``requested`` (None: its definition's) and ``granted``; None for a step that runs no agent.
    """

    tools: JsonObject | None = None
    denials: tuple[JsonObject, ...] = ()
    unknown_effects: tuple[JsonObject, ...] = ()
    partial: Json = None


@dataclass(frozen=True)
class TaskOutcome:
    """The state of a task, read from rows: final when the task has ended. ``reports`` are by step id."""

    view: TaskSnapshot
    deliverables: tuple[Deliverable, ...]
    denials: tuple[Denial, ...]
    reports: Mapping[str, StepReport] = field(default_factory=dict)
    undone: tuple[Denial, ...] = ()
    """Calls that a person allowed and that were not made: their target was no longer what was shown."""
    answer: Json = None
    """What the agent of an ask answered."""

    @property
    def status(self) -> TaskStatus:
        return self.view.task.status

    def report_of(self, step: Step) -> StepReport:
        return self.reports.get(step.step_id, StepReport())

    @property
    def last_steps(self) -> Sequence[Step]:
        """The steps that nothing waits for: what the task was for."""
        waited_for = {key for step in self.view.steps for key in step.depends_on}
        own = [step for step in self.view.steps if not (step.map_key or step.is_pull_worker)]
        return [step for step in own if step.key not in waited_for]

    @property
    def exit_code(self) -> ExitCode:
        match self.status:
            case TaskStatus.FAILED | TaskStatus.CANCELLED:
                return ExitCode.FAILED
            case TaskStatus.PAUSED | TaskStatus.RUNNING:
                return ExitCode.INTERRUPTED
            case TaskStatus.COMPLETED:
                if self.view.task.kind is TaskKind.ASK:  # its agent has judged what failed below it
                    return ExitCode.DENIED if self.denials else ExitCode.COMPLETED
                # A failure that its plan tolerates (`keep`) is still a step that failed.
                if any(step.status is StepStatus.FAILED and not step.is_pull_worker for step in self.view.steps):
                    return ExitCode.FAILED
                return ExitCode.DENIED if self.denials else ExitCode.COMPLETED


async def outcome_of(store: Store, view: TaskSnapshot, runs: Path) -> TaskOutcome:
    """Read what the steps' last runs wrote and were denied; ``runs`` is the folder of the run folders."""
    deliverables: list[Deliverable] = []
    denials: list[Denial] = []
    undone: list[Denial] = []
    reports: dict[str, StepReport] = {}
    current = {step.run_id: step for step in view.steps if step.run_id}
    tasks = (view.task.id, *(task.id for task in view.planned))
    runs_of = [await store.runs.list_runs(task_id=task_id, limit=100_000) for task_id in tasks]
    for run in (run for found in runs_of for run in found):
        step = current.get(run.id)
        if step is not None:
            reports[step.step_id] = await _report(store, step, run)
        if step is not None and (run.usage.tool_calls or step.outcome is Outcome.PARTIAL):
            events = await all_events(store, run.id)
            decided = {
                str(event.data.get("tool_call_id")): event
                for event in events
                if event.type == EventType.PERMISSION_DECIDED
            }
            for event in events:
                deliverables += _deliverables(event, runs)
                denials += _denials(event, step, decided)
                undone += _undone(event, step, decided)
    answer = await _answer(store, view.task)
    return TaskOutcome(view, tuple(deliverables), tuple(denials), reports, tuple(undone), answer)


async def _answer(store: Store, task: Task) -> Json:
    """Return the output of the agent of an ask; None of a plan, and before its end."""
    if task.kind is not TaskKind.ASK or not task.status.is_terminal:
        return None
    nodes = await store.runs.nodes(task.root_run_id)
    last = next((node for node in reversed(nodes) if node.kind is NodeKind.RESULT), None)
    return None if last is None else last.payload.get("output")


async def _report(store: Store, step: Step, run: Run) -> StepReport:
    tools = tools_of(step, run.surface) if step.kind is StepKind.AGENT else None
    if not is_unclean(step.status, step.outcome):
        return StepReport(tools)
    result = await store.tasks.result(step.key)
    return StepReport(tools, result.denials, result.unknown_effects, result.partial)


def _deliverables(event: Event, runs: Path) -> list[Deliverable]:
    value = event.data.get("deliverable")
    if not isinstance(value, Mapping):
        return []
    copy = runs / event.run_id / "deliverables" / Path(str(value.get("name", ""))).name
    return [Deliverable(event.run_id, str(value.get("path", "")), str(copy))]


def _denials(event: Event, step: Step, decided: Mapping[str, Event]) -> list[Denial]:
    if event.type != EventType.TOOL_DENIED:
        return []
    decision = decided.get(str(event.data.get("tool_call_id")))
    said: JsonObject = {} if decision is None else decision.data
    author, principal, channel = (str(said.get(name, "")) for name in ("author", "principal", "channel"))
    error, message = str(event.data.get("error", "")), str(event.data.get("message", ""))
    if said.get("error") != error:  # a yes that did not fit its call any more: its giver denied nothing
        author = principal = channel = ""
    reason = str(said.get("reason", "")) if author == "person" else message
    tool = str(event.data.get("tool", ""))
    return [Denial(step.step_id, event.run_id, tool, error, message, reason, author, principal, channel)]


def _undone(event: Event, step: Step, decided: Mapping[str, Event]) -> list[Denial]:
    """Return a call that was allowed by a person and ended because its target had changed since (PER-14)."""
    decision = decided.get(str(event.data.get("tool_call_id")))
    if decision is None or event.data.get("error") != ErrorType.PATH_CONFLICT or decision.data.get("error"):
        return []
    message = f"allowed, and not done: {event.data.get('message', '')}"
    tool, error = str(event.data.get("tool", "")), str(event.data.get("error", ""))
    return [Denial(step.step_id, event.run_id, tool, error, message, message)]
