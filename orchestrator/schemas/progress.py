"""How far a task is, as programs that follow it see it: bounded, without its inputs and outputs."""

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from soong.orchestrator.client.client import counts_of, steps_of
from soong.orchestrator.schemas.base import Schema
from soong.orchestrator.schemas.task import StepErrorSchema, TaskSchema
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.storage.store import Store

MOST_SHOWN: Final = 20


class RunningStep(Schema):
    id: str
    title: str
    progress: str = Field(description="What its run said last of how far it is.")


class FailedStep(Schema):
    id: str
    title: str
    error: StepErrorSchema | None


class TaskProgress(TaskSchema):
    """A task's state without inputs and outputs; of an ask, with the tasks that its agent has made."""

    running: list[RunningStep] = Field(description=f"Steps that workers hold, the first {MOST_SHOWN}.")
    failed: list[FailedStep] = Field(description=f"Steps that failed, the first {MOST_SHOWN}.")
    approvals: list[str] = Field(description="Questions of it that wait for an answer, oldest first.")

    @classmethod
    async def read(cls, store: Store, tasks: Sequence[Task], waiting: tuple[str, ...]) -> "TaskProgress":
        """Read the progress of a task, the first of these, whose agent has made the others."""
        leased = [status for status in StepStatus if status.is_leased]
        return cls(
            **TaskSchema.fields_of(tasks[0], await counts_of(store, tasks)),
            running=[
                RunningStep(id=one.step_id, title=one.title, progress=one.progress)
                for one in await steps_of(store, tasks, statuses=leased, limit=MOST_SHOWN)
            ],
            failed=[
                _failed(one) for one in await steps_of(store, tasks, statuses=(StepStatus.FAILED,), limit=MOST_SHOWN)
            ],
            approvals=list(waiting),
        )


def _failed(step: Step) -> FailedStep:
    error = None if step.error is None else StepErrorSchema.model_validate(step.error.as_json())
    return FailedStep(id=step.step_id, title=step.title, error=error)
