"""A server's answer as a result of a call (MCP-01.c): text, structured content, bytes as artifacts, links.

All of it was written by strangers: it is made inert for terminals, named by its type, and bounded. Each part is judged
alone: an unreadable part is left out, with a note.
"""

import base64
import binascii
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from soong.shared.core.errors import SoongError
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.sandbox.redact import inert_text, redactor
from soong.shared.tools.definition import Progress, ToolContext
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolError,
    ToolFailure,
    ToolResult,
)
from soong.shared.tools.results.rendering import redacted
from soong.shared.toolsets.mcp.catalogue import refusals
from soong.shared.toolsets.mcp.connection import ServerConnection, ServerUnavailableError, is_end
from soong.shared.toolsets.mcp.elicitation import CallElicitations, current
from soong.shared.toolsets.mcp.intake import UNREADABLE, native_code, raw_result
from soong.shared.toolsets.mcp.pool import McpServers

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT


MAX_BLOCKS: Final = 1_000
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,60}", re.ASCII)
_ENDINGS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "audio/wav": "wav"}
_MAX_LINK_CHARS: Final = 2_000
_LINK_PARTS: Final = ("uri", "name", "description", "mimeType")

T = TypeVar("T")

MAX_MESSAGE_CHARS: Final = 2_000
_START_AGAIN_HINT: Final = "the next call starts the server again; look first at what this one has done"
_ANSWERED_HINT: Final = "the call has been made; look at what it has done before you repeat it"


@dataclass(slots=True)
class ResultReader:
    """Reads the content of one call's answer. ``label`` names its artifacts."""

    context: ToolContext
    label: str
    _artifacts: int = 0

    async def result(self, answer: Mapping[str, Any]) -> ToolResult:
        """Return the result of a tool call, of which the server sent this."""
        content = await self.parts(answer.get("content"))
        texts = [block.text for block in content if isinstance(block, TextBlock)]
        structured: Json = answer.get("structuredContent")
        if structured is not None and not _says(texts, structured):
            said = (block for block in content if not isinstance(block, TextBlock) or block.text.strip())
            content = (*said, JsonBlock(structured))
        if answer.get("isError") is True:
            words = "\n".join(texts).strip() or (dump(structured)[:_MAX_LINK_CHARS] if structured is not None else "")
            message = words or "the server reports an error without words"
            failure = ToolFailure(ErrorType.EXECUTION_FAILED, message)
            return ToolResult("", content or (TextBlock(message),), _line(message), structured, error=failure)
        kept = tuple(block for block in content if isinstance(block, ArtifactRef))
        return ToolResult("", content, _line(texts[0] if texts else "") or "done", structured, kept)

    async def parts(self, content: object) -> tuple[ContentBlock, ...]:
        """Return the parts of an answer as content blocks; a list is expected, and one part alone is taken."""
        listed = content if isinstance(content, list) else [] if content is None else [content]
        blocks = [await self._block(each) for each in listed[:MAX_BLOCKS]]
        if len(listed) > MAX_BLOCKS:
            blocks.append(TextBlock(f"[more than {MAX_BLOCKS} parts; the rest is left out]"))
        return tuple(blocks)

    async def _block(self, each: Any) -> ContentBlock:
        if isinstance(each, str):
            return TextBlock(inert_text(each))
        match each:
            case {"type": "text", "text": str(text)}:
                return TextBlock(inert_text(text))
            case {"type": "image" | "audio", "data": str(data)}:
                return await self._bytes(data, each.get("mimeType"), "")
            case {"type": "resource", "resource": resource}:
                return await self.resource(resource)
            case {"type": "resource_link"}:
                named = (inert_text(str(each[key])) for key in _LINK_PARTS if each.get(key))
                return TextBlock(f"resource: {', '.join(named)[:_MAX_LINK_CHARS]}")
            case {"type": "text" | "image" | "audio" | "resource" as kind}:
                return TextBlock(f"[a part of the type {kind!r} without content is left out]")
            case {"type": other}:
                return TextBlock(f"[content of the unknown type {str(other)[:40]!r} is left out]")
        return TextBlock("[a part without a type is left out]")

    async def resource(self, resource: Any) -> ContentBlock:
        """Return the content of a resource: its text, or an artifact of its bytes."""
        match resource:
            case {"text": str(text)}:
                return TextBlock(inert_text(text))
            case {"blob": str(blob)}:
                return await self._bytes(blob, resource.get("mimeType"), str(resource.get("uri") or ""))
        return TextBlock("[a resource without text and without bytes is left out]")

    async def _bytes(self, encoded: str, media_type: object, origin: str) -> ContentBlock:
        is_known = isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)
        kind = str(media_type) if is_known else "application/octet-stream"
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return TextBlock(f"[{kind}: the server sent what is not base64]")
        self._artifacts += 1
        name = f"{self.label}-{self._artifacts}.{_ENDINGS.get(kind, 'bin')}"
        try:
            ref = await self.context.store_artifact(data, kind, name)
        except (OSError, SoongError) as error:
            return TextBlock(f"[{kind}, {len(data)} bytes: it could not be stored: {error}]")
        about = f" of {inert_text(origin)[:_MAX_LINK_CHARS]}" if origin else ""
        return ref if ref is not None else TextBlock(f"[{kind}, {len(data)} bytes{about}]")


def _says(texts: list[str], structured: Json) -> bool:
    """Say whether the text of an answer is its structured content: as JSON, or as the words of its only field. Servers
    wrap what is not an object as ``{"result": …}``, and give a list as one text for each item.
    """
    meant = [structured]
    if isinstance(structured, Mapping) and set(structured) == {"result"}:
        meant.append(structured["result"])
    parsed = [_parsed(text) for text in texts]
    return any(said in meant for said in (*texts, *parsed, texts, parsed))


