"""The port of the tools: the HTTP API for one caller, in this process or elsewhere, and results for two readers.

Every tool is a call of the API, so its rights, limits and messages are the API's: there is no second way in. A result
is a short text for a model and the same facts by the tool's output schema for programs. Clients cut long results, so
both are bounded. Texts of agents, files and plans are data; their control characters are spelled out.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel
from starlette.requests import Request

from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

MAX_ERRORS_SHOWN: Final = 10

S = TypeVar("S", bound=BaseModel)
Document = Mapping[str, Any]

MAX_TEXT_CHARS: Final = 24_000
PREVIEW_CHARS: Final = 300
_SEGMENT: Final = re.compile(r"[0-9A-Za-z_]{1,200}")


class ApiReply(Value):
    """A document; ``tag`` is its ``ETag``. One that is unchanged since the tag that was sent is empty."""

    document: Document
    tag: str = ""
    is_unchanged: bool = False


class ApiCalls(Protocol):
    """The API as one caller has it."""

    @property
    def rights(self) -> frozenset[str]:
        """What the caller may do, implied rights among them."""
        ...

    @property
    def project(self) -> str:
        """The folder that tasks work in when none is named; empty: one has to be named."""
        ...

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiReply:
        """Return what a request is answered with. Raises: ApiProblemError."""
        ...


ApiOf = Callable[[Request | None], Awaitable[ApiCalls]]
"""Returns the API for the user who sent a request; None where one caller has the connection to itself."""


class ServerState(Value):
    """What every request of one server shares. ``rights_of`` says what its caller may do, at once."""

    api_of: ApiOf
    rights_of: Callable[[Request | None], frozenset[str]]
    reads_files: bool = False
    """Whether a plan may be named by its path: the caller's files are this machine's."""


SoongContext = Context[ServerState, Any]


async def api_of(context: SoongContext) -> ApiCalls:
    """Return the API for the caller of a request. Raises: ToolError when there is no service."""
    request = context.request_context
    return await request.lifespan_context.api_of(request.request)


@dataclass(eq=False)
class ApiProblemError(ToolError):
    """A problem document as a tool's error: what is wrong, and what to do."""

    status: int
    document: Document = field(default_factory=dict)

    @property
    def code(self) -> str:
        return str(self.document.get("code", ""))

    def __str__(self) -> str:
        lines = [f"{self.document.get('detail', 'the request failed')} ({self.code or self.status})"]
        errors = self.document.get("errors") or ()
        for error in errors[:MAX_ERRORS_SHOWN]:
            hint = f" -> {error['hint']}" if error.get("hint") else ""
            lines.append(f"- {error['place']}: {error['problem']}{hint}")
        if len(errors) > MAX_ERRORS_SHOWN:
            lines.append(f"- and {len(errors) - MAX_ERRORS_SHOWN} more")
        return inert("\n".join(lines), keeps_blanks=True)


def picked(shape: type[S], document: Document, **more: Any) -> S:
    """Return a shape of the fields that it shares with a document, and of more."""
    return shape.model_validate({**{name: document[name] for name in shape.model_fields if name in document}, **more})


def told(text: str, shape: BaseModel) -> CallToolResult:
    """Return a tool's result in both forms."""
    shown = cut(inert(text, keeps_blanks=True), MAX_TEXT_CHARS)
    return CallToolResult(
        content=[TextContent(type="text", text=shown)], structured_content=shape.model_dump(mode="json")
    )


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning with a mark."""
    return text if len(text) <= most else f"{text[:most]}… (cut: {len(text):,} characters)"


def preview(value: object, most: int = PREVIEW_CHARS) -> str:
    """Return the beginning of a value as one line of JSON; of a text as it is."""
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str), most)


def lines(*parts: str | Iterable[str]) -> str:
    """Join lines; those that are empty are left out."""
    flat: list[str] = []
    for part in parts:
        flat += [part] if isinstance(part, str) else part
    return "\n".join(line for line in flat if line)


def counts_of(step_counts: Mapping[str, int]) -> str:
    """Return ``3 of 7 steps completed, 2 running``."""
    total, done = sum(step_counts.values()), step_counts.get("completed", 0)
    others = [f"{number} {status}" for status, number in step_counts.items() if status != "completed" and number]
    return ", ".join([f"{done} of {total} steps completed", *others])


def path(*segments: str) -> str:
    """Return the path of an API request. Raises: ToolError when an id is none."""
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise ToolError(f"{segment[:100]!r} is not an id; copy the id as another tool returned it")
    return "/v1/" + "/".join(segments)


def without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's body without the fields that say nothing."""
    return {name: value for name, value in body.items() if value not in ("", None, [], {})}
