"""What the API says, as documents: their fields, and how they are made of rows. The OpenAPI document is made of these.

Instants are RFC 3339 text in UTC, absent ones null. Texts come from models and strangers and are sent as they are
stored: a page that shows them escapes them. Nothing here has a run's token, a proof or a signature.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.responses import Response

from soong.shared.core.clock import rfc3339
from soong.shared.core.jsontext import dump
from soong.shared.engine.runs.events import Node
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step, Task

T = TypeVar("T")

AnyJson = Annotated[Any, WithJsonSchema({})]
"""A value as it is stored: a row may hold half a character, which no typed text does."""

AnyObject = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]
Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


class Schema(BaseModel):
    """A document that is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Schema, Generic[T]):
    """One page of a list. ``next`` is the ``cursor`` of the page after it; null: there is none."""

    items: list[T]
    next: str | None


class SessionSchema(Schema):
    id: str
    principal: str
    project: str
    cwd: str
    approval_mode: str = Field(description="`prompt`, `inbox` or `deny`.")
    created: Instant
    is_owned: bool = Field(description="Whether an orchestrator has adopted it.")
    is_closed: bool

    @classmethod
    def of(cls, session: Session) -> "SessionSchema":
        return cls(
            id=session.id,
            principal=session.principal,
            project=session.project,
            cwd=session.cwd,
            approval_mode=str(session.approval_mode),
            created=rfc3339(session.created_us),
            is_owned=bool(session.owner_id),
            is_closed=session.is_closed,
        )


class SessionDetail(SessionSchema):
    policy: AnyObject = Field(description="The session's rules, those of `allow` among them.")
    tasks: list[str] = Field(description="The newest 100 tasks, newest first.")
    approvals: list[str] = Field(description="Questions that wait for an answer, oldest first.")


class TaskSchema(Schema):
    id: str
    session: str
    title: str
    status: str
    reason: str = Field(description="Why it failed, was paused or cancelled.")
    created: Instant
    ended: Instant | None
    steps: dict[str, int] = Field(description="The number of steps in each status.")

    @classmethod
    def of(cls, task: Task, counts: Mapping[StepStatus, int]) -> "TaskSchema":
        return cls(
            id=task.id,
            session=task.session_id,
            title=task.title,
            status=str(task.status),
            reason=task.reason,
            created=rfc3339(task.created_us),
            ended=_instant(task.ended_us),
            steps={str(status): number for status, number in counts.items() if number},
        )


class StepSchema(Schema):
    id: str
    status: str
    outcome: str | None = Field(description="`clean`, or `partial` after denials or unknown effects.")
    kind: str
    title: str
    run: str
    worker: str
    attempt: int
    lost_leases: int
    depends_on: list[str]
    map: str = Field(description="The map step that it is an item of; empty for others.")
    progress: str
    started: Instant | None
    ended: Instant | None
    output: AnyJson
    error: AnyJson

    @classmethod
    def of(cls, step: Step) -> "StepSchema":
        return cls(
            id=step.step_id,
            status=str(step.status),
            outcome=None if step.outcome is None else str(step.outcome),
            kind=str(step.kind),
            title=step.title,
            run=step.run_id,
            worker=step.worker_id,
            attempt=step.attempt,
            lost_leases=step.lost_leases,
            depends_on=[key.partition("/")[2] for key in step.depends_on],
            map=step.map_key.partition("/")[2],
            progress=step.progress,
            started=_instant(step.started_us),
            ended=_instant(step.ended_us),
            output=step.output,
            error=None if step.error is None else step.error.as_json(),
        )


class TaskDetail(TaskSchema):
    root_run: str
    inputs: AnyObject
    step_list: list[StepSchema] = Field(description="The steps as planned, items of a map below it.")
    approvals: list[str] = Field(description="Questions of the task that wait for an answer.")


class TaskResult(Schema):
    """What a task came to, as `soong tasks show --json` says it."""

    model_config = ConfigDict(extra="allow")

    id: str
    status: str
    exit_code: int
    steps: list[AnyObject]
    deliverables: list[AnyObject]
    denials: list[AnyObject]


class Submitted(Schema):
    session: SessionSchema
    task: TaskSchema


class PlanSchema(Schema):
    """A plan that could become a task."""

    title: str
    inputs: list[AnyObject]
    steps: list[AnyObject]
    mermaid: str = Field(description="Its graph as Mermaid text.")


class PreviewStep(Schema):
    """What one step will ask for."""

    id: str
    title: str
    kind: str
    permissions: list[AnyObject] = Field(description="Each thing that its plan names: as given, resolved, and judged.")
    may_ask: list[str] = Field(description="Its tools that can ask at run time and were not spoken of.")
    is_grantable: bool
    grant_digest: str | None = Field(description="What a yes to it names in `step_grants`; null: none can be given.")


