"""Operations of the service for one caller in this process, and their documents as results of tools.

A tool calls an operation through its route, so rights, limits, strict reading and messages are the API's. A result is
the operation's document, and the same facts as lines for a model. Clients cut long results, so long texts are cut in
both. Texts of agents, files and plans are data; their control characters are spelled out.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi.routing import APIRoute
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent
from starlette.requests import Request

from soong.orchestrator.client.home_api import ApiProblemError, ApiReply
from soong.orchestrator.operations.calls import DirectCalls
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json, dump, inert
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import Right

Document = Mapping[str, Any]

MAX_ERRORS_SHOWN: Final = 10
MAX_TEXT_CHARS: Final = 24_000
MAX_DOCUMENT_CHARS: Final = 60_000
MAX_ENTRIES: Final = 50
MAX_DEPTH: Final = 9
_SIZES: Final = (20_000, 2_000, 300)
"""Bounds of one text: the first that keeps a result within its bounds, or the last."""
_VALUES: Final = frozenset({"output", "partial"})
"""Outputs of steps: a long one becomes the beginning of its JSON."""
_ASIDE: Final = (
    "agent beats catalogue claim datacontenttype ending fence held_by lost_leases lost_to mermaid parent_agent pid "
    "precondition protocol queues source specversion stored_at tool_call_id tools worker"
)
"""Fields of a document that its lines leave out."""
_SEGMENT: Final = re.compile(r"[0-9A-Za-z_]{1,200}")


@dataclass(frozen=True, slots=True)
class ApiCalls(DirectCalls):
    """The operations for one caller. ``project``: where tasks work by default."""

    project: str = ""

    @property
    def rights(self) -> frozenset[str]:
        return frozenset(str(right) for right in Right if self.caller.may(right))

    async def operate(
        self, operation: Callable[..., Any], *, body: Json = None, **given: str | int | Sequence[str]
    ) -> ApiReply:
        """Return what an operation returns when it is called with these arguments.
        Raises: ToolProblemError; ToolError when an id is not an id.
        """
        routes = (one for one in self.app.routes if isinstance(one, APIRoute))
        route = next(one for one in routes if inspect.unwrap(one.endpoint) is operation)
        takes = route.dependant
        ids, headers = (
            {one.alias: str(given.pop(one.name)) for one in fields if one.name in given}
            for fields in (takes.path_params, takes.header_params)
        )
        query = {one.alias: given.pop(one.name) for one in takes.query_params if one.name in given}
        assert not given, given
        for segment in ids.values():
            if not _SEGMENT.fullmatch(segment):
                raise ToolError(f"{segment[:100]!r} is not an id; copy the id as another tool returned it")
        method = next(iter(route.methods or {"GET"}))
        try:
            return await self.reply(method, route.path.format(**ids), query=query, body=body, headers=headers)
        except SoongError as error:
            if not isinstance(refused := error.__cause__, ApiProblemError):
                raise
            raise ToolProblemError(refused.status, refused.document) from None


class ServerState(Value):
    """The shared state of one server's requests: the API for a caller, and its rights, which need no waiting.

    The request is None where one caller has the connection to itself.
    """

    api_of: Callable[[Request | None], Awaitable[ApiCalls]]
    rights_of: Callable[[Request | None], frozenset[str]]
    reads_files: bool = False
    """Whether a plan may be named by its path: the caller's files are this machine's."""


SoongContext = Context[ServerState, Any]


async def api_of(context: SoongContext) -> ApiCalls:
    """Return the API for the caller of a request. Raises: ToolError when there is no service."""
    request = context.request_context
    return await request.lifespan_context.api_of(request.request)


async def called(
    context: SoongContext, operation: Callable[..., Any], *, body: Json = None, **given: str | int | Sequence[str]
) -> Document:
    """Return the document of an operation for the caller of a request. Raises: as :meth:`ApiCalls.operate`."""
    document: Document = (await (await api_of(context)).operate(operation, body=body, **given)).document
    return document


@dataclass(eq=False)
class ToolProblemError(ToolError):
    """A problem document as a tool's error: what is wrong, and what to do."""

    status: int
    document: Document = field(default_factory=dict)

    def __str__(self) -> str:
        code = self.document.get("code") or self.status
        lines = [f"{self.document.get('detail', 'the request failed')} ({code})"]
        errors = self.document.get("errors") or ()
        for error in errors[:MAX_ERRORS_SHOWN]:
            hint = f" -> {error['hint']}" if error.get("hint") else ""
            lines.append(f"- {error['place']}: {error['problem']}{hint}")
        if len(errors) > MAX_ERRORS_SHOWN:
            lines.append(f"- and {len(errors) - MAX_ERRORS_SHOWN} more")
        return inert("\n".join(lines), keeps_blanks=True)


