"""The port of the tools: the HTTP API for one caller, in this process or elsewhere.

Every tool is a call of the API, so its rights, limits and messages are the API's: there is no second way in.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from starlette.requests import Request

from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value

MAX_ERRORS_SHOWN: Final = 10

Document = Mapping[str, Any]


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
