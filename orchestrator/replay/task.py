"""Replays a recorded task: its DAG, and each run of its agents, with no model, no tool and nobody to ask (DAG-11)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, cast

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import DEFINITION, AgentDefinition
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.replay.replay import Difference, first_difference, replay_run
from soong.shared.agents.replay.script import RunRecord
from soong.shared.agents.runtime.prepared import ModelRules, agent_task
from soong.shared.core.errors import InvalidTransitionError, SoongError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.plan.plan import FOREIGN_PREFIXES, PlanNames, bind_step
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.spec import BoundStep, StepEvent, StepGate, StepSpec, StepStatus, TaskKind, advance_step
from soong.shared.engine.tasks.step import Step, StepResult, Task
from soong.shared.engine.tasks.verdict import GrowMap, SkipStep, decided
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.store import Store
from soong.shared.tools.deferred import DeferredTools, stored_deferred, with_search
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.surface import Surface

MOVES: Final[Mapping[str, StepEvent]] = {
    EventType.STEP_READY: StepEvent.UNLOCK,
    EventType.STEP_EXPANDING: StepEvent.EXPAND,
    EventType.STEP_EXPANDED: StepEvent.EXPANDED,
    EventType.STEP_CLAIMED: StepEvent.CLAIM,
    EventType.STEP_BLOCKED: StepEvent.PARK,
    EventType.STEP_UNPARKED: StepEvent.UNPARK,
    EventType.STEP_COMPLETED: StepEvent.COMPLETE,
    EventType.STEP_FAILED: StepEvent.FAIL,
    EventType.STEP_RELEASED: StepEvent.RELEASE,
    EventType.STEP_LEASE_EXPIRED: StepEvent.EXPIRE,
    EventType.STEP_RETRIED: StepEvent.RETRY,
    EventType.STEP_CANCELLED: StepEvent.CANCEL,
    EventType.STEP_SKIPPED: StepEvent.SKIP,
}
"""The event of the step table for each event of the log."""
_UNCHECKED: Final = PlanNames(load_module=lambda _name: None)
"""The plan was checked when it was run; its modules are not loaded."""

MAX_RUNS = 100_000


class ReplayVerdict(StrEnum):
    """The result of a run's replay. GIVEN: its acts are taken from the record; Soong decides nothing of it."""

    SAME = "same"
    DIFFERENT = "different"
    GIVEN = "given"


FUNCTION: Final = "a {noun}'s step: its result is the recorded one"
OUTSIDE: Final = "an agent of others: what it did is the recorded one"
NOT_BEGUN: Final = "it never began"


class RunVerdict(Value):
    """The replay of one run: an attempt of a step, or the root run of an ask."""

    step: str
    run_id: str
    verdict: ReplayVerdict
    lives: int = 0
    turns: int = 0
    calls: int = 0
    events: int = 0
    note: str = ""
    differences: Sequence[Difference] = ()


class TaskReplay(Value):
    """The replay of a task. ``dag`` are differences of its steps, ``runs`` its runs in order."""

    task_id: str
    title: str
    steps: int
    dag: Sequence[Difference]
    runs: Sequence[RunVerdict]

    @property
    def is_same(self) -> bool:
        return not self.dag and all(run.verdict is not ReplayVerdict.DIFFERENT for run in self.runs)

    def as_json(self) -> dict[str, Json]:
        return {**super().as_json(), "is_same": self.is_same}


class TaskRecord(Value):
    """A task as its rows have it. ``runs`` are in the order in which they were made, all attempts of all steps."""

    task: Task
    steps: Sequence[Step]
    runs: Sequence[RunRecord]
    results: Mapping[str, StepResult]
    """By step key."""

    def step_of(self, run: Run) -> Step | None:
        """Return the step that a run is or was an attempt of; None for the task's own run."""
        return next((step for step in self.steps if step.key == run.identity.step_key), None)

    def dependencies(self, step: Step) -> dict[str, StepResult]:
        return {self.results[key].step_id: self.results[key] for key in step.depends_on if key in self.results}