class PreviewSchema(Schema):
    """What a plan will ask for, as `soong run --preview --json` says it."""

    v: int = Field(description="Grows when a field changes its meaning.")
    title: str
    union: AnyObject = Field(description="What all steps together ask for, by `write`, `hosts` and `run`.")
    steps: list[PreviewStep]


class RunSchema(Schema):
    id: str
    status: str
    end_reason: str | None
    session: str
    task: str
    step: str
    agent: str
    role: str
    definition: str
    model: str
    parent_run: str
    parent_agent: str
    dispatched_by: str = Field(description="Whose submission, retry or dispatch it comes from.")
    is_foreign: bool = Field(description="Another side than the session's had it made: nothing is allowed unasked.")
    attempt: int
    retry_of: str
    worker: str
    events: int = Field(description="The number of its last event.")
    nodes: int
    usage: AnyObject
    is_tainted: bool = Field(description="It has itself read untrusted content.")
    malformed: str = Field(description="What of its row could not be read; empty for a row that is in order.")
    created: Instant
    started: Instant | None
    ended: Instant | None

    @classmethod
    def fields_of(cls, run: Run) -> dict[str, Any]:
        """Return what every form of a run says. Its token is shown nowhere."""
        identity = run.identity
        return {
            "id": run.id,
            "status": str(run.status),
            "end_reason": None if run.end_reason is None else str(run.end_reason),
            "session": identity.session_id,
            "task": identity.task_id,
            "step": identity.step_key.partition("/")[2],
            "agent": identity.agent_id,
            "role": str(identity.role),
            "definition": identity.definition,
            "model": identity.model,
            "parent_run": identity.parent_run_id,
            "parent_agent": identity.parent_agent_id,
            "dispatched_by": identity.origin.principal,
            "is_foreign": identity.origin.is_foreign,
            "attempt": run.attempt,
            "retry_of": run.retry_of,
            "worker": run.worker_id,
            "events": run.last_seq,
            "nodes": run.last_node,
            "usage": run.usage.as_json(),
            "is_tainted": run.is_tainted,
            "malformed": run.malformed,
            "created": rfc3339(run.created_us),
            "started": _instant(run.started_us),
            "ended": _instant(run.ended_us),
        }

    @classmethod
    def of(cls, run: Run) -> "RunSchema":
        return cls(**cls.fields_of(run))


class ToolVerdict(Schema):
    """Why a run has a tool, or has it not (ETS-08)."""

    tool: str
    is_in: bool
    rule: str


class RunDetail(RunSchema):
    tools: list[str] = Field(description="The tools that the run may call.")
    surface: list[ToolVerdict] = Field(description="Every tool, and the rule that decided.")

    @classmethod
    def of(cls, run: Run) -> "RunDetail":
        stored = run.surface.get("decisions")
        rows = [row for row in stored if isinstance(row, list | tuple)] if isinstance(stored, list | tuple) else []
        verdicts = [ToolVerdict(tool=str(row[0]), is_in=bool(row[1]), rule=str(row[2])) for row in rows]
        return cls(**cls.fields_of(run), tools=[one.tool for one in verdicts if one.is_in], surface=verdicts)


class NodeSchema(Schema):
    number: int
    parent: int
    kind: str
    payload: AnyObject
    created: Instant

    @classmethod
    def of(cls, node: Node) -> "NodeSchema":
        return cls(
            number=node.number,
            parent=node.parent,
            kind=str(node.kind),
            payload=dict(node.payload),
            created=rfc3339(node.created_us),
        )


class EventSchema(Schema):
    """An event of a run in its CloudEvents 1.0 envelope; `id` is its number, without gaps from 1 on."""

    specversion: str
    id: str
    source: str
    type: str
    time: Instant
    datacontenttype: str
    data: AnyObject


class CallerSchema(Schema):
    principal: str
    token: str = Field(description="The id of the token that was sent; not the token.")
    rights: list[str] = Field(description="What it may do, implied rights among them.")
    expires: Instant | None


class HealthSchema(Schema):
    status: str


def respond(
    shape: BaseModel | Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a document as it is sent."""
    value = shape.model_dump(mode="python") if isinstance(shape, BaseModel) else dict(shape)
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def json_bytes(value: object) -> bytes:
    """Return JSON as UTF-8; half a character, which a row may hold, is sent as an escape."""
    text = dump(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def page_of(items: Sequence[BaseModel], limit: int, last: str) -> dict[str, Any]:
    """Return a page; a full one has a next one, which may turn out to be empty."""
    return {"items": [item.model_dump() for item in items], "next": last if len(items) >= limit and last else None}


def _instant(us: int | None) -> str | None:
    return None if us is None else rfc3339(us)
