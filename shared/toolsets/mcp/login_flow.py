"""Logging in at an MCP server over HTTP, by a person: the SDK's authorization code flow with PKCE (RFC 6749, 7636).

The SDK discovers the authorization server (RFC 9728, 8414), registers this client (RFC 7591) or uses one that the
configuration names, and exchanges the code. Owned here: how the person gets there and back, and what may get a secret.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import union_scopes
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from soong.shared.core import timing
from soong.shared.core.foreign import words_of
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.secret_values import resolved
from soong.shared.core.timing import Clock
from soong.shared.sandbox.redact import inert_text
from soong.shared.toolsets.mcp.catalogue import ServerLogin
from soong.shared.toolsets.mcp.connection import innermost
from soong.shared.toolsets.mcp.login_auth import (
    RESOURCE_REVISION,
    UNPACKED,
    LoginRefusedError,
    bound,
    came_from_outside,
    check_reach,
    client_of,
    expiry_of,
)

PATH: Final = "/callback"
MAX_HEAD_BYTES: Final = 16 * 1024
_PAGE: Final = "<!doctype html><meta charset=utf-8><title>Soong</title><p>{}</p>"


@dataclass(slots=True)
class RedirectReceiver(ABC):
    """The way back of a person: the address for the authorization server, and the answer it carries."""

    port: int
    _state: str = field(default="", init=False)

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def expect(self, state: str) -> None:
        """Take the redirect that carries ``state``, and no other. Called before the person is sent away."""
        self._state = state

    @abstractmethod
    async def result(self) -> AuthorizationCodeResult:
        """Wait for that redirect. Raises: LoginRefusedError."""


@dataclass(slots=True)
class LoopbackReceiver(RedirectReceiver):
    """Receives the redirect of the person's browser on this machine (RFC 8252, 7.3). Made by :meth:`listening`."""

    _came: "asyncio.Future[AuthorizationCodeResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @classmethod
    @asynccontextmanager
    async def listening(cls, port: int = 0) -> "AsyncIterator[LoopbackReceiver]":
        """Listen on a port of the loopback, by default one that is free. Raises: OSError."""
        receiver = cls(port)
        server = await asyncio.start_server(receiver._serve, "127.0.0.1", port, limit=MAX_HEAD_BYTES)
        receiver.port = server.sockets[0].getsockname()[1]
        try:
            yield receiver
        finally:
            server.close()

    def expect(self, state: str) -> None:
        """See :class:`RedirectReceiver`. A request without the state is somebody else's, and changes nothing."""
        RedirectReceiver.expect(self, state)
        if self._came.done():  # the server has changed its authorization server meanwhile: another login begins
            self._came = asyncio.get_running_loop().create_future()

    async def result(self) -> AuthorizationCodeResult:
        try:
            async with asyncio.timeout(timing.PERSON_LIMIT_S):
                return await asyncio.shield(self._came)
        except TimeoutError as error:
            raise LoginRefusedError(
                f"the browser did not return from the login within {timing.PERSON_LIMIT_S:g} s"
            ) from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, text = "404 Not Found", "There is nothing here."
        try:
            async with asyncio.timeout(timing.EXCHANGE_LIMIT_S):
                line = (await reader.readuntil(b"\r\n\r\n")).decode("ascii", "replace").split(" ")
            if len(line) > 1 and line[0] == "GET" and urlsplit(line[1]).path == PATH:
                status, text = self._take(line[1])
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, text = "400 Bad Request", "This is not a request."
        body = _PAGE.format(text).encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        writer.close()

    def _take(self, target: str) -> tuple[str, str]:
        try:
            found = redirect_of(target, self._state)
        except WrongStateError:
            return "400 Bad Request", "This is not the answer that Soong waits for."
        except LoginRefusedError as error:
            if not self._came.done():
                self._came.set_exception(error)
            return "200 OK", "The login was refused. You can close this page."
        if not self._came.done():
            self._came.set_result(found)
        return "200 OK", "You are logged in. You can close this page."


class PastedReceiver(RedirectReceiver):
    """Gets the address of the page at which the person's browser, perhaps on another machine, has ended. Nobody listens
    there: the browser shows an error, and the address that is pasted.
    """

    def __init__(self, read: Callable[[], Awaitable[str]], port: int = 0) -> None:
        super().__init__(port or 53682)
        self._read = read

    async def result(self) -> AuthorizationCodeResult:
        return redirect_of((await self._read()).strip(), self._state)


class WrongStateError(LoginRefusedError):
    """A redirect that does not belong to this login."""


def redirect_of(target: str, state: str) -> AuthorizationCodeResult:
    """Read the redirect of an authorization server (RFC 6749, 4.1.2).
    Raises: WrongStateError, it is the answer to something else; LoginRefusedError, the authorization server refused.
    """
    given = {name: values[-1] for name, values in parse_qs(urlsplit(target).query).items()}
    if not state or not secrets.compare_digest(given.get("state", "").encode(), state.encode()):
        raise WrongStateError("that address does not belong to this login; begin again with the page that was shown")
    if "error" in given:
        words = " ".join(filter(None, (given["error"], given.get("error_description"))))
        raise LoginRefusedError(f"the authorization server refused: {inert_text(words)[:500]}")
    return AuthorizationCodeResult(code=given.get("code", ""), state=given["state"], iss=given.get("iss"))


