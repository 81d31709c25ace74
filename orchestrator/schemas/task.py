"""A task with its steps, its progress and its result, as programs see them."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import Field

from soong.orchestrator.client.task_limits import TaskLimit
from soong.orchestrator.schemas.base import AnyJson, AnyObject, From, Instant, Schema, step_id_of
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.spec import ClaimMode, StepKind, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Outcome

MOST_SHOWN: Final = 20


class ExitCode(IntEnum):
    """How a task ended, for programs. 2 is a wrong use of the command line."""

    COMPLETED = 0
    FAILED = 1
    DENIED = 3
    INTERRUPTED = 130


class TaskSchema(Schema):
    id: str
    session: Annotated[str, From("session_id")]
    kind: TaskKind = Field(description="`plan`: a DAG of steps; `ask`: a goal of an agent.")
    title: str
    status: TaskStatus
    reason: str = Field(description="Why it failed, was paused or cancelled.")
    created: Instant
    ended: Instant | None
    tags: list[str] = Field(description="Words by which lists are filtered.")
    step_counts: dict[StepStatus, int] = Field(description="The number of steps in each status; none is left out as 0.")


class StepErrorSchema(Schema):
    type: str
    message: str
    retryable: bool


class StepSchema(Schema):
    id: Annotated[str, From("step_id")]
    status: StepStatus
    outcome: Outcome | None = Field(description="`clean`, or `partial` after denials or unknown effects.")
    kind: StepKind
    title: str
    run: Annotated[str, From("run_id")] = Field(description="Its latest run; empty before the first.")
    worker: Annotated[str, From("worker_id")]
    attempt: int
    fence: int = Field(description="The number of its latest claim; what an earlier holder writes is refused.")
    lost_leases: int
    lost_to: str = Field(description="The worker that lost the last lease.")
    depends_on: Annotated[list[str], From("depends_on", lambda keys: [*map(step_id_of, keys)])]
    map: Annotated[str, From("map_key", step_id_of)] = Field(
        description="The map step that it is an item of; empty for others."
    )
    claim: Annotated[ClaimMode, From("claim_mode")]
    is_pull_worker: bool
    held_by: Annotated[str, From("holder_run_id")] = Field(
        description="The run that has claimed it to do it itself; empty for others."
    )
    progress: str
    started: Instant | None
    ended: Instant | None
    output: AnyJson
    error: StepErrorSchema | None


class StepDetail(StepSchema):
    """A step with what its run was given and what it left behind (DAG-10)."""

    lacks: str = Field(description="Why no worker can take it now; empty for others.")
    tools: AnyObject | None = Field(description="Tools `requested` and `granted`; null for a step that runs no agent.")
    denials: list[AnyObject]
    unknown_effects: list[AnyObject] = Field(description="Calls that may or may not have happened.")
    partial: AnyJson = Field(description="The output of a step that did not complete, as far as it came.")


class DeliverableSchema(Schema):
    """A file that a run wrote."""

    run: Annotated[str, From("run_id")]
    path: str
    stored_at: Annotated[str, From("copy")] = Field(description="The run's own copy in the data folder.")


class DenialSchema(Schema):
    """A call that did not get a yes."""

    step: Annotated[str, From("step_id")]
    run: Annotated[str, From("run_id")]
    tool: str
    error: str
    message: str
    author: str = Field(description="Who decided: `rule`, `grant`, `person` or `system`; empty without a decision.")
    principal: str
    channel: str
    sentence: str


class TaskLimitSchema(Schema):
    """A limit of a task, in the unit of its name in plans."""

    limit: float
    used: float = Field(description="By all runs of the task; a request under way counts as it may cost at most.")


class TaskLimitsSchema(Schema):
    """The limits of a task; null: it has no such limit."""

    max_turns: TaskLimitSchema | None
    tokens: TaskLimitSchema | None
    cost_usd: TaskLimitSchema | None
    wall_s: TaskLimitSchema | None

    @classmethod
    def of_limits(cls, limits: Sequence[TaskLimit]) -> "TaskLimitsSchema":
        named = {one.name: TaskLimitSchema.of(one) for one in limits}
        return cls(**dict.fromkeys(cls.model_fields) | named)


class TaskResult(TaskSchema):
    """The result of a task; of a task that has not ended, the result so far."""

    exit_code: ExitCode = Field(description="0 completed, 1 failed or cancelled, 3 a call was denied, 130 not ended.")
    steps: list[StepDetail] = Field(description="The steps as planned, items of a map below it.")
    answer: AnyJson = Field(description="What the agent of an ask answered; null for a plan.")
    output: AnyJson = Field(description="What the plan gives, by its `output`; null before the task has completed.")
    deliverables: list[DeliverableSchema]
    denials: list[DenialSchema]
    limits: TaskLimitsSchema | None = Field(description="The limits of its plan; null when it has none.")
    undone: list[DenialSchema] = Field(description="Calls that were allowed, and not made: their target had changed.")

    @cached_property
    def outputs(self) -> Mapping[str, Json]:
        """The outputs of completed steps by step id; of a map step the list of its items' outputs, in their order."""
        items: dict[str, list[Json]] = {}
        for step in self.steps:
            if step.map:
                items.setdefault(step.map, []).append(step.output)
        completed = (step for step in self.steps if step.status is StepStatus.COMPLETED)
        return {step.id: items.get(step.id) or step.output for step in completed}

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """Name it in few words. ``asyncio.run`` writes out what its program returns when it takes its handler of SIGINT
        back: hundreds of steps would take as long as to read them.
        """
        names = ("id", "title", "status", "exit_code", "step_counts")
        return ((name, getattr(self, name)) for name in names)


class RunningStep(Schema):
    id: Annotated[str, From("step_id")]
    title: str
    progress: str = Field(description="What its run said last of how far it is.")


class FailedStep(Schema):
    id: Annotated[str, From("step_id")]
    title: str
    error: StepErrorSchema | None


class TaskProgress(TaskSchema):
    """A task's state without inputs and outputs; of an ask, with the tasks that its agent has made."""

    running: list[RunningStep] = Field(description=f"Steps that workers hold, the first {MOST_SHOWN}.")
    failed: list[FailedStep] = Field(description=f"Steps that failed, the first {MOST_SHOWN}.")
    approvals: list[str] = Field(description="Questions of it that wait for an answer, oldest first.")
