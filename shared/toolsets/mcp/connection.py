"""One connection to one server, for one project: a task of its own opens it, keeps it and closes it.

The SDK's transports are made of task groups, which must be left by the task that entered them. So nobody but
:meth:`ServerConnection._own` enters or leaves one; calls of other tasks only use the session.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.foreign import words_of
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.jsontext import dump
from soong.shared.core.log import get_logger
from soong.shared.core.program_config import OWN_ID, McpServerConfig
from soong.shared.core.secret_values import resolved
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_program
from soong.shared.toolsets.mcp.catalogue import FOLDER, ServerSnapshot, ToolExclusion, config_digest, sound_tools
from soong.shared.toolsets.mcp.elicitation import CallElicitations, answer_of
from soong.shared.toolsets.mcp.intake import cursor_of, raw_result

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp_types import ElicitResult, ListRootsResult

    from soong.shared.toolsets.mcp.login_auth import LoginAuth
    from soong.shared.toolsets.mcp.transport import StdioPipes

log = get_logger(__name__)

MAX_PAGES: Final = 100
MAX_ENTRIES: Final = 10_000
_STATELESS: Final = frozenset({"2026-07-28"})
_ENDED: Final = "Connection closed"
"""The SDK's words for the end of the transport. Other words under the same code are about one answer over HTTP."""


class ServerUnavailableError(SoongError):
    """A server could not be reached, or its connection ended."""


class ServerSetup(Value):
    """The process's parts for a connection. ``commands_env`` and ``secret_env`` are those of ``[commands]``."""

    clock: Clock
    commands_env: tuple[str, ...] = ()
    secret_env: tuple[str, ...] = ()
    home: Path | None = None
    authorized: "Callable[[str, McpServerConfig], LoginAuth | None]" = lambda _server, _config: None
    """Returns the login that requests to a server over HTTP carry, or None."""

    @property
    def scratch(self) -> Path:
        """A folder with nothing of anybody's in it, for a server that is only asked what it offers."""
        folder = Path(tempfile.gettempdir()) if self.home is None else self.home / FOLDER / "empty"
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder
        return Path(tempfile.gettempdir())


