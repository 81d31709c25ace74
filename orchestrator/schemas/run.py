"""A run with its log, as programs see it."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from soong.orchestrator.schemas.base import AnyObject, Instant, Schema, instant, step_id_of
from soong.shared.agents.definition import DEFINITION
from soong.shared.core.clock import rfc3339
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Node
from soong.shared.engine.runs.record import Run


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
            "step": step_id_of(identity.step_key),
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
            "started": instant(run.started_us),
            "ended": instant(run.ended_us),
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
    settings: AnyObject = Field(description="How its model is asked, where that is set.")

    @classmethod
    def of(cls, run: Run) -> "RunDetail":
        stored = run.surface.get("decisions")
        rows = [row for row in stored if isinstance(row, list | tuple)] if isinstance(stored, list | tuple) else []
        verdicts = [ToolVerdict(tool=str(row[0]), is_in=bool(row[1]), rule=str(row[2])) for row in rows]
        tools = [one.tool for one in verdicts if one.is_in]
        return cls(**cls.fields_of(run), tools=tools, surface=verdicts, settings=settings_of(run))


def settings_of(run: Run) -> dict[str, Json]:
    """Return the settings of a run's model requests, as its row has them."""
    definition = run.surface.get(DEFINITION)
    options = definition.get("options") if isinstance(definition, Mapping) else None
    return dict(options) if isinstance(options, Mapping) else {}


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
