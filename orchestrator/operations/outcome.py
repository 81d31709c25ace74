"""The state of a task with its steps, and its outcome: the files and denials of its runs, and how those count."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import msgspec

from soong.orchestrator.approvals.approval import denial_sentence
from soong.orchestrator.client.task_limits import limits_of
from soong.orchestrator.schemas.task import (
    DeliverableSchema,
    DenialSchema,
    ExitCode,
    StepDetail,
    TaskLimitsSchema,
    TaskResult,
)
from soong.shared.core.errors import TemplateError
from soong.shared.core.identity import step_key
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import TASK_LIMIT, BudgetSpentError
from soong.shared.engine.runs.events import Event, EventType, NodeKind
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.failure_report import is_unclean, tools_of
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.plan import scope_of
from soong.shared.engine.tasks.plan.template import references, render
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepKind, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.engine.wire.notifier import APP, FUNCTION
from soong.shared.storage.store import Store
from soong.shared.tools.result import ErrorType

PAGE: Final = 1000
MANY_STEPS: Final = 1_000
"""A task with more is not read as one."""
BRIEF_STEPS: Final = 60
"""Steps of such a task that are shown, and failed ones in addition."""


class TaskSnapshot(Value):
    """The current state of a task."""

    task: Task
    steps: tuple[Step, ...]
    planned: tuple[Task, ...] = ()
    """The tasks that the agent of an ask has made; their steps are among ``steps``."""
    lacks: Mapping[str, str] = msgspec.field(default_factory=dict)
    """By step key: why no worker may take what is ready."""
    counts: Mapping[StepStatus, int] = msgspec.field(default_factory=dict)
    """The number of steps by status."""
    is_whole: bool = True
    """Whether ``steps`` are all of them, and not only the first."""


async def snapshot_of(store: Store, task_id: str, *, brief: bool = False) -> TaskSnapshot:
    """Read the state of a task. ``brief``: of many steps only the first, some that failed, and the counts.

    Raises: NotFoundError.
    """
    if brief:
        task = await store.tasks.task(task_id)
        planned = await tasks_planned_by(store, task)
        totals = await counts_of(store, (task, *planned))
        if sum(totals.values()) > MANY_STEPS:
            first = await steps_of(store, (task, *planned), limit=BRIEF_STEPS)
            failed = await steps_of(store, (task, *planned), statuses=(StepStatus.FAILED,), limit=BRIEF_STEPS)
            shown = {step.key: step for step in (*first, *failed)}
            return TaskSnapshot(task, in_plan_order([*shown.values()]), counts=totals, is_whole=False)
    task, own = await store.tasks.task_with_steps(task_id)
    planned = await tasks_planned_by(store, task)
    steps = [*in_plan_order(own)]
    for one in planned:
        steps += in_plan_order(await store.tasks.steps(one.id))
    workers = await store.sessions.workers() if task.status is TaskStatus.RUNNING else ()
    counts = Counter(step.status for step in steps)
    return TaskSnapshot(task, tuple(steps), planned, _lacks(task, steps, workers), counts)


def in_plan_order(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with the children of each map step among them right below it, in item order."""
    keys = {step.key for step in steps}
    children: dict[str, list[Step]] = {}
    for step in steps:
        if step.map_key:
            children.setdefault(step.map_key, []).append(step)
    ordered: list[Step] = []
    for step in steps:
        if step.map_key not in keys:
            ordered += [step, *sorted(children.get(step.key, ()), key=lambda child: child.item_index or 0)]
    return tuple(ordered)


async def tasks_planned_by(store: Store, ask: Task) -> tuple[Task, ...]:
    """Return the tasks that the agent of an ask has made, oldest first; none of a plan."""
    if ask.kind is not TaskKind.ASK:
        return ()
    others = [one for one in await store.tasks.list_tasks(session_id=ask.session_id, limit=PAGE) if one.id != ask.id]
    roots = {one.id: (await store.runs.run(one.root_run_id)).identity.parent_run_id for one in others}
    return tuple(one for one in reversed(others) if roots[one.id] == ask.root_run_id)


