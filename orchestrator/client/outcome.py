"""What a task came to: its steps, what its runs wrote, what they were denied, and how that counts."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from pathlib import Path

import msgspec

from soong.orchestrator.approvals.approval import denial_sentence
from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.client.task_limits import TaskLimit, limits_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import TASK_LIMIT, BudgetSpentError
from soong.shared.engine.runs.events import Event, EventType, NodeKind
from soong.shared.engine.tasks.failure_report import is_unclean, tools_of
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.storage.store import Store
from soong.shared.tools.result import ErrorType

_CUT = frozenset({BudgetSpentError.code, TASK_LIMIT})


class ExitCode(IntEnum):
    """How a task ended, for programs. 2 is a wrong use of the command line."""

    COMPLETED = 0
    FAILED = 1
    DENIED = 3
    INTERRUPTED = 130


class Denial(Value):
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


class Deliverable(Value):
    """A file that a run wrote. ``copy`` is the run's own, kept in the data folder."""

    run_id: str
    path: str
    copy: str


class StepReport(Value):
    """The report of a step in addition to its row (DAG-10): its tools, and for an unclean one what it left.

    ``tools`` are those ``requested`` (None: its definition's) and ``granted``; None for a step that runs no agent.
    """

    tools: JsonObject | None = None
    denials: tuple[JsonObject, ...] = ()
    unknown_effects: tuple[JsonObject, ...] = ()
    partial: Json = None


class TaskOutcome(Value):
    """The state of a task, read from rows: final when the task has ended. ``reports`` are by step id."""

    view: TaskSnapshot
    deliverables: tuple[Deliverable, ...]
    denials: tuple[Denial, ...]
    reports: Mapping[str, StepReport] = msgspec.field(default_factory=dict)
    undone: tuple[Denial, ...] = ()
    """Calls that a person allowed and that were not made: their target was no longer what was shown."""
    answer: Json = None
    """What the agent of an ask answered."""
    limits: tuple[TaskLimit, ...] = ()
    """Those of its plan, with what is used of them."""

    @property
    def status(self) -> TaskStatus:
        return self.view.task.status

    def report_of(self, step: Step) -> StepReport:
        return self.reports.get(step.step_id, StepReport())

    @property
    def cut(self) -> Sequence[Step]:
        """The steps that a budget or a limit of their task ended."""
        return [step for step in self.view.steps if step.error is not None and step.error.type in _CUT]

    @property
    def exit_code(self) -> ExitCode:
        match self.status:
            case TaskStatus.FAILED | TaskStatus.CANCELLED:
                return ExitCode.FAILED
            case TaskStatus.PAUSED | TaskStatus.RUNNING:
                return ExitCode.INTERRUPTED
            case TaskStatus.COMPLETED:
                if self.view.task.kind is TaskKind.ASK:  # its agent has judged what failed below it
                    if self.cut:  # and had no means to do what a budget cut
                        return ExitCode.FAILED
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
    for task_id in (view.task.id, *(task.id for task in view.planned)):
        of_task = {step.run_id: step for step in view.steps if step.run_id and step.task_id == task_id}
        read = view.last_runs if task_id == view.task.id else None
        told = read or await store.runs.last_runs(task_id)
        for run_id, step in of_task.items():
            reports[step.step_id] = await step_report(store, step, told.granted.get(run_id, ()))
        for run_id, events in groupby(told.events, key=lambda event: event.run_id):
            if run_id in of_task:
                log = _RunLog(of_task[run_id], tuple(events))
                deliverables += log.deliverables(runs)
                denials += log.denials()
                undone += log.undone()
    answer = await _answer(store, view.task)
    limits = await limits_of(store, view.task)
    return TaskOutcome(view, tuple(deliverables), tuple(denials), reports, tuple(undone), answer, limits)


async def _answer(store: Store, task: Task) -> Json:
    """Return the output of the agent of an ask; None of a plan, and before its end."""
    if task.kind is not TaskKind.ASK or not task.status.is_terminal:
        return None
    nodes = await store.runs.nodes(task.root_run_id)
    last = next((node for node in reversed(nodes) if node.kind is NodeKind.RESULT), None)
    return None if last is None else last.payload.get("output")


async def step_report(store: Store, step: Step, granted: Sequence[str]) -> StepReport:
    """Return the report of a step whose run may call the ``granted`` tools."""
    tools = tools_of(step, granted) if step.kind.traits.is_agent else None
    if not is_unclean(step.status, step.outcome):
        return StepReport(tools)
    result = await store.tasks.result(step.key)
    return StepReport(tools, result.denials, result.unknown_effects, result.partial)


class _RunLog(Value):
    """What the log of a step's last run says of its calls."""

    step: Step
    events: Sequence[Event]

    def deliverables(self, runs: Path) -> list[Deliverable]:
        found = []
        for event in self.events:
            value = event.data.get("deliverable")
            if isinstance(value, Mapping):
                copy = runs / event.run_id / "deliverables" / Path(str(value.get("name", ""))).name
                found.append(Deliverable(event.run_id, str(value.get("path", "")), str(copy)))
        return found

    def denials(self) -> list[Denial]:
        return [self._denial(event) for event in self.events if event.type == EventType.TOOL_DENIED]

    def undone(self) -> list[Denial]:
        """Return the calls that a person allowed and that ended because their target had changed since (PER-14)."""
        found = []
        for event in self.events:
            if event.data.get("error") != ErrorType.PATH_CONFLICT:
                continue  # asked first: what was decided is looked up in the run's events, and most runs have none
            decision = self._decided.get(_call_of(event))
            if decision is None or decision.data.get("error"):
                continue
            message = f"allowed, and not done: {event.data.get('message', '')}"
            tool, error = str(event.data.get("tool", "")), str(event.data.get("error", ""))
            found.append(Denial(self.step.step_id, event.run_id, tool, error, message, message))
        return found

    def _denial(self, event: Event) -> Denial:
        decision = self._decided.get(_call_of(event))
        said: JsonObject = {} if decision is None else decision.data
        author, principal, channel = (str(said.get(name, "")) for name in ("author", "principal", "channel"))
        error, message = str(event.data.get("error", "")), str(event.data.get("message", ""))
        if said.get("error") != error:  # a yes that did not fit its call any more: its giver denied nothing
            author = principal = channel = ""
        reason = str(said.get("reason", "")) if author == "person" else message
        tool = str(event.data.get("tool", ""))
        return Denial(self.step.step_id, event.run_id, tool, error, message, reason, author, principal, channel)

    @property
    def _decided(self) -> Mapping[str, Event]:
        return {_call_of(event): event for event in self.events if event.type == EventType.PERMISSION_DECIDED}


def _call_of(event: Event) -> str:
    return str(event.data.get("tool_call_id"))
