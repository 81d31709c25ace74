"""What only the API says: pages, details, plans and callers. The OpenAPI document is made of these and of the schemas.

The things themselves have one form for all programs (:mod:`soong.orchestrator.schemas`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field
from starlette.responses import Response

from soong.orchestrator.schemas.base import AnyObject, Instant, Schema
from soong.orchestrator.schemas.session import SessionSchema
from soong.orchestrator.schemas.task import StepSchema, TaskSchema
from soong.shared.core.clock import rfc3339
from soong.shared.core.jsontext import dump
from soong.shared.permissions.audit_log.entry import AuditEntry

T = TypeVar("T")


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
    session: str
    data: AnyObject
    digest: str

    @classmethod
    def of(cls, entry: AuditEntry) -> "AuditEntrySchema":
        return cls(
            chain=entry.chain,
            number=entry.number,
            time=rfc3339(entry.time_us),
            kind=entry.kind,
            session=entry.session_id,
            data=dict(entry.data),
            digest=entry.digest,
        )


class SessionDetail(SessionSchema):
    policy: AnyObject = Field(description="The session's rules, those of `allow` among them.")
    tasks: list[str] = Field(description="The newest 100 tasks, newest first.")
    approvals: list[str] = Field(description="Questions that wait for an answer, oldest first.")


class TaskDetail(TaskSchema):
    root_run: str
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
