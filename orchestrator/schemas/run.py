"""A session, a run with its log, and artifacts, as programs see them."""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field

from soong.orchestrator.schemas.base import AnyObject, From, Instant, Schema, step_id_of
from soong.shared.agents.definition import DEFINITION
from soong.shared.core.jsontext import Json
from soong.shared.core.log_lines import LineStream
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import ApprovalMode


class SessionSchema(Schema):
    id: str
    principal: str
    project: str
    cwd: str
    approval_mode: ApprovalMode
    created: Instant
    is_owned: Annotated[bool, From("owner_id", bool)] = Field(description="Whether an orchestrator has adopted it.")
    is_closed: bool


class RunSchema(Schema):
    id: str
    status: str
    end_reason: str | None
    session: Annotated[str, From("identity.session_id")]
    task: Annotated[str, From("identity.task_id")]
    step: Annotated[str, From("identity.step_key", step_id_of)]
    agent: Annotated[str, From("identity.agent_id")]
    role: Annotated[str, From("identity.role")]
    definition: Annotated[str, From("identity.definition")]
    model: str
    parent_run: Annotated[str, From("identity.parent_run_id")]
    parent_agent: Annotated[str, From("identity.parent_agent_id")]
    dispatched_by: Annotated[str, From("identity.origin.principal")] = Field(
        description="Whose submission, retry or dispatch it comes from."
    )
    is_foreign: Annotated[bool, From("identity.origin.is_foreign")] = Field(
        description="Another side than the session's had it made: nothing is allowed unasked."
    )
    attempt: int
    retry_of: str
    worker: Annotated[str, From("worker_id")]
    events: Annotated[int, From("last_seq")] = Field(description="The number of its last event.")
    nodes: Annotated[int, From("last_node")]
    usage: AnyObject
    is_tainted: bool = Field(description="It has itself read untrusted content.")
    malformed: str = Field(description="What of its row could not be read; empty for a row that is in order.")
    created: Instant
    started: Instant | None
    ended: Instant | None


class ToolVerdict(Schema):
    """Why a run has a tool, or has it not (ETS-08)."""

    tool: str
    is_in: bool
    rule: str


def _verdicts(surface: Mapping[str, Json]) -> list[ToolVerdict]:
    stored = surface.get("decisions")
    rows = [row for row in stored if isinstance(row, list | tuple)] if isinstance(stored, list | tuple) else []
    return [ToolVerdict(tool=str(row[0]), is_in=bool(row[1]), rule=str(row[2])) for row in rows]


def tools_of(surface: Mapping[str, Json]) -> list[str]:
    return [one.tool for one in _verdicts(surface) if one.is_in]


def settings_of(surface: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a run's model requests, as its row has them."""
    definition = surface.get(DEFINITION)
    options = definition.get("options") if isinstance(definition, Mapping) else None
    return dict(options) if isinstance(options, Mapping) else {}


class RunDetail(RunSchema):
    tools: Annotated[list[str], From("surface", tools_of)] = Field(description="The tools that the run may call.")
    surface: Annotated[list[ToolVerdict], From("surface", _verdicts)] = Field(
        description="Every tool, and the rule that decided."
    )
    settings: Annotated[AnyObject, From("surface", settings_of)] = Field(
        description="How its model is asked, where that is set."
    )

    def with_called(self, calls: Iterable[CallRow]) -> "RunDetail":
        """Add the tools that the agent brings itself, as far as it has called them."""
        tools = sorted({call.tool for call in calls} - {one.tool for one in self.surface})
        own = [ToolVerdict(tool=tool, is_in=True, rule="the agent's own; it has called it") for tool in tools]
        return self.model_copy(update={"tools": [*self.tools, *tools], "surface": [*own, *self.surface]})


class NodeSchema(Schema):
    number: int
    parent: int
    kind: str
    payload: AnyObject
    created: Instant


class EventSchema(Schema):
    """An event of a run in its CloudEvents 1.0 envelope; `id` is its number, without gaps from 1 on."""

    specversion: str
    id: str
    source: str
    type: str
    time: Instant
    datacontenttype: str
    data: AnyObject


class LineSchema(Schema):
    """A line that the code of a run printed or logged, or a line of a traceback that it raised; without secrets."""

    number: int = Field(description="Its number, from 1 on; a line of `left_out` has that of the last one left out.")
    time: Instant
    stream: LineStream
    level: str = Field(description="Of a record of `logging`, in lower case; else empty.")
    text: str


class ArtifactPage(Schema):
    """A part of an artifact, as text where its bytes are UTF-8."""

    digest: str
    size_bytes: int
    offset: int
    next_offset: int | None = Field(description="Where the next part begins; null: there is none.")
    text: str | None = Field(description="Null when the part is not UTF-8 text.")
    base64: str | None = Field(description="The bytes of a part that is not text.")

    @classmethod
    def page(cls, digest: str, data: bytes, offset: int, limit: int) -> "ArtifactPage":
        part = _ended_at_a_character(data[offset : offset + limit], is_last=offset + limit >= len(data))
        end = offset + len(part)
        try:
            text, encoded = part.decode(), None
        except UnicodeDecodeError:
            text, encoded = None, b64encode(part).decode()
        return cls(
            digest=digest,
            size_bytes=len(data),
            offset=offset,
            next_offset=end if end < len(data) else None,
            text=text,
            base64=encoded,
        )


def _ended_at_a_character(part: bytes, *, is_last: bool) -> bytes:
    """Return a part without the beginning of a character at its end, so that pages of text are text."""
    for cut in range(0 if is_last else min(4, len(part) - 1)):
        if part[-1 - cut] < 0x80:
            return part[: len(part) - cut]
        if part[-1 - cut] >= 0xC0:
            needed = 2 if part[-1 - cut] < 0xE0 else 3 if part[-1 - cut] < 0xF0 else 4
            return part if cut + 1 >= needed else part[: len(part) - cut - 1]
    return part