class Replayer(Value):
    """Replays under the settings, the configuration and the tools of this process."""

    settings: Settings
    catalogue: Catalogue

    async def replay(self, record: TaskRecord, step_id: str = "") -> TaskReplay:
        """Replay a task; with a step's id only the runs of that step."""
        chosen = [one for one in record.runs if self._is_chosen(record, one, step_id)]
        verdicts = [await self._run(record, one) for one in chosen]
        dag = [] if step_id else dag_differences(record)
        return TaskReplay(record.task.id, record.task.title, len(record.steps), dag, verdicts)

    def _is_chosen(self, record: TaskRecord, one: RunRecord, step_id: str) -> bool:
        step = record.step_of(one.run)
        if step is None:
            return not step_id and bool(one.nodes)  # an ask's own; the root run of a plan has no agent
        return not step_id or step.step_id == step_id

    async def _run(self, record: TaskRecord, one: RunRecord) -> RunVerdict:
        step = record.step_of(one.run)
        name = record.task.title if step is None else step.step_id
        if step is not None and not step.kind.traits.is_agent:
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=FUNCTION.format(noun=step.kind.traits.noun))
        if one.run.identity.definition.startswith(FOREIGN_PREFIXES):
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=OUTSIDE)
        if not one.nodes:
            return RunVerdict(name, one.run.id, ReplayVerdict.GIVEN, note=NOT_BEGUN)
        try:
            task = self._task(record, one)
        except SoongError as error:
            found = [Difference("its work", "bound", str(error))]
            return RunVerdict(name, one.run.id, ReplayVerdict.DIFFERENT, differences=found)
        config = self.catalogue.config
        secrets = redactor(secret_values(self.settings, config.secret_env, config.secret_files))
        played = await replay_run(one, task, ModelRules(config), secrets)
        verdict = ReplayVerdict.DIFFERENT if played.differences else ReplayVerdict.SAME
        facts = (played.lives, played.turns, played.calls, played.events)
        return RunVerdict(name, one.run.id, verdict, *facts, differences=played.differences)

    def _task(self, record: TaskRecord, one: RunRecord) -> AgentTask:
        """Return the work of a run as a worker would be given it now. Raises: SoongError."""
        step, run = record.step_of(one.run), one.run
        told = _told(one.nodes)
        bound = BoundStep(told.instructions, told.inputs)
        if step is not None and step.run_id == run.id and not told.is_inherited:
            bound = bind_step(step.spec, record.task.inputs, record.dependencies(step))
        tools, deferred = self._tools(run.surface)
        model = run.identity.model or self.settings.model
        return agent_task(
            replace(run.identity, model=model),
            bound,
            AgentDefinition.from_json(run.surface.get(DEFINITION)),
            tools,
            deferred,
            run_dirs=told.run_dirs,
            output_schema=None if step is None else step.spec.output,
            settings=self.settings,
            rules=ModelRules(self.catalogue.config),
            is_limited=step is not None and step.spec.is_limited,
        )

    def _tools(self, surface: JsonObject) -> tuple[tuple[ToolDefinition, ...], DeferredTools]:
        known = {tool.name: tool for tool in self.catalogue.tools}
        tools = tuple(known[name] for name in Surface.from_json(surface).tools if name in known)
        deferred = stored_deferred(surface, tools)
        return with_search(tools, deferred), deferred


class _Opening(Value):
    """The input of a run at its start. ``is_inherited``: it began with the conversation of another."""

    instructions: str
    inputs: JsonObject
    run_dirs: JsonObject
    is_inherited: bool = False


def _told(nodes: Sequence[Node]) -> _Opening:
    texts = next((cast(Any, node.payload.get("texts")) for node in nodes if node.kind is NodeKind.USER), ())
    if not isinstance(texts, list | tuple) or len(texts) != 2:
        return _Opening("", {}, {}, is_inherited=True)
    facts = json.loads(str(texts[1]))
    return _Opening(str(texts[0]), facts.get("inputs", {}), facts.get("run_dirs", {}))


def dag_differences(record: TaskRecord) -> list[Difference]:
    """Return where the steps are others than the plan and the recorded results make them."""
    return [*_of_plan(record), *_of_verdicts(record), *_of_moves(record)]


def _of_plan(record: TaskRecord) -> Iterator[Difference]:
    if record.task.kind is not TaskKind.PLAN:
        return
    try:
        planned = plan_from_json(record.task.plan, "the recorded plan", _UNCHECKED).steps
    except SoongError as error:
        yield Difference("plan", "a plan", str(error))
        return
    steps = {step.step_id: step for step in record.steps if not step.map_key}
    names = {step.key: step.step_id for step in record.steps}
    changed = _changed_later(record)
    for plan_step in planned:
        step = steps.get(plan_step.id)
        if step is None:
            yield Difference(f"step {plan_step.id}", None, "a step of the plan")
        elif step.step_id not in changed and (difference := _of_step(plan_step, step, names)) is not None:
            yield difference