async def steps_of(
    store: Store, tasks: Sequence[Task], *, after: str = "", statuses: Collection[StepStatus] = (), limit: int
) -> list[Step]:
    """Return the next steps of these tasks, task by task in order of creation, from behind the one of a key."""
    begun = after.partition("/")[0]
    places = [place for place, task in enumerate(tasks) if task.id == begun] if begun else [0]
    found: list[Step] = []
    for task in tasks[places[0] :] if places else ():
        if len(found) < limit:
            found += await store.tasks.step_page(task.id, after=after, statuses=statuses, limit=limit - len(found))
        after = ""
    return found


async def counts_of(store: Store, tasks: Sequence[Task]) -> Mapping[StepStatus, int]:
    """Return the number of steps of these tasks by status."""
    counted = Counter[StepStatus]()
    for task in tasks:
        counted.update(await store.tasks.counts(task.id))
    return counted


async def lack_of(store: Store, step: Step) -> str:
    """Return why no living worker may take a step that is ready; empty when one may, or it is not ready."""
    task = await store.tasks.task(step.task_id)
    return _lacks(task, [step], await store.sessions.workers()).get(step.key, "")


def _lacks(task: Task, steps: Sequence[Step], workers: Sequence[Worker]) -> dict[str, str]:
    """Return by step key what keeps the living workers from what is ready; where none lives, that is another matter."""
    if task.status is not TaskStatus.RUNNING or not any(worker.state is ProcessState.LIVE for worker in workers):
        return {}
    said = functools.cache(lambda pool, needs: lacking(pool, needs, workers))
    waiting = [step for step in steps if step.status is StepStatus.READY and step.claim_mode is ClaimMode.ASSIGNED]
    return {step.key: words for step in waiting if (words := said(step.pool, step.needs))}


def missing_function(needed: Iterable[tuple[str, Sequence[str]]], workers: Sequence[Worker]) -> str:
    """Say which function or Celery app no living worker has, of steps that are ready; empty for none.

    The steps are given by their ids and needs.
    """
    words = {word for worker in workers if worker.state is ProcessState.LIVE for word in worker.capabilities}
    for step_id, needs in needed:
        for kind, noun in ((FUNCTION, "function"), (APP, "Celery app")):
            missing = (need.removeprefix(kind) for need in needs if need.startswith(kind) and need not in words)
            if name := next(missing, ""):
                known = frozenset(word.removeprefix(kind) for word in words if word.startswith(kind))
                lack = f"step {step_id!r} needs the {noun} {name!r}, which no worker of the running service has"
                return f"{lack}; {suggestion(name, known)}"
    return ""


_CUT = frozenset({BudgetSpentError.code, TASK_LIMIT})


async def read_result(store: Store, task_id: str, runs: Path, *, brief: bool = False) -> TaskResult:
    """Read the result of a task, or the result so far; ``runs`` is the folder of the run folders.

    ``brief``: of a task with many steps only the first, without the logs of their runs. Raises: NotFoundError.
    """
    view = await snapshot_of(store, task_id, brief=brief)
    logs: list[_RunLog] = []
    details: dict[str, StepDetail] = {}
    for task in (view.task, *view.planned):
        told = await store.runs.last_runs(task.id) if view.is_whole else None
        of_task = {step.run_id: step for step in view.steps if step.task_id == task.id}
        for step in view.steps:
            if step.task_id == task.id:
                granted = told.granted.get(step.run_id, ()) if told is not None else ()
                details[step.key] = await step_detail(store, step, granted, view.lacks.get(step.key, ""))
        for run_id, events in groupby(told.events if told is not None else (), key=lambda event: event.run_id):
            if run_id and run_id in of_task:
                logs.append(_RunLog(of_task[run_id], tuple(events)))
    for step in view.steps if view.is_whole else ():
        if step.kind is StepKind.MAP and step.status is StepStatus.FAILED:
            _add_outputs(details, step, view.steps)
    denials = [denial for log in logs for denial in log.denials()]
    answer: Json = None  # of a plan, and before the end of an ask
    if view.task.kind is TaskKind.ASK and view.task.status.is_terminal:
        for node in await store.runs.nodes(view.task.root_run_id):
            answer = node.payload.get("output") if node.kind is NodeKind.RESULT else answer
    limits = await limits_of(store, view.task) if view.task.plan.get("limits") else ()
    return TaskResult.of(
        view.task,
        step_counts=view.counts,
        exit_code=exit_code_of(view, is_denied=bool(denials)),
        steps=[details[step.key] for step in view.steps],
        answer=answer,
        output=await _output_of(store, view),
        deliverables=[one for log in logs for one in log.deliverables(runs)],
        denials=denials,
        limits=TaskLimitsSchema.of_limits(limits) if limits else None,
        undone=[one for log in logs for one in log.undone()],
    )


