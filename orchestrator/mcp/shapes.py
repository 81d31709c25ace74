"""What the tools return by their output schemas, where the API's own documents are too long for a client of MCP."""

from pydantic import Field

from soong.orchestrator.schemas.base import AnyJson, AnyObject, Instant, Schema
from soong.orchestrator.schemas.task import DeliverableSchema, FailedStep, RunningStep, StepErrorSchema


class SubmittedTask(Schema):
    task: str = Field(description="Its id, for wait_for_task and the other tools.")
    session: str
    title: str
    status: str
    project: str
    approvals: str = Field(description="`inbox`: questions wait for a person; `deny`: nobody is asked.")


class PlannedStep(Schema):
    id: str
    kind: str
    title: str
    depends_on: list[str]


class PlanCheck(Schema):
    """A plan that could become a task."""

    title: str
    inputs: list[AnyObject]
    steps: list[PlannedStep]


class WaitResult(Schema):
    """How far a task is, and whether to wait again."""

    task: str
    title: str
    status: str
    reason: str = Field(description="Why it failed, was paused or cancelled.")
    step_counts: dict[str, int]
    running: list[RunningStep]
    failed: list[FailedStep]
    approvals: list[str] = Field(description="Questions of it that wait for an answer.")
    state: str = Field(description="Pass it as `after` to wait until the status or the questions change.")
    is_over: bool = Field(description="It has ended, or is paused: nothing more happens by itself.")
    hint: str = Field(description="What to do next.")


class TaskLine(Schema):
    """A task in a list."""

    id: str
    title: str
    status: str
    created: Instant
    step_counts: dict[str, int]


class TaskList(Schema):
    items: list[TaskLine]
    next: str | None = Field(description="`cursor` of the next page; null: there is none.")


class StepLine(Schema):
    """A step without its full output."""

    id: str
    kind: str
    status: str
    outcome: str | None
    title: str
    run: str
    worker: str
    attempt: int
    depends_on: list[str]
    progress: str
    error: StepErrorSchema | None
    output_preview: str = Field(description="The beginning of its output; read_step has all of it.")


class TaskState(Schema):
    """A task with a page of its steps."""

    id: str
    session: str
    title: str
    status: str
    reason: str
    created: Instant
    ended: Instant | None
    step_counts: dict[str, int]
    approvals: list[str]
    steps: list[StepLine]
    next: str | None = Field(description="`cursor` of the next steps; null: there are none.")


class DeniedCall(Schema):
    step: str
    tool: str
    sentence: str


class TaskSummary(Schema):
    """The result of a task. Outputs are cut; read_step has all of them."""

    id: str
    title: str
    status: str
    reason: str
    exit_code: int = Field(description="0 completed, 1 failed or cancelled, 3 a call was denied, 130 not ended.")
    answer: str = Field(description="What the agent of a goal answered; empty for a plan.")
    outputs: dict[str, str] = Field(description="The beginning of each step's output as JSON, by step id.")
    outputs_left_out: int
    failed: list[FailedStep]
    files_written: list[DeliverableSchema]
    denied: list[DeniedCall]
    undone: list[DeniedCall] = Field(description="Calls that were allowed and not made: their target had changed.")


class StepText(Schema):
    """A page of what a step gave."""

    task: str
    step: str
    status: str
    run: str
    error: StepErrorSchema | None
    text: str = Field(description="Its output (of a failed step what it had so far): text as it is, else JSON.")
    offset: int
    total_chars: int
    next_offset: int | None


class RunLine(Schema):
    """A run in a list."""

    id: str
    status: str
    end_reason: str | None
    task: str
    step: str
    definition: str
    model: str
    attempt: int
    is_tainted: bool
    events: int
    created: Instant
    ended: Instant | None


class RunList(Schema):
    items: list[RunLine]
    next: str | None


class RunEntry(Schema):
    """An event or a node of a run."""

    number: int
    type: str
    time: Instant
    data: AnyObject = Field(description="Its fields; long texts are cut.")


class RunPage(Schema):
    """A page of a run's log or transcript."""

    run: str
    status: str
    entries: list[RunEntry]
    next_after: int | None = Field(description="`after` of the next page; null: the end for now.")


class ApprovalLine(Schema):
    """A question that waits for a person."""

    id: str
    asked: Instant
    task: str
    step: str
    who: str = Field(description="Role, definition and model of the agent that asks.")
    tool: str
    target: str
    risk: str
    is_dangerous: bool
    preview: str = Field(description="What would happen: the diff, the command. Cut when long.")
    arguments: dict[str, AnyJson] = Field(description="The input, redacted and cut.")
    session_grant: str = Field(description="What allow_for_session would cover; empty: it is not offered.")
    choices: list[str]
    may_answer: bool
    may_not_because: str
    input_digest: str = Field(description="Names what was shown; answer_approval needs it.")
    state: str


class ApprovalList(Schema):
    items: list[ApprovalLine]
    next: str | None


class AnswerResult(Schema):
    """What became of an answer."""

    id: str
    state: str
    sentence: str
    choice: str
    answered_by: str


class TaskControl(Schema):
    """A task after a command."""

    id: str
    status: str
    reason: str
    step_counts: dict[str, int]


class WorkerLine(Schema):
    name: str
    host: str
    state: str
    slots: int
    used: int
    runs: list[str] = Field(description="Keys task/step of what it holds.")


class WorkerList(Schema):
    workers: list[WorkerLine]
    waiting: dict[str, int] = Field(description="Steps that could be claimed now, by queue.")
    parked: int = Field(description="Runs that wait for consent and hold no slot.")
