"""What a call that started agents comes to: one that failed is a failed call, with all that is known of it (EXE-04).

Every outcome has the same facts. An error says in words what the facts say, so that a model, the events of the run and
its metrics see a failure without reading them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.tools.definition import HandlerOutput
from soong.shared.tools.result import ErrorType, JsonBlock, ToolFailure, ToolResult

MAX_NAMED: Final = 10
"""Failed steps that the error of a task names."""
_SAME_TYPE: Final = frozenset({ErrorType.BUDGET_EXCEEDED.value})
"""Errors of steps that are those of the call, too. A denial is not among them: the call itself was allowed."""
START_ANOTHER: Final = "start another one with what is to be different"
GIVE_AGAIN: Final = (
    "agent.dispatch_worker with a step_id gives a failed step to a worker again, with what you change; with "
    "leave_failed it waits for the rest of a task"
)


def child_outcome(step: Step, facts: Mapping[str, Json], *, lack: str, hint: str) -> HandlerOutput:
    """Return the outcome of one child; ``lack`` says why no worker takes it, when it is waited for no longer."""
    return _outcome(facts, _waiting([step.step_id], lack) if lack else _failure_of(step, hint))


def task_outcome(
    task: Task, steps: Sequence[Step], facts: Mapping[str, Json], lacks: Mapping[str, str]
) -> HandlerOutput:
    """Return what a task came to that has ended, or waits for a decision of its agent."""
    if lacks:
        waiting = [step.step_id for step in steps if step.key in lacks]
        return _outcome(facts, _waiting(waiting, next(iter(lacks.values()))))
    return _outcome(facts, _failure_of_task(task, steps))


def _outcome(facts: Mapping[str, Json], failure: ToolFailure | None) -> HandlerOutput:
    plain = dict(facts)
    if failure is None:
        return plain
    return ToolResult("", (JsonBlock(plain),), failure.message, plain, error=failure)


def _waiting(step_ids: Sequence[str], lack: str) -> ToolFailure:
    problem = f"no worker takes {_named(step_ids)}: {lack}"
    return ToolFailure(ErrorType.WORKER_INCOMPATIBLE, problem, "it starts when a worker has what it needs")


def _failure_of(step: Step, hint: str) -> ToolFailure | None:
    match step.status:
        case StepStatus.COMPLETED:
            return None
        case StepStatus.CANCELLED:
            return ToolFailure(ErrorType.CANCELLED, f"step {step.step_id!r} was cancelled", hint)
        case StepStatus.FAILED if step.error is not None:
            problem = f"step {step.step_id!r} failed: {step.error.type}: {step.error.message}"
            type_ = ErrorType(step.error.type) if step.error.type in _SAME_TYPE else ErrorType.EXECUTION_FAILED
            return ToolFailure(type_, problem, hint)
        case status:
            return ToolFailure(ErrorType.EXECUTION_FAILED, f"step {step.step_id!r} ended as {status}", hint)


def _failure_of_task(task: Task, steps: Sequence[Step]) -> ToolFailure | None:
    """A task that is cancelled, or has steps that failed for good: its agent decides what becomes of them."""
    if task.status is TaskStatus.COMPLETED:
        return None
    failed = [step for step in steps if step.status is StepStatus.FAILED and not step.map_key]
    if task.status is TaskStatus.CANCELLED:
        return ToolFailure(ErrorType.CANCELLED, f"task {task.id} was cancelled", task.reason)
    if not failed and task.status is not TaskStatus.FAILED:
        return None
    types = {step.error.type for step in failed if step.error is not None}
    type_ = ErrorType.BUDGET_EXCEEDED if types and types <= _SAME_TYPE else ErrorType.EXECUTION_FAILED
    problem = (
        f"{_named([step.step_id for step in failed])} failed" if failed else f"task {task.id} failed: {task.reason}"
    )
    return ToolFailure(type_, problem, GIVE_AGAIN)


def _named(step_ids: Sequence[str]) -> str:
    names = ", ".join(map(repr, step_ids[:MAX_NAMED]))
    more = f" and {len(step_ids) - MAX_NAMED} more" if len(step_ids) > MAX_NAMED else ""
    return f"{'step' if len(step_ids) == 1 else 'steps'} {names}{more}"
