"""The API's own documents: pages, details, plans and callers. The OpenAPI document is made of these and of the schemas.

The things themselves have one form for all programs (:mod:`soong.orchestrator.schemas`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

from pydantic import BaseModel, Field
from starlette.responses import Response

from soong.orchestrator.schemas.base import AnyObject, From, Instant, Schema
from soong.orchestrator.schemas.run import SessionSchema
from soong.orchestrator.schemas.task import StepSchema, TaskSchema
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.value import Value

T = TypeVar("T")

KEEP_ALIVE: Final = b": keep-alive\n\n"
RETRY: Final = b"retry: 1000\n\n"
END: Final = b"event: end\ndata: {}\n\n"
"""Nothing more will come. A reader that connects again is answered 204, which tells an EventSource to stop."""


class Page(Schema, Generic[T]):
    """One page of a list. ``next`` is the ``cursor`` of the page after it; null: there is none."""

    items: list[T]
    next: str | None


class AuditEntrySchema(Schema):
    """One entry of the audit log, as `soong audit export` writes it."""

    chain: str
    number: int = Field(description="From 1 on in its chain, without gaps.")
    time: Instant
    kind: str
    session: Annotated[str, From("session_id")]
    data: AnyObject
    digest: str


class SessionDetail(SessionSchema):
    policy: AnyObject = Field(description="The session's rules, those of `allow` among them.")
    tasks: list[str] = Field(description="The newest 100 tasks, newest first.")
    approvals: list[str] = Field(description="Questions that wait for an answer, oldest first.")


class TaskDetail(TaskSchema):
    root_run: Annotated[str, From("root_run_id")]
    inputs: AnyObject
    steps: list[StepSchema] = Field(description="A page of its steps as planned, items of a map below it.")
    next: str | None = Field(description="The `cursor` of the page of steps after this one; null: there is none.")
    approvals: list[str] = Field(description="Questions of the task that wait for an answer.")


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
    """The permissions that one step will ask for."""

    id: str
    title: str
    kind: str
    permissions: list[AnyObject] = Field(description="Each thing that its plan names: as given, resolved, and judged.")
    may_ask: list[str] = Field(description="Its tools that can ask at run time and were not spoken of.")
    is_grantable: bool
    grant_digest: str | None = Field(description="What a yes to it names in `step_grants`; null: none can be given.")


class PreviewSchema(Schema):
    """The permissions that a plan will ask for, as `soong run --preview --json` prints them."""

    v: int = Field(description="Grows when a field changes its meaning.")
    title: str
    union: AnyObject = Field(description="What all steps together ask for, by `write`, `hosts` and `run`.")
    steps: list[PreviewStep]


class CallerSchema(Schema):
    principal: str
    token: str = Field(description="The id of the token that was sent; not the token.")
    rights: list[str] = Field(description="What it may do, implied rights among them.")
    expires: Instant | None


class ForkedPlan(Schema):
    plan: AnyObject = Field(description="A plan as it is submitted.")


class FoundId(Schema):
    id: str = Field(description="The id in full.")


class HealthSchema(Schema):
    status: str


class OperationReply(Value):
    """A document with a status or headers of its own; without one: nothing has changed."""

    document: Any
    status: int = 200
    headers: Mapping[str, str] = {}


def respond(returned: BaseModel | OperationReply) -> Response:
    """Return what an operation returns as it is sent."""
    reply = returned if isinstance(returned, OperationReply) else OperationReply(returned)
    headers = dict(reply.headers)
    if reply.document is None:
        return Response(status_code=reply.status, headers=headers)
    return Response(json_bytes(reply.document.model_dump()), reply.status, headers, "application/json")


def json_bytes(value: object) -> bytes:
    """Return JSON as UTF-8; half a character, which a row may hold, is sent as an escape."""
    text = dump(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def page_of(items: Sequence[BaseModel], limit: int, last: str) -> Page[Any]:
    """Return a page; a full one has a next one, which may turn out to be empty."""
    return Page.model_construct(items=list(items), next=last if len(items) >= limit and last else None)


def frame(data: Json, *, id: str = "", event: str = "") -> bytes:
    """Return one event as it is sent; compact JSON has no line break that could end it early."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return b"%bdata: %b\n\n" % (head.encode(), json_bytes(data))
