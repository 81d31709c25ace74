"""The outcome of a task: its steps, the files and denials of its runs, and how those count."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from soong.orchestrator.approvals.approval import denial_sentence
from soong.orchestrator.client.task_limits import limits_of
from soong.orchestrator.operations.snapshots import TaskSnapshot, snapshot_of
from soong.orchestrator.schemas.task import (
    DeliverableSchema,
    DenialSchema,
    ExitCode,
    StepDetail,
    TaskLimitsSchema,
    TaskResult,
)
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import TASK_LIMIT, BudgetSpentError
from soong.shared.engine.runs.events import Event, EventType, NodeKind
from soong.shared.engine.tasks.failure_report import is_unclean, tools_of
from soong.shared.engine.tasks.spec import StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.storage.store import Store
from soong.shared.tools.result import ErrorType

_CUT = frozenset({BudgetSpentError.code, TASK_LIMIT})


async def read_result(store: Store, task_id: str, runs: Path, *, brief: bool = False) -> TaskResult:
    """Read the result of a task, or the result so far; ``runs`` is the folder of the run folders.

    ``brief``: of a task with many steps only the first, without the logs of their runs. Raises: NotFoundError.
    """
    view = await snapshot_of(store, task_id, brief=brief)
    logs: list[_RunLog] = []
    details: dict[str, StepDetail] = {}
    for task in (view.task, *view.planned):
        told = await store.runs.last_runs(task.id) if view.totals is None else None
        of_task = {step.run_id: step for step in view.steps if step.task_id == task.id}
        for step in view.steps:
            if step.task_id == task.id:
                granted = told.granted.get(step.run_id, ()) if told is not None else ()
                details[step.key] = await step_detail(store, step, granted, view.lacks.get(step.key, ""))
        for run_id, events in groupby(told.events if told is not None else (), key=lambda event: event.run_id):
            if run_id and run_id in of_task:
                logs.append(_RunLog(of_task[run_id], tuple(events)))
    denials = [denial for log in logs for denial in log.denials()]
    limits = await limits_of(store, view.task)
    return TaskResult.of(
        view.task,
        step_counts=view.counts,
        exit_code=exit_code_of(view, is_denied=bool(denials)),
        steps=[details[step.key] for step in view.steps],
        answer=await _answer(store, view.task),
        deliverables=[one for log in logs for one in log.deliverables(runs)],
        denials=denials,
        limits=TaskLimitsSchema.of_limits(limits) if limits else None,
        undone=[one for log in logs for one in log.undone()],
    )


def exit_code_of(view: TaskSnapshot, *, is_denied: bool) -> ExitCode:
    """Say for programs how a task ended."""
    match view.task.status:
        case TaskStatus.FAILED | TaskStatus.CANCELLED:
            return ExitCode.FAILED
        case TaskStatus.PAUSED | TaskStatus.RUNNING:
            return ExitCode.INTERRUPTED
        case TaskStatus.COMPLETED:
            if view.task.kind is TaskKind.ASK:
                # Its agent has judged what failed below it, and had no means to do what a budget cut.
                has_failed = any(step.error is not None and step.error.type in _CUT for step in view.steps)
            else:
                # A failure that its plan tolerates (`keep`) is still a step that failed.
                has_failed = any(step.status is StepStatus.FAILED and not step.is_pull_worker for step in view.steps)
            if has_failed:
                return ExitCode.FAILED
            return ExitCode.DENIED if is_denied else ExitCode.COMPLETED


async def _answer(store: Store, task: Task) -> Json:
    """Return the output of the agent of an ask; None of a plan, and before its end."""
    if task.kind is not TaskKind.ASK or not task.status.is_terminal:
        return None
    nodes = await store.runs.nodes(task.root_run_id)
    last = next((node for node in reversed(nodes) if node.kind is NodeKind.RESULT), None)
    return None if last is None else last.payload.get("output")


async def step_detail(store: Store, step: Step, granted: Sequence[str], lacks: str) -> StepDetail:
    """Return a step whose run may call the ``granted`` tools; ``lacks`` is why no worker can take it now."""
    given: dict[str, Any] = {"denials": [], "unknown_effects": [], "partial": None}
    if is_unclean(step.status, step.outcome):
        left = await store.tasks.result(step.key)
        given = {"denials": list(left.denials), "unknown_effects": list(left.unknown_effects), "partial": left.partial}
    tools = tools_of(step, granted) if step.kind.traits.is_agent else None
    return StepDetail.of(step, lacks=lacks, tools=tools, **given)


class _RunLog(Value):
    """The calls of a step's last run, from its log."""

    step: Step
    events: Sequence[Event]

    def deliverables(self, runs: Path) -> list[DeliverableSchema]:
        found = []
        for event in self.events:
            value = event.data.get("deliverable")
            if isinstance(value, Mapping):
                copy = runs / event.run_id / "deliverables" / Path(str(value.get("name", ""))).name
                path = str(value.get("path", ""))
                found.append(DeliverableSchema(run=event.run_id, path=path, stored_at=str(copy)))
        return found

    def denials(self) -> list[DenialSchema]:
        return [self._denial(event) for event in self.events if event.type == EventType.TOOL_DENIED]

    def undone(self) -> list[DenialSchema]:
        """Return the calls that a person allowed and that ended because their target had changed since (PER-14)."""
        found = []
        for event in self.events:
            if event.data.get("error") != ErrorType.PATH_CONFLICT:
                continue  # asked first: what was decided is looked up in the run's events, and most runs have none
            decision = self._decided.get(_call_of(event))
            if decision is None or decision.data.get("error"):
                continue
            message = f"allowed, and not done: {event.data.get('message', '')}"
            found.append(self._shown(event, message, message))
        return found

    def _denial(self, event: Event) -> DenialSchema:
        decision = self._decided.get(_call_of(event))
        said: JsonObject = {} if decision is None else decision.data
        author, principal, channel = (str(said.get(name, "")) for name in ("author", "principal", "channel"))
        error, message = str(event.data.get("error", "")), str(event.data.get("message", ""))
        if said.get("error") != error:  # a yes that did not fit its call any more: its giver denied nothing
            author = principal = channel = ""
        reason = str(said.get("reason", "")) if author == "person" else message
        return self._shown(event, message, reason, author=author, principal=principal, channel=channel)

    def _shown(
        self, event: Event, message: str, reason: str, *, author: str = "", principal: str = "", channel: str = ""
    ) -> DenialSchema:
        """Return a call that did not happen; every way of not getting a yes has its own sentence (PER-14)."""
        error = str(event.data.get("error", ""))
        return DenialSchema(
            step=self.step.step_id,
            run=event.run_id,
            tool=str(event.data.get("tool", "")),
            error=error,
            message=message,
            author=author,
            principal=principal,
            channel=channel,
            sentence=denial_sentence(error, reason, author=author, principal=principal, channel=channel),
        )

    @property
    def _decided(self) -> Mapping[str, Event]:
        return {_call_of(event): event for event in self.events if event.type == EventType.PERMISSION_DECIDED}


def _call_of(event: Event) -> str:
    return str(event.data.get("tool_call_id"))
