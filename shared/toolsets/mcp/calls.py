"""One call of a server's tool: progress reported, cancellation passed on, and every way to fail named (MCP-01.f).

A call that is cancelled or out of time leaves the SDK's request, which tells the server so.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.definition import Progress, ToolContext
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.toolsets.mcp.connection import ServerConnection, ServerUnavailableError, is_end
from soong.shared.toolsets.mcp.elicitation import CallElicitations, current
from soong.shared.toolsets.mcp.intake import UNREADABLE, native_code, raw_result
from soong.shared.toolsets.mcp.logins import refusals
from soong.shared.toolsets.mcp.pool import McpServers
from soong.shared.toolsets.mcp.results import ResultReader, without_secrets

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

T = TypeVar("T")

MAX_MESSAGE_CHARS: Final = 2_000
_START_AGAIN_HINT: Final = "the next call starts the server again; look first at what this one has done"
_ANSWERED_HINT: Final = "the call has been made; look at what it has done before you repeat it"


async def call_server_tool(
    servers: McpServers,
    server_id: str,
    native: str,
    definition: str,
    context: ToolContext,
    call_input: JsonObject,
) -> ToolResult:
    """Call a tool by its native name, if it is still what ``definition`` says.

    Raises:
        ToolError: the server is not there, the tool has changed or gone, or the call failed.
    """

    async def call(connection: ServerConnection) -> ToolResult:
        _hold_to_definition(connection, native, definition)
        answer = await connection.client.call_tool(
            native, dict(call_input), progress_callback=_progress_of(context.progress)
        )
        result = await ResultReader(context, f"{server_id}-{context.tool_call_id}").result(raw_result(answer))
        return without_secrets(result, connection.secrets)

    return await with_server(servers, server_id, context, call)


async def with_server(
    servers: McpServers, server_id: str, context: ToolContext, use: Callable[[ServerConnection], Awaitable[T]]
) -> T:
    """Use a server for a call, and name what goes wrong.

    Raises:
        ToolError: ``server_unavailable``, or what the server answered.
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
    """Make a call; where the server first wants a person at a page, once more after a yes to each (MCP-01.k)."""
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

    Raises:
        ToolError: it has gone or changed.
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
