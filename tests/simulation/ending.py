"""What must be true when everything has ended: every result is right, every log whole, nothing was lost."""

from collections.abc import Mapping
from typing import Any, Final

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.tasks.spec import StepKind, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step
from tests.model.memory.rows import Rows
from tests.simulation.audit import BrokenPromiseError
from tests.simulation.work import total

_EVENT_OF: Final = {
    StepStatus.COMPLETED: EventType.STEP_COMPLETED,
    StepStatus.FAILED: EventType.STEP_FAILED,
    StepStatus.CANCELLED: EventType.STEP_CANCELLED,
    StepStatus.SKIPPED: EventType.STEP_SKIPPED,
}


def check_end(rows: Rows, given: Mapping[str, Mapping[str, Json]]) -> None:
    """``given`` are the outputs that each run was told of its dependencies. Raises: BrokenPromiseError."""
    for run_id, run in rows.runs.items():
        numbers = [event.seq for event in rows.events.get(run_id, ())]
        if numbers != list(range(1, run.last_seq + 1)):
            raise BrokenPromiseError(f"the events of {run_id} are {numbers}, its row says {run.last_seq}")
        if not run.status.is_terminal:
            raise BrokenPromiseError(f"{run_id} is {run.status} when all has ended")
    for task in rows.tasks.values():
        _check_task(rows, task.id, task.status)
    for step in rows.steps.values():
        _check_ends_once(rows, step)
        if step.is_pull_worker:
            continue
        if step.status is StepStatus.COMPLETED and step.kind is StepKind.AGENT:
            _check_result(rows, step, given[step.run_id])
        if step.status is StepStatus.FAILED:
            _check_failure(step)


def _check_task(rows: Rows, task_id: str, status: TaskStatus) -> None:
    is_whole = all(step.status is StepStatus.COMPLETED for step in rows.steps_of(task_id) if not step.is_pull_worker)
    if is_whole != (status is TaskStatus.COMPLETED) and status is not TaskStatus.CANCELLED:
        raise BrokenPromiseError(f"{task_id} is {status}, and all its steps completed: {is_whole}")


def _check_ends_once(rows: Rows, step: Step) -> None:
    """The log of the step's last run tells its end, once."""
    if not step.run_id:
        return
    types = [str(event.type) for event in rows.events[step.run_id]]
    ends = [kind for kind in types if kind in {end.value for end in _EVENT_OF.values()}]
    if ends != [_EVENT_OF[step.status].value]:
        raise BrokenPromiseError(f"{step.key} is {step.status}, and the log of its run tells the ends {ends}")


def _check_result(rows: Rows, step: Step, given: Mapping[str, Json]) -> None:
    """Of what it was told when it ran: a dependency it had gone on without may have been tried again since."""
    script = _script(step)
    items = list(range(int(str(script["items"]))))
    expected = {"sum": 1 + total([given[name] for name in script["from_ids"]]), "items": items}
    if step.output != expected:
        raise BrokenPromiseError(f"{step.key} gave {step.output}, and {expected} is right")
    written = [node.payload["number"] for node in rows.nodes.get(step.run_id, ()) if node.kind is NodeKind.ASSISTANT]
    if written != list(range(int(str(script["writes"])))):
        raise BrokenPromiseError(f"the run of {step.key} wrote {written}, each once and in order was wanted")


def _check_failure(step: Step) -> None:
    """A step that can succeed fails for one reason only: it lost its lease too often."""
    if step.kind is StepKind.AGENT and step.error is not None:
        may = {"poisoned"}
        match _script(step)["does"]:
            case "ok" | "stubborn" | "asks":
                may |= {"time_limit"} if step.spec.timeout_s is not None else set()
            case _:
                may |= {"execution_failed", "provider_failed", "time_limit"}
        if step.error.type not in may:
            raise BrokenPromiseError(f"{step.key} failed: {step.error}")


def _script(step: Step) -> dict[str, Any]:
    return dict(step.spec.inputs if step.spec.bound is None else step.spec.bound.inputs)