def shown(document: Document, hint: str = "", most: int = _SIZES[0]) -> CallToolResult:
    """Return a document as a tool's result, with texts of more than ``most`` characters cut, or shorter ones."""
    short, text = document, ""
    for size in _SIZES:
        short = shortened(document, min(size, most))
        text = "\n".join(lines_of(short))
        if len(text) <= MAX_TEXT_CHARS and len(dump(short)) <= MAX_DOCUMENT_CHARS:
            break
    left = {name: len(value) - len(short[name]) for name, value in document.items() if isinstance(value, list)}
    more = [f"{number} more {name} are left out" for name, number in left.items() if number]
    return told("\n".join(filter(None, (text, *more, hint))) or "there is nothing", short)


def told(text: str, document: Document) -> CallToolResult:
    """Return a tool's result in both forms."""
    content = TextContent(type="text", text=cut(inert(text, keeps_blanks=True), MAX_TEXT_CHARS))
    return CallToolResult(content=[content], structured_content=dict(document))


def cut(text: str, most: int) -> str:
    """Return a text, or its beginning with a mark."""
    return text if len(text) <= most else f"{text[:most]}… (cut: {len(text):,} characters)"


def shortened(value: Any, most: int, depth: int = 0) -> Any:
    """Return a value whose texts are cut, and whose lists are unless they are pages; too deep values become a mark."""
    if isinstance(value, str):
        return cut(value, most)
    if not isinstance(value, Mapping | list):
        return value
    if depth >= MAX_DEPTH:
        return "… (left out: nested too deep)"
    if isinstance(value, list):
        return [shortened(item, most, depth + 1) for item in value]
    is_page = depth == 0 and "next" in value
    short = {}
    for name, item in list(value.items())[:MAX_ENTRIES]:
        if name in _VALUES and not isinstance(item, str) and len(text := dump(item)) > most:
            short[name] = cut(text, most)
        else:
            few = item[:MAX_ENTRIES] if isinstance(item, list) and not is_page else item
            short[name] = shortened(few, most, depth + 1)
    return short


def lines_of(document: Document, typed: int = 2) -> Iterator[str]:
    """Yield the facts of a document as lines; those that are empty are left out.

    In the first ``typed`` levels the fields are known, and those for programs alone are left out.
    """
    for name, value in document.items():
        if (typed and name in _ASIDE.split()) or value in ("", None, [], {}) or value is False:
            continue
        head = f"{' '.join(str(name).split())}:"
        if isinstance(value, Mapping):
            yield head
            yield from (f"  {line}" for line in lines_of(value, 0))
        elif isinstance(value, list) and any(isinstance(one, Mapping | list) or "\n" in str(one) for one in value):
            yield head
            for one in value:
                inner = lines_of(one if isinstance(one, Mapping) else {"value": one}, max(0, typed - 1))
                yield from (f"{'  ' if number else '- '}{line}" for number, line in enumerate(inner))
        elif isinstance(value, list):
            yield f"{head} {', '.join(map(str, value))}"
        elif "\n" in str(value):
            yield head
            yield from (f"  | {line}" for line in str(value).splitlines())
        else:
            yield f"{head} {value}"
