"""The DAG of a recorded task, made again of its plan and of the results that its steps had (DAG-11)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from soong.orchestrator.replay.recording import TaskRecord
from soong.shared.agents.replay.differences import Difference, first_difference
from soong.shared.core.errors import InvalidTransitionError, SoongError
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.tasks.expansion import expand_map
from soong.shared.engine.tasks.kinds import StepKind, TaskKind
from soong.shared.engine.tasks.plan.plan import PlanNames, PlanStep, spec_of
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.status import StepEvent, StepStatus, advance_step
from soong.shared.engine.tasks.step import Step

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
"""What each event of a step does to its status."""
_UNCHECKED: Final = PlanNames(load_module=lambda _name: None)
"""The plan was checked when it was run; its modules are not looked for."""


def dag_differences(record: TaskRecord) -> list[Difference]:
    """Return where the steps are others than the plan and the recorded results make them."""
    return [*_of_plan(record), *_of_maps(record), *_of_moves(record)]


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


def _of_step(planned: PlanStep, step: Step, names: Mapping[str, str]) -> Difference | None:
    edges = sorted(names[key] for key in step.depends_on)
    if edges != sorted(planned.depends_on):
        return Difference(f"step {step.step_id}, edges", ", ".join(edges), ", ".join(planned.depends_on))
    was, now = step.spec.to_json(), spec_of(planned).to_json()
    stored = ("child_surface", "backoff_s", "priority", "title")
    field = next((name for name in sorted({*was, *now} - set(stored)) if was.get(name) != now.get(name)), None)
    if field is None:
        return None
    return Difference(f"step {step.step_id}, {field}", str(was.get(field)), str(now.get(field)))


def _changed_later(record: TaskRecord) -> frozenset[str]:
    """Return the steps that were changed after the plan was made: edges added, or tried again otherwise."""
    updated = any(event.type == EventType.TASK_UPDATED for run in record.runs for event in run.events)
    retried = {step.step_id for step in record.steps if step.attempt > 1}
    return frozenset(step.step_id for step in record.steps) if updated else frozenset(retried)


def _of_maps(record: TaskRecord) -> Iterator[Difference]:
    runs = {one.run.id: one.run for one in record.runs}
    root = runs[record.task.root_run_id].identity
    for step in record.steps:
        if step.kind is not StepKind.MAP or not step.status.is_terminal or step.status is StepStatus.SKIPPED:
            continue
        children = [child for child in record.steps if child.map_key == step.key]
        if not children and step.error is not None:
            continue  # it could not be expanded then, and no child tells of another result
        was = [f"{child.step_id} {child.spec.to_json()}" for child in sorted(children, key=_place)]
        try:
            made = expand_map(step, record.task, record.dependencies(step), root)
        except SoongError as error:
            yield Difference(f"step {step.step_id}, items", f"{len(was)} items", str(error))
            continue
        now = [f"{child.step_id} {child.spec.to_json()}" for child in made]
        if (difference := first_difference(f"step {step.step_id}, item", was, now)) is not None:
            yield difference


def _of_moves(record: TaskRecord) -> Iterator[Difference]:
    events = [event for run in record.runs for event in run.events if event.type in MOVES]
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
    """Play the events of a step; return where one of them is not possible, or that they lead elsewhere."""
    status = StepStatus.PENDING
    for event in sorted(events, key=lambda event: event.time_us):
        try:
            status = advance_step(status, MOVES[event.type])
        except InvalidTransitionError:
            return Difference(f"step {step.step_id}, status", event.type, f"not possible when {status}")
    if events and status is not step.status:
        return Difference(f"step {step.step_id}, status", str(step.status), str(status))
    return None


def _place(child: Step) -> int:
    return child.item_index or 0
