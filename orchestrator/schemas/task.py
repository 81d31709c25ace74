"""A task with its steps and its result, as programs see them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import Field

from soong.orchestrator.client.outcome import Denial, ExitCode, StepReport, TaskOutcome
from soong.orchestrator.client.task_limits import TaskLimit
from soong.orchestrator.schemas.base import AnyJson, AnyObject, Instant, Schema, instant, step_id_of
from soong.shared.core.clock import rfc3339
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.kinds import ClaimMode, StepKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome, Step, Task


class TaskSchema(Schema):
    id: str
    session: str
    title: str
    status: TaskStatus
    reason: str = Field(description="Why it failed, was paused or cancelled.")
    created: Instant
    ended: Instant | None
    step_counts: dict[StepStatus, int] = Field(description="The number of steps in each status; none is left out as 0.")

    @classmethod
    def fields_of(cls, task: Task, counts: Mapping[StepStatus, int]) -> dict[str, Any]:
        """Return what every form of a task says."""
        return {
            "id": task.id,
            "session": task.session_id,
            "title": task.title,
            "status": task.status,
            "reason": task.reason,
            "created": rfc3339(task.created_us),
            "ended": instant(task.ended_us),
            "step_counts": {status: number for status, number in counts.items() if number},
        }

    @classmethod
    def of(cls, task: Task, counts: Mapping[StepStatus, int]) -> "TaskSchema":
        return cls(**cls.fields_of(task, counts))


class StepErrorSchema(Schema):
    type: str
    message: str
    retryable: bool


class StepSchema(Schema):
    id: str
    status: StepStatus
    outcome: Outcome | None = Field(description="`clean`, or `partial` after denials or unknown effects.")
    kind: StepKind
    title: str
    run: str = Field(description="Its latest run; empty before the first.")
    worker: str
    attempt: int
    fence: int = Field(description="The number of its latest claim; what an earlier holder writes is refused.")
    lost_leases: int
    lost_to: str = Field(description="The worker that lost the last lease.")
    depends_on: list[str]
    map: str = Field(description="The map step that it is an item of; empty for others.")
    claim: ClaimMode
    is_pull_worker: bool
    held_by: str = Field(description="The run that has claimed it to do it itself; empty for others.")
    progress: str
    started: Instant | None
    ended: Instant | None
    output: AnyJson
    error: StepErrorSchema | None

    @classmethod
    def fields_of(cls, step: Step) -> dict[str, Any]:
        """Return what every form of a step says."""
        return {
            "id": step.step_id,
            "status": step.status,
            "outcome": step.outcome,
            "kind": step.kind,
            "title": step.title,
            "run": step.run_id,
            "worker": step.worker_id,
            "attempt": step.attempt,
            "fence": step.fence,
            "lost_leases": step.lost_leases,
            "lost_to": step.lost_to,
            "depends_on": [step_id_of(key) for key in step.depends_on],
            "map": step_id_of(step.map_key),
            "claim": step.claim_mode,
            "is_pull_worker": step.is_pull_worker,
            "held_by": step.holder_run_id,
            "progress": step.progress,
            "started": instant(step.started_us),
            "ended": instant(step.ended_us),
            "output": step.output,
            "error": None if step.error is None else StepErrorSchema.model_validate(step.error.as_json()),
        }

    @classmethod
    def of(cls, step: Step) -> "StepSchema":
        return cls(**cls.fields_of(step))


class StepDetail(StepSchema):
    """A step with what its run was given and what it left behind (DAG-10)."""

    lacks: str = Field(description="Why no worker can take it now; empty for others.")
    tools: AnyObject | None = Field(description="Tools `requested` and `granted`; null for a step that runs no agent.")
    denials: list[AnyObject]
    unknown_effects: list[AnyObject] = Field(description="Calls that may or may not have happened.")
    partial: AnyJson = Field(description="The output of a step that did not complete, as far as it came.")

    @classmethod
    def detailed(cls, step: Step, report: StepReport, lacks: str) -> "StepDetail":
        return cls(
            **cls.fields_of(step),
            lacks=lacks,
            tools=report.tools,
            denials=list(report.denials),
            unknown_effects=list(report.unknown_effects),
            partial=report.partial,
        )


class DeliverableSchema(Schema):
    """A file that a run wrote."""

    run: str
    path: str
    stored_at: str = Field(description="The run's own copy in the data folder.")


class DenialSchema(Schema):
    """A call that did not get a yes."""

    step: str
    run: str
    tool: str
    error: str
    message: str
    author: str = Field(description="Who decided: `rule`, `grant`, `person` or `system`; empty without a decision.")
    principal: str
    channel: str
    sentence: str

    @classmethod
    def of(cls, denial: Denial) -> "DenialSchema":
        return cls(
            step=denial.step_id,
            run=denial.run_id,
            tool=denial.tool,
            error=denial.error,
            message=denial.message,
            author=denial.author,
            principal=denial.principal,
            channel=denial.channel,
            sentence=denial.sentence,
        )


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
    def of(cls, limits: Sequence[TaskLimit]) -> "TaskLimitsSchema":
        named = {one.name: TaskLimitSchema(limit=one.limit, used=one.used) for one in limits}
        return cls(**dict.fromkeys(cls.model_fields) | named)


class TaskResult(TaskSchema):
    """The result of a task; of a task that has not ended, the result so far."""

    exit_code: ExitCode = Field(description="0 completed, 1 failed or cancelled, 3 a call was denied, 130 not ended.")
    steps: list[StepDetail] = Field(description="The steps as planned, items of a map below it.")
    answer: AnyJson = Field(description="What the agent of an ask answered; null for a plan.")
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

    @classmethod
    def of_outcome(cls, outcome: TaskOutcome) -> "TaskResult":
        view = outcome.view
        steps = [
            StepDetail.detailed(step, outcome.report_of(step), view.lacks.get(step.key, "")) for step in view.steps
        ]
        return cls(
            **cls.fields_of(view.task, view.counts),
            exit_code=outcome.exit_code,
            steps=steps,
            answer=outcome.answer,
            deliverables=[
                DeliverableSchema(run=one.run_id, path=one.path, stored_at=one.copy) for one in outcome.deliverables
            ],
            denials=[DenialSchema.of(one) for one in outcome.denials],
            limits=TaskLimitsSchema.of(outcome.limits) if outcome.limits else None,
            undone=[DenialSchema.of(one) for one in outcome.undone],
        )