def _of_step(planned: StepSpec, step: Step, names: Mapping[str, str]) -> Difference | None:
    edges = sorted(names[key] for key in step.depends_on)
    if edges != sorted(planned.depends_on):
        return Difference(f"step {step.step_id}, edges", ", ".join(edges), ", ".join(planned.depends_on))
    was, now = _as_written(step.spec).as_json(), _as_written(planned).as_json()
    field = next((name for name in sorted({*was, *now}) if was.get(name) != now.get(name)), None)
    if field is None:
        return None
    return Difference(f"step {step.step_id}, {field}", str(was.get(field)), str(now.get(field)))


def _as_written(spec: StepSpec) -> StepSpec:
    """Return a spec without what is not in the plan's document."""
    child = spec.step and _as_written(spec.step)
    told = replace(spec, depends_on=(), model="", code="", role=Role.WORKER, child_surface={}, is_limited=False)
    return replace(told, step=child)


def _changed_later(record: TaskRecord) -> frozenset[str]:
    """Return the steps that were changed after the plan was made: edges added, or tried again otherwise."""
    updated = any(event.type == EventType.TASK_UPDATED for run in record.runs for event in run.events)
    retried = {step.step_id for step in record.steps if step.attempt > 1}
    return frozenset(step.step_id for step in record.steps) if updated else frozenset(retried)


def _of_verdicts(record: TaskRecord) -> Iterator[Difference]:
    """Decide again the steps that their owner decided: those with conditions and joins, and maps."""
    runs = {one.run.id: one.run for one in record.runs}
    root = runs[record.task.root_run_id].identity
    for step in record.steps:
        was_skipped = step.status is StepStatus.SKIPPED
        if step.gate is StepGate.WORKERS or not step.status.is_terminal or (was_skipped and step.error is None):
            continue  # nobody decided it, or not yet
        children = [child for child in record.steps if child.map_key == step.key]
        if not children and step.error is not None and not was_skipped:
            continue  # it could not be decided then, or failed later, and no child tells of another result
        try:
            verdict = decided(step, record.task, record.dependencies(step), root)
        except SoongError as error:
            yield Difference(f"step {step.step_id}, items", f"{len(children)} items", str(error))
            continue
        if isinstance(verdict, SkipStep) is not was_skipped:
            yield Difference(f"step {step.step_id}, condition", str(step.status), type(verdict).__name__)
        elif isinstance(verdict, GrowMap):
            was, now = map(_items_of, (children, verdict.children))
            if (difference := first_difference(f"step {step.step_id}, item", was, now)) is not None:
                yield difference


def _items_of(children: Sequence[Step]) -> list[str]:
    ordered = sorted(children, key=lambda child: child.item_index or 0)
    return [f"{child.step_id} {child.spec.as_json()}" for child in ordered]


def _of_moves(record: TaskRecord) -> Iterator[Difference]:
    told = {*MOVES, EventType.STEP_CREATED}
    events = [event for run in record.runs for event in run.events if event.type in told]
    ended = {step.key for step in record.steps if step.status.is_terminal}
    by_step: dict[str, list[Event]] = {}
    for event in events:
        by_step.setdefault(str(event.data.get("step", "")), []).append(event)
    for step in record.steps:
        own = by_step.get(step.key, [])
        if (difference := _moved(step, own)) is not None:
            yield difference
        waits = [key for key in step.depends_on if key not in ended]
        if waits and any(event.type == EventType.STEP_CLAIMED for event in own):
            yield Difference(f"step {step.step_id}, order", "claimed", f"waits for {waits[0]}")


def _moved(step: Step, events: Sequence[Event]) -> Difference | None:
    """Play the events of a step as its logs have them; return where one is not possible, or that they end elsewhere."""
    status = StepStatus.PENDING
    for event in events:
        if event.type == EventType.STEP_CREATED:  # an item again, of a map that was expanded again
            status = StepStatus.PENDING
            continue
        try:
            status = advance_step(status, MOVES[event.type])
        except InvalidTransitionError:
            return Difference(f"step {step.step_id}, status", event.type, f"not possible when {status}")
    if events and status is not step.status:
        return Difference(f"step {step.step_id}, status", str(step.status), str(status))
    return None


async def read_task(store: Store, task: Task) -> TaskRecord:
    steps = await store.tasks.steps(task.id)
    runs = await store.runs.list_runs(task_id=task.id, limit=MAX_RUNS)
    events: dict[str, list[Event]] = {run.id: [] for run in runs}
    for event in await store.runs.events_of(list(events)):
        events[event.run_id].append(event)
    records = [
        RunRecord(run, await store.runs.nodes(run.id), events[run.id], await store.runs.calls(run.id)) for run in runs
    ]
    results = {step.key: await store.tasks.result(step.key) for step in steps if step.status.is_terminal}
    return TaskRecord(task, steps, records, results)
