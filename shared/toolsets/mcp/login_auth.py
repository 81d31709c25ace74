"""Requests to an MCP server under a stored login: its token added, renewed when it ends, and sent nowhere else.

A worker never logs in: that takes a person. Without a login, or if it cannot be renewed, the request fails with the
command that a person runs. Imports the SDK: only a connection does.
"""

import asyncio
import logging
import shlex
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.log import get_logger
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.secret_values import resolved
from soong.shared.core.timing import Clock
from soong.shared.sandbox.hosts import AddressClass, reach_of
from soong.shared.sandbox.redact import inert_text
from soong.shared.toolsets.mcp.catalogue import LoginFolder, ServerLogin, note_refusal
from soong.shared.toolsets.mcp.http_answers import BoundedStream

log = get_logger(__name__)

RESOURCE_REVISION: Final = "2025-06-18"
"""Since this revision a token is asked for one resource (RFC 8707)."""
BASIC: Final = "client_secret_basic"
MAX_ANSWER_BYTES: Final = 48 * 1024
"""Size of one answer of an authorization server: four of them are kept in the file of a login."""
UNPACKED: Final = {"Accept-Encoding": "identity"}
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class LoginRefusedError(SoongError):
    """A login could not be made, or an address must not get a secret."""


class LoginAuth(httpx2.Auth):
    """Adds the login of one server to the requests of one connection. ``problem`` is why the last one was refused."""

    def __init__(self, server_id: str, config: McpServerConfig, folder: LoginFolder, clock: Clock) -> None:
        self._server_id = server_id
        self._config = config
        self._folder = folder
        self._clock = clock
        self._stamp: object = None
        self._login: ServerLogin | None = None
        self.problem = ""

    @property
    def secrets(self) -> tuple[str, ...]:
        tokens = {} if self._login is None else self._login.tokens
        return tuple(str(tokens[name]) for name in ("access_token", "refresh_token") if tokens.get(name))

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See :class:`httpx2.Auth`. A request that the server refuses fails alone: others use the connection too."""
        if _origin(request.url) != _origin(httpx2.URL(self._config.url)):
            yield request  # a token goes to the server that it was issued for, and nowhere else
            return
        login = self._current()
        if login is not None and login.has_expired(self._clock.now_us() + round(timing.PATIENCE_S * 1_000_000)):
            login = await self._renewed(login) or login
        _authorize(request, login)
        response = yield request
        if response.status_code == httpx2.codes.UNAUTHORIZED and login is not None:
            bound(response)  # it is read before the next request
            renewed = await self._renewed(login)
            if renewed is not None:
                _authorize(request, renewed)
                response = yield request
        self.problem = self._refusal(response, login)
        if self.problem:
            note_refusal(self.problem)

    def _refusal(self, response: httpx2.Response, login: ServerLogin | None) -> str:
        """Say what a person has to do; empty when the server has taken the request."""
        command = f"soong mcp login {self._server_id}"
        if response.status_code == httpx2.codes.UNAUTHORIZED:
            state = "wants a login" if login is None else "does not take the login that is stored"
            if self._config.headers:
                state += ", or does not take the headers of its section"
            return f"the MCP server {self._server_id!r} {state}; run `{command}`"
        if response.status_code == httpx2.codes.FORBIDDEN:
            if extract_field_from_www_auth(response, "error") != "insufficient_scope":
                return ""
            scope = inert_text(extract_field_from_www_auth(response, "scope") or "")[:500]
            wanted = (
                f"the rights {scope!r}; run `{command} --scope {shlex.quote(scope)}`"
                if scope
                else f"more rights; run `{command}`"
            )
            return f"the MCP server {self._server_id!r} wants {wanted}"
        return ""

    def _current(self) -> ServerLogin | None:
        stamp = self._folder.stamp(self._server_id)
        if stamp != self._stamp:
            self._login, self._stamp = self._folder.read(self._server_id, self._config.url), stamp
        return None if self._login is None or self._login.is_ended else self._login

    async def _renewed(self, old: ServerLogin) -> ServerLogin | None:
        """Return a newer login: another process's, or one renewed here; None when there is none."""
        try:
            async with asyncio.timeout(timing.PATIENCE_S):
                while True:
                    with self._folder.renewing(self._server_id) as is_ours:
                        if is_ours:
                            return await self._renewed_here(old)
                    await asyncio.sleep(timing.POLL_PROCESS_S)
        except Exception as error:  # noqa: BLE001  # the edge to foreign servers and the SDK
            log.warning("mcp_login_not_renewed", server=self._server_id, error=type(error).__name__)
            return None

    async def _renewed_here(self, old: ServerLogin) -> ServerLogin | None:
        now = self._current()
        if now is None or now.access_token != old.access_token:
            return now  # another process has renewed it, or a person has logged out or in
        if not now.can_be_renewed:
            return None
        renewal = _Renewal(now, self._config, self._server_id, self._clock)
        kept = await renewal.made()
        if kept is not None:
            self._folder.write(kept)
            self._login, self._stamp = kept, self._folder.stamp(self._server_id)
            log.info("mcp_login_ended" if kept.is_ended else "mcp_login_renewed", server=self._server_id)
        return None if kept is None or kept.is_ended else kept