@dataclass(slots=True)
class ServerConnection:
    """A server that is up, or coming up. ``users`` counts the calls that use it; the pool that counts owns its life."""

    server_id: str
    config: McpServerConfig
    project: Path
    setup: ServerSetup
    on_snapshot: Callable[[ServerSnapshot], None]
    users: int = 0
    idle_since_s: float = 0.0
    snapshot: ServerSnapshot | None = None
    calls: set[CallElicitations] = field(default_factory=set)
    """The elicitations of the calls that are under way."""
    _client: "Client | None" = None
    _pipes: "StdioPipes | None" = None
    _login: "LoginAuth | None" = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _stale: asyncio.Event = field(default_factory=asyncio.Event)
    _owner: "asyncio.Task[None] | None" = None
    _opened: "asyncio.Future[None] | None" = None

    async def open(self) -> None:
        """Wait until the server has answered; the first caller starts it, the others wait for the same.
        Raises: ServerUnavailableError, it cannot be started or does not answer.
        """
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._own(self._opened), name=f"mcp {self.server_id}")
        await asyncio.shield(self._opened)

    @property
    def client(self) -> "Client":
        """The SDK's client. Raises: ServerUnavailableError."""
        if self._client is None or self._over.is_set():
            raise ServerUnavailableError(f"the connection to the MCP server {self.server_id!r} has ended")
        return self._client

    @property
    def is_over(self) -> bool:
        return self._over.is_set() or (self._owner is not None and self._owner.done())

    @property
    def login_problem(self) -> str:
        """Why the server did not take the last request: a login that a person has to make. Empty when it did."""
        return "" if self._login is None else self._login.problem

    @property
    def secrets(self) -> tuple[str, ...]:
        return () if self._login is None else self._login.secrets

    @property
    def pid(self) -> int:
        """The process that keeps the server; 0 for one over HTTP."""
        return 0 if self._pipes is None else self._pipes.pid

    def end(self) -> None:
        """Have it closed soon; calls under way end as failed."""
        self._over.set()

    async def close(self) -> None:
        """Close it and wait for that; nothing of the server lives on."""
        self.end()
        if self._owner is None:
            return
        done, _ = await asyncio.wait({self._owner}, timeout=timing.PATIENCE_S)
        if not done:
            log.warning("mcp_server_not_closed", server=self.server_id)
            self._owner.cancel()

    # -- the owner of the transport
    async def _own(self, opened: "asyncio.Future[None]") -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self.config.start_timeout_s):
                    client = await stack.enter_async_context(await self._made_client())
                    # Results are held to a schema by the pipeline: one of a server's patterns could run for years.
                    setattr(client.session, "validate_tool_result", _any_result)  # noqa: B010
                    await self._look(client)
                self._client = client
                opened.set_result(None)
                await self._serve(client)
        except Exception as error:  # noqa: BLE001  # the edge to a foreign program and its SDK
            self._over.set()
            if not opened.done():
                opened.set_exception(self._unavailable(error))
            else:
                log.info("mcp_server_ended", server=self.server_id, error=words_of(innermost(error))[:300])
        finally:
            self._over.set()
            self._client = None
            if not opened.done():
                opened.set_exception(ServerUnavailableError(f"the MCP server {self.server_id!r} was stopped"))
            opened.exception()  # read here, as its waiters may have left

    async def _serve(self, client: "Client") -> None:
        """Keep the connection until it is over; read the offer again when the server reports a change."""
        watching = asyncio.create_task(self._watch(client))
        try:
            while not self._over.is_set():
                waiting = [asyncio.ensure_future(event.wait()) for event in (self._over, self._stale)]
                try:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in waiting:
                        each.cancel()
                if self._stale.is_set() and not self._over.is_set():
                    self._stale.clear()
                    await self._look_again(client)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timing.POLL_ROWS_S):
                            await self._over.wait()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await watching

    async def _look_again(self, client: "Client") -> None:
        """Take what is offered now; a server that refuses to say, such as one whose login has ended, answers calls."""
        from mcp.shared.exceptions import MCPError

        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                await self._look(client)
        except (MCPError, TimeoutError) as error:
            if is_end(error):
                raise
            log.info("mcp_tools_not_listed", server=self.server_id, error=words_of(error)[:300])

    async def _watch(self, client: "Client") -> None:
        """Listen for changes on the stateless wire, on which a server notifies only listeners."""
        from mcp.client.subscriptions import SubscriptionLost

        tools = client.server_capabilities.tools
        if client.protocol_version not in _STATELESS or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    self._stale.set()  # changes before this subscription were not reported
                    async for _event in events:
                        self._stale.set()
            except SubscriptionLost:
                log.info("mcp_server_stopped_telling", server=self.server_id)
            except Exception as error:  # noqa: BLE001  # a server that does not let us listen still answers calls
                log.info("mcp_server_tells_no_changes", server=self.server_id, error=words_of(error)[:300])
                return
            await asyncio.sleep(timing.AWAY_S)

    async def _look(self, client: "Client") -> None:
        capabilities = client.server_capabilities
        listed, cut = ([], "") if capabilities.tools is None else await listed_pages(client.list_tools, "tools")
        tools, left_out = sound_tools(listed)
        if cut:
            left_out = (*left_out, ToolExclusion("more pages", cut))
        info = client.server_info
        is_own = info is not None and info.name == OWN_ID
        if self.config.protocol == "stateless" and client.protocol_version not in _STATELESS:
            raise ServerUnavailableError(f"it speaks {client.protocol_version} and not the stateless wire")
        self.snapshot = ServerSnapshot(
            server_id=self.server_id,
            config=config_digest(self.config),
            seen_us=self.setup.clock.now_us(),
            problem="it is Soong's own server, whose tools no agent has" if is_own else "",
            protocol=client.protocol_version,
            name="" if info is None else info.name[:200],
            version="" if info is None else info.version[:100],
            has_resources=capabilities.resources is not None,
            tools=() if is_own else tools,
            left_out=() if is_own else left_out,
        )
        self.on_snapshot(self.snapshot)

    # -- what the client is made of
    async def _made_client(self) -> "Client":
        from importlib.metadata import version

        from mcp.client import Client
        from mcp_types import Implementation

        client: Client = Client(
            await self._transport(),
            mode="legacy" if self.config.protocol == "handshake" else "auto",
            client_info=Implementation(name=DISTRIBUTION, version=version(DISTRIBUTION)),
            list_roots_callback=self._roots,
            elicitation_callback=self._elicited,
            message_handler=self._heard,
            cache=None,
        )
        return client

    async def _transport(self) -> Any:
        from soong.shared.toolsets.mcp.transport import StdioPipes, http_transport

        place = f"config.toml: mcp.servers.{self.server_id}"
        if self.config.url:
            headers = resolved(self.config.headers, f"{place}.headers")
            self._login = auth = self.setup.authorized(self.server_id, self.config)
            # On the handshake wire a server asks a person within the answer of the call, which stands still then.
            return http_transport(self.config.url, headers, auth, self.config.timeout_s + timing.PERSON_LIMIT_S + 5.0)
        env = {
            **child_environment(self.setup.commands_env, self.setup.secret_env, untrusted=(self.project,)),
            **resolved(self.config.env, f"{place}.env"),
        }
        program = find_program(expanded(self.config.command), env, cwd=Path("/"), untrusted=(self.project,))
        self._pipes = StdioPipes((str(program), *self.config.args), self.project, env, self._over.set)
        return self._pipes.transport()

    async def _roots(self, context: object) -> "ListRootsResult":
        from mcp_types import ListRootsResult, Root
        from pydantic import FileUrl

        del context
        return ListRootsResult(roots=[Root(uri=FileUrl(self.project.as_uri()), name=self.project.name)])

    async def _elicited(self, context: object, params: object) -> "ElicitResult":
        del context
        return await answer_of(self.calls, params)

    async def _heard(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._stale.set()

    def _unavailable(self, error: Exception) -> ServerUnavailableError:
        words = "" if self._pipes is None else self._pipes.words
        about = f"; it said last: {words[-1_000:]}" if words else ""
        if self.login_problem:
            return ServerUnavailableError(self.login_problem)
        subject = f"the MCP server {self.server_id!r}"
        match error:
            case TimeoutError():
                problem = f"did not answer within {self.config.start_timeout_s:g} s (start_timeout_s)"
            case InvalidConfigError():
                return ServerUnavailableError(str(error))
            case PathRefusedError():
                problem = f"cannot be started: {error}"
            case OSError():
                problem = f"cannot be started: {error.strerror or words_of(error)}"
            case _:
                problem = f"cannot be used: {words_of(innermost(error))[:500]}"
        return ServerUnavailableError(f"{subject} {problem}{about}")


async def listed_pages(ask: Callable[..., Awaitable[Any]], name: str) -> tuple[list[Any], str]:
    """Return what a server lists, page by page and in its own words, and why the rest is left out, if any is.
    Raises: MCPError, the first page was refused.
    """
    from mcp.shared.exceptions import MCPError

    listed: list[Any] = []
    seen: set[str] = set()
    cursor = ""
    for _ in range(MAX_PAGES):
        try:
            page = raw_result(await ask(cursor=cursor or None, cache_mode="bypass"))
        except MCPError as error:
            if not cursor or is_end(error):
                raise
            return listed, f"the server refuses them: {words_of(error)[:300]}"
        found = page.get(name)
        entries = {dump(entry): entry for entry in (found[:MAX_ENTRIES] if isinstance(found, list) else ())}
        if entries and seen >= entries.keys():
            return listed, "the server lists the same entries again"
        listed += [entry for text, entry in entries.items() if text not in seen]
        seen |= entries.keys()
        before, cursor = cursor, cursor_of(page)
        if not cursor:
            return listed, "" if isinstance(found, list) else f"the page has no list of {name}"
        if cursor == before:
            return listed, "the server names the same page as the next one"
        if len(listed) >= MAX_ENTRIES:
            return listed, f"at most {MAX_ENTRIES} entries are read"
    return listed, f"at most {MAX_PAGES} pages are read"


def is_end(error: Exception) -> bool:
    """Say whether the SDK reports that the transport has ended. A server's own code for that does not look so."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    return isinstance(error, MCPError) and (error.error.code, error.error.message) == (CONNECTION_CLOSED, _ENDED)


def expanded(command: str) -> str:
    """Return a program as it is looked up: ``~/`` is the home of the user."""
    return str(Path(command).expanduser()) if command.startswith("~/") else command


def innermost(error: BaseException) -> BaseException:
    """Return the first error of nested groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


async def _any_result(_name: str, _result: object) -> None:
    return None