async def log_in(
    server_id: str,
    config: McpServerConfig,
    receiver: RedirectReceiver,
    show: Callable[[str], Awaitable[None]],
    clock: Clock,
    *,
    scope: str = "",
) -> ServerLogin:
    """Log in at a server and return the login; ``show`` takes the person to a page.
    Raises: LoginRefusedError, it was refused, or the server asks for no login; InvalidConfigError, a reference in the
    configuration leads to nothing.
    """
    flow = _Flow(server_id, config, receiver, show, scope)
    logging.getLogger("mcp.client").setLevel(logging.CRITICAL + 1)  # it logs answers of authorization servers
    headers = {**UNPACKED, **resolved(config.headers, f"config.toml: mcp.servers.{server_id}.headers")}
    mode = "legacy" if config.protocol == "handshake" else "auto"
    try:
        await check_reach(httpx2.URL(config.url), config.url)
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [flow.check], "response": [flow.hold]}
        async with (
            httpx2.AsyncClient(headers=headers, auth=flow, event_hooks=hooks, timeout=config.start_timeout_s) as web,
            Client(streamable_http_client(config.url, http_client=web), mode=mode, cache=None) as client,
        ):
            if client.server_capabilities.tools is not None:
                await client.list_tools()
    except Exception as error:  # the edge to foreign servers and the SDK
        if flow.tokens is None:
            problem = flow.problem if flow.problem is not None else innermost(error)
            words = str(problem) if isinstance(problem, LoginRefusedError) else words_of(problem)
            raise LoginRefusedError(f"the login at {server_id!r} failed: {inert_text(words)[:500]}") from error
    return flow.login(clock)


class _Flow(OAuthClientProvider):
    """The SDK's flow, for one login: its findings are kept, and its first error."""

    def __init__(
        self,
        server_id: str,
        config: McpServerConfig,
        receiver: RedirectReceiver,
        show: Callable[[str], Awaitable[None]],
        scope: str,
    ) -> None:
        self._server_id, self._config = server_id, config
        self._receiver, self._show, self._scope = receiver, show, scope
        self.tokens: OAuthToken | None = None
        self.problem: BaseException | None = None
        self._is_outside = False
        oauth = config.oauth
        client = OAuthClientMetadata(client_name=DISTRIBUTION, redirect_uris=[AnyUrl(receiver.redirect_uri)])
        document = oauth.client_metadata_url if oauth is not None and oauth.client_metadata_url else None
        super().__init__(config.url, client, self, self._go, receiver.result, document)

    def login(self, clock: Clock) -> ServerLogin:
        """Return what is to be kept. Raises: LoginRefusedError."""
        context, tokens = self.context, self.tokens
        if tokens is None or context.client_info is None:
            raise LoginRefusedError(f"the MCP server {self._server_id!r} asked for no login")
        client = context.client_info
        if self._config.oauth is not None and self._config.oauth.client_secret:
            client = client.model_copy(update={"client_secret": None})  # it is referred to
        metadata, resource = context.oauth_metadata, context.protected_resource_metadata
        return ServerLogin(
            server=self._server_id,
            url=self._config.url,
            client=client.model_dump(mode="json", exclude_none=True),
            tokens=tokens.model_dump(mode="json", exclude_none=True),
            metadata=None if metadata is None else metadata.model_dump(mode="json", exclude_none=True),
            resource=None if resource is None else resource.model_dump(mode="json", exclude_none=True),
            expires_us=expiry_of(tokens, clock),
        )

    async def check(self, request: httpx2.Request) -> None:
        """Hold every request of the flow, and the page that a person is shown, to where secrets may go."""
        try:
            await check_reach(request.url, self._config.url, is_outside=self._is_outside)
        except LoginRefusedError as error:
            self.problem = self.problem or error
            raise

    async def hold(self, response: httpx2.Response) -> None:
        """Bound every answer of the flow; those of the MCP server itself are the SDK's to read."""
        own = httpx2.URL(self._config.url)
        self._is_outside |= response.request.url.host == own.host and came_from_outside(response)
        if response.request.url == own and response.status_code != httpx2.codes.UNAUTHORIZED:
            return
        try:
            bound(response)
        except LoginRefusedError as error:
            self.problem = self.problem or error
            raise

    async def _go(self, url: str) -> None:
        await self.check(httpx2.Request("GET", url))
        self._receiver.expect(parse_qs(urlsplit(url).query).get("state", [""])[-1])
        await self._show(url)

    async def _perform_authorization(self) -> httpx2.Request:
        self.context.client_metadata.scope = union_scopes(self.context.client_metadata.scope, self._scope or None)
        self.context.protocol_version = self.context.protocol_version or RESOURCE_REVISION
        return await super()._perform_authorization()

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super()._auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            while True:
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except Exception as error:
            self.problem = self.problem or error
            raise
        finally:
            await flow.aclose()

    # -- the SDK's storage
    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client that the configuration names; one that was registered is made for each login."""
        oauth = self._config.oauth
        if oauth is None or not oauth.client_id:
            return None
        method = oauth.client_auth if oauth.client_secret else "none"
        named = {"client_id": oauth.client_id, "token_endpoint_auth_method": method}
        return client_of({**named, "redirect_uris": [self._receiver.redirect_uri]}, self._config, self._server_id)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.context.client_info = client_info