class _Renewal(OAuthClientProvider):
    """The SDK's refresh of a token (RFC 6749, 6), for a login that is stored."""

    def __init__(self, login: ServerLogin, config: McpServerConfig, server_id: str, clock: Clock) -> None:
        self._kept: OAuthToken | None = None
        self._of = login
        self._clock = clock
        logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL + 1)  # it logs answers, which hold tokens
        super().__init__(config.url, OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/")]), self)
        self.context.client_info = client_of(login.client, config, server_id)
        self.context.current_tokens = OAuthToken.model_validate(login.tokens)
        if login.metadata is not None:
            self.context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
        if login.resource is not None:
            self.context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
        self.context.protocol_version = RESOURCE_REVISION

    async def made(self) -> ServerLogin | None:
        """Return the login as it is to be kept now; None when nothing is known of its end."""
        request = await self._refresh_token()
        await check_reach(request.url, self.context.server_url)
        async with bounded_client(timing.PATIENCE_S) as client:
            response = await client.send(request)
        if response.status_code in (httpx2.codes.BAD_REQUEST, httpx2.codes.UNAUTHORIZED):
            return self._of.model_copy(update={"is_ended": True})
        if not await self._handle_refresh_response(response) or self._kept is None:
            return None
        tokens = self._kept
        return self._of.model_copy(
            update={"tokens": tokens.model_dump(mode="json"), "expires_us": expiry_of(tokens, self._clock)}
        )

    # -- the SDK's storage: the login is taken from here
    async def get_tokens(self) -> OAuthToken | None:
        return self.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._kept = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.context.client_info = client_info


def client_of(stored: dict[str, Any], config: McpServerConfig, server_id: str) -> OAuthClientInformationFull:
    """Return the client of a login; the secret of a preregistered one is a reference and stored nowhere.
    Raises: InvalidConfigError, a reference in the configuration leads to nothing.
    """
    client = OAuthClientInformationFull.model_validate(stored)
    if config.oauth is not None and config.oauth.client_secret and client.client_id == config.oauth.client_id:
        place = f"config.toml: mcp.servers.{server_id}.oauth"
        client.client_secret = resolved({"client_secret": config.oauth.client_secret}, place)["client_secret"]
    return client


def expiry_of(tokens: OAuthToken, clock: Clock) -> int | None:
    """Return when a token that was issued just now ends, in microseconds; None when it is unknown."""
    return None if tokens.expires_in is None else clock.now_us() + max(0, int(tokens.expires_in)) * 1_000_000


async def check_reach(url: httpx2.URL, server_url: str, *, is_outside: bool = False) -> None:
    """Refuse an address that is not https, unless it and the MCP server are on the loopback, or that leads inside while
    the server is outside.

    A server names its authorization server, so it could have this machine ask its neighbours. ``is_outside``: it has
    answered from outside, whatever its name leads to by now. A name that is not resolved here (a proxy resolves it) is
    left to the connection. One that changes in between leads to a host without the certificate, which gets no request.
    Raises: LoginRefusedError, names the host.
    """
    own = httpx2.URL(server_url).host
    is_local = url.host in _LOOPBACK and own in _LOOPBACK
    if url.scheme != "https" and not is_local:
        raise LoginRefusedError(f"{url.scheme}://{inert_text(url.host)} is not https, so it gets no login")
    reached = await _reached(url.host) if url.host != own else set()
    is_near = AddressClass.NEAR in reached and (is_outside or AddressClass.PUBLIC in await _reached(own))
    if is_near or AddressClass.SPECIAL in reached:
        raise LoginRefusedError(f"{inert_text(url.host)} leads to a private address, and the MCP server is outside")


def came_from_outside(response: httpx2.Response) -> bool:
    stream = response.extensions.get("network_stream")
    peer = None if stream is None else stream.get_extra_info("server_addr")
    return peer is not None and reach_of(str(peer[0])) is AddressClass.PUBLIC


async def _reached(host: str) -> set[AddressClass]:
    """Return where a host leads; PUBLIC where it cannot be resolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {AddressClass.PUBLIC}
    return {reach_of(str(address[0])) for *_, address in found}


def bounded_client(timeout_s: float, auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """Return a client for requests to authorization servers: it follows no redirect and reads no long answer."""

    async def hold(response: httpx2.Response) -> None:
        bound(response)

    hooks: dict[str, list[Callable[..., Any]]] = {"response": [hold]}
    return httpx2.AsyncClient(timeout=timeout_s, follow_redirects=False, auth=auth, event_hooks=hooks, headers=UNPACKED)


def bound(response: httpx2.Response) -> None:
    """Let no more of an answer be read than a document of an authorization server has.
    Raises: LoginRefusedError, here, when it is packed; otherwise when too much of it is read.
    """
    if response.headers.get("Content-Encoding", "") not in ("", "identity"):
        raise LoginRefusedError(f"{inert_text(response.url.host)} sent a packed answer, which was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    problem = f"{inert_text(response.url.host)} sent an answer of more than {MAX_ANSWER_BYTES} bytes"
    response.stream = BoundedStream(response.stream, MAX_ANSWER_BYTES, lambda: LoginRefusedError(problem))


def _authorize(request: httpx2.Request, login: ServerLogin | None) -> None:
    if login is not None:
        request.headers["Authorization"] = f"Bearer {login.access_token}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