def _parsed(text: str) -> Json:
    try:
        parsed: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parsed


def _line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]


async def call_server_tool(
    servers: McpServers, server_id: str, native: str, definition: str, context: ToolContext, call_input: JsonObject
) -> ToolResult:
    """Call a tool by its native name, if it still has that ``definition``.
    Raises: ToolError, the server is not there, the tool has changed or gone, or the call failed.
    """

    async def call(connection: ServerConnection) -> ToolResult:
        _hold_to_definition(connection, native, definition)
        answer = await connection.client.call_tool(
            native, dict(call_input), progress_callback=_progress_of(context.progress)
        )
        result = await ResultReader(context, f"{server_id}-{context.tool_call_id}").result(raw_result(answer))
        # A server may repeat the tokens of the login by which it was called.
        return redacted(result, redactor(connection.secrets)) if connection.secrets else result

    return await with_server(servers, server_id, context, call)


async def with_server(
    servers: McpServers, server_id: str, context: ToolContext, use: Callable[[ServerConnection], Awaitable[T]]
) -> T:
    """Use a server for a call, and name what goes wrong.
    Raises: ToolError, ``server_unavailable``, or what the server answered.
    """
    try:
        async with servers.connected(server_id, context.run_dirs.project) as connection:
            asking = CallElicitations(server_id, connection.config, context)
            connection.calls.add(asking)
            refused: list[str] = []
            try:
                with current(asking), refusals(refused):
                    return await _after_pages(asking, lambda: use(connection))
            except (ToolError, ServerUnavailableError):
                raise
            except Exception as error:
                if refused:
                    raise ToolError(ErrorType.SERVER_UNAVAILABLE, refused[-1]) from error
                raise _failure(error, connection, asking.declined) from error
            finally:
                connection.calls.discard(asking)
                await asking.close()
    except ServerUnavailableError as error:
        raise ToolError(ErrorType.SERVER_UNAVAILABLE, str(error)) from error


async def _after_pages(asking: CallElicitations, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call; repeat it after a yes to each page if the server first wants a person there (MCP-01.k)."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import URL_ELICITATION_REQUIRED

    try:
        return await call()
    except MCPError as error:
        if error.error.code != URL_ELICITATION_REQUIRED or not await asking.are_pages_opened(error.error.data):
            raise
    return await call()


def _failure(error: Exception, connection: ServerConnection, declined: list[str]) -> ToolError:
    """Return the named error of a call that the SDK or the server refused."""
    from mcp.client import InputRequiredRoundsExceededError
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, URL_ELICITATION_REQUIRED

    server = connection.server_id
    if connection.is_over or is_end(error):
        connection.end()
        problem = f"the connection to the MCP server {server!r} ended during the call; what it did is unknown"
        return ToolError(ErrorType.SERVER_UNAVAILABLE, problem, hint=_START_AGAIN_HINT)
    if isinstance(error, InputRequiredRoundsExceededError):
        return ToolError(ErrorType.EXECUTION_FAILED, f"the MCP server {server!r} keeps asking for input: {error}")
    if not isinstance(error, MCPError):
        words = words_of(error)[:MAX_MESSAGE_CHARS]
        return ToolError(ErrorType.INVALID_OUTPUT, f"the MCP server {server!r} answered what is not MCP: {words}")
    words = inert_text(error.error.message)[:MAX_MESSAGE_CHARS]
    match native_code(error.error.code):
        case _ if error.error.code == UNREADABLE:
            return ToolError(ErrorType.INVALID_OUTPUT, f"the MCP server {server!r} {words}", hint=_ANSWERED_HINT)
        case _ if error.error.code == CONNECTION_CLOSED:  # over HTTP, where each answer has its own connection
            problem = f"the answer of the MCP server {server!r} was cut off; what it did is unknown: {words}"
            return ToolError(ErrorType.EXECUTION_FAILED, problem)
        case code if code == INVALID_PARAMS:
            return ToolError(ErrorType.INVALID_INPUT, words)
        case code if code == URL_ELICITATION_REQUIRED or declined:
            why = "needs a person's input and got none" if declined else "still wants a page opened after a yes"
            problem = f"the MCP server {server!r} {why}: {words}"
            return ToolError(ErrorType.ELICITATION_DECLINED, problem)
        case code:
            return ToolError(ErrorType.EXECUTION_FAILED, words, details={"code": code})


def _hold_to_definition(connection: ServerConnection, native: str, definition: str) -> None:
    """Refuse a tool that is no longer what the run was shown and permission was given for.
    Raises: ToolError, it has gone or changed.
    """
    snapshot = connection.snapshot
    found = None if snapshot is None else next((tool for tool in snapshot.tools if tool.name == native), None)
    if snapshot is None or found is None:
        problem = f"the MCP server {connection.server_id!r} has no tool {native!r} any more"
        raise ToolError(ErrorType.EXECUTION_FAILED, problem, hint="a run that starts now gets the tools of now")
    now = snapshot.definition_of(found)
    if now != definition:
        problem = f"the MCP server has changed {native!r} since this run began (was {definition}, is {now})"
        raise ToolError(ErrorType.EXECUTION_FAILED, problem, hint="a run that starts now gets the new definition")


def _progress_of(call: Progress) -> "ProgressFnT":
    async def report(progress: float, total: float | None, message: str | None) -> None:
        amount = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
        data: dict[str, Json] = {"progress": progress} if total is None else {"progress": progress, "total": total}
        await call.report(inert_text(message) if message else amount, data)

    return report