async def _output_of(store: Store, view: TaskSnapshot) -> Json:
    """Return what the plan of a completed task gives; None when it says nothing, or what it names is not there."""
    output = view.task.plan.get("output")
    if output is None or view.task.status is not TaskStatus.COMPLETED:
        return None
    ids = frozenset(step.step_id for step in view.steps)
    named = {one.root_in(ids) or str(one.parts[1:2] and one.parts[1]) for _path, one in references(output)}
    results = {one: await store.tasks.result(step_key(view.task.id, one)) for one in named & ids}
    try:
        return render(output, scope_of(view.task.inputs, results), ExpansionBudget("the output of the plan"))
    except TemplateError:
        return None


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
                own = [step for step in view.steps if not step.map_key]  # a map tells of its items
                failed = [step for step in own if step.status is StepStatus.FAILED]
                has_failed = any(step.on_failure is not FailurePolicy.KEEP for step in failed)
            if has_failed:
                return ExitCode.FAILED
            return ExitCode.DENIED if is_denied else ExitCode.COMPLETED


async def step_detail(store: Store, step: Step, granted: Sequence[str], lacks: str) -> StepDetail:
    """Return a step whose run may call the ``granted`` tools; ``lacks`` is why no worker can take it now."""
    given: dict[str, Any] = {"denials": [], "unknown_effects": [], "partial": None}
    if is_unclean(step.status, step.outcome):
        left = await store.tasks.result(step.key)
        given = {"denials": list(left.denials), "unknown_effects": list(left.unknown_effects), "partial": left.partial}
    tools = tools_of(step, granted) if step.kind.traits.is_agent else None
    return StepDetail.of(step, lacks=lacks, tools=tools, **given)


def _add_outputs(details: dict[str, StepDetail], failed: Step, steps: Sequence[Step]) -> None:
    """Add the outputs of the items that completed to what is left of a failed map step, in the order of its items."""
    items = sorted((one for one in steps if one.map_key == failed.key), key=lambda one: one.item_index or 0)
    left = details[failed.key].partial
    others = {entry["step"]: entry for entry in left if isinstance(entry, dict)} if isinstance(left, list) else {}
    told = [
        {"step": item.step_id, "status": str(item.status), "output": details[item.key].output}
        if item.status is StepStatus.COMPLETED
        else others.get(item.step_id, {"step": item.step_id, "status": str(item.status)})
        for item in items
    ]
    details[failed.key] = details[failed.key].model_copy(update={"partial": told})


class _RunLog(Value):
    """The calls of a step's last run, from its log."""

    step: Step
    events: Sequence[Event]

    def deliverables(self, runs: Path) -> list[DeliverableSchema]:
        return [
            DeliverableSchema(
                run=event.run_id,
                path=str(value.get("path", "")),
                stored_at=str(runs / event.run_id / "deliverables" / Path(str(value.get("name", ""))).name),
            )
            for event in self.events
            if isinstance(value := event.data.get("deliverable"), Mapping)
        ]

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
