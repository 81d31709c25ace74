"""The way in: the checks that every request passes before the application, from outside to inside.

Headers that every response carries; how many requests are held at once; host, origin and path; the token; the body,
read in full within a limit of bytes and of time. A caller without a token is refused before a byte of a body is kept.

Host and Origin are checked against pages in the user's browser (threat 25): a name that an attacker points at us (DNS
rebinding) is not a host of ours, a page of another origin is refused whatever it asks for, and there is no cookie that
it could ride on.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from soong.orchestrator.operations.authentication import Address, Authenticator, Caller, Peers
from soong.orchestrator.operations.context import CALLER, Limits, RequestLimiter
from soong.orchestrator.operations.problems import TOLD, ProblemCode, ProblemError, problem_of
from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import Right

OPEN_PATHS: Final = frozenset({"/", "/api", "/docs", "/v1/health", "/v1/ready", "/v1/openapi.json", "/v1/sign-in"})
"""The paths that need no token: health, the API's description, the console's page, and the way to a token."""
ASSETS: Final = "/console/"
"""The paths of the console's files, which need none either."""
MCP_PATH: Final = "/mcp"
"""The path of MCP. A program of a run is refused here, whatever its token may do."""
_TOLD_OF_APPROVAL: Final = ("/v1/approvals", "/v1/me")
"""The paths whose documents state whether the caller may approve."""
MCP_HEADERS: Final = ("Mcp-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_NAME: Final = re.compile(r"[a-z0-9._-]{1,253}")


class RequestPolicy(Value):
    """``hosts`` are names without ports, lower case; ``origins`` are written out in full (``https://console.example``)."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, allow_hosts: Sequence[str], origins: Sequence[str]) -> "RequestPolicy":
        """Return the borders of a server that is also called by these names, from these pages. Raises: UsageError."""
        for origin in origins:
            parts = urlsplit(origin)
            is_web = parts.scheme in {"http", "https"} and parts.netloc
            if not is_web or origin != f"{parts.scheme}://{parts.netloc}":
                raise UsageError(
                    f"invalid origin {origin!r}: expected scheme://host[:port], for example https://console.example:8443"
                )
        for host in allow_hosts:
            if not _is_name(host):
                raise UsageError(
                    f"invalid host {host!r}: expected a name without scheme and port, for example console.example"
                )
        return cls(LOOPBACK_NAMES | {host.strip("[]").lower() for host in allow_hosts}, frozenset(origins))

    def check(self, scope: Scope) -> bool:
        """Say whether a browser asks whether a page may ask, whose origin is one of ours. Raises: ProblemError."""
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        given = [value for name, value in headers if name == b"host"]
        host = given[0].decode("latin-1").lower() if len(given) == 1 else ""
        name = name_of(host)
        if name is None or name not in self.hosts:
            detail = "this server does not answer for that host; `--allow-host NAME` adds one"
            raise ProblemError(ProblemCode.HOST_NOT_ALLOWED, detail)
        # A person may follow a link to the console's page, as from a mail: it shows nothing by itself.
        if (scope["method"], scope["path"]) != ("GET", "/") or (b"sec-fetch-mode", b"navigate") not in headers:
            self._check_origin(headers, host)
        if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
            detail = "there are no WebSockets here; streams are sent as events"
            raise ProblemError(ProblemCode.UPGRADE_NOT_ALLOWED, detail)
        is_asked = {b"origin", b"access-control-request-method"} <= {name for name, _ in headers}
        return bool(self.origins) and scope["method"] == "OPTIONS" and is_asked

    def _check_origin(self, headers: Sequence[tuple[bytes, bytes]], host: str) -> None:
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        own = {f"http://{host}", f"https://{host}"}
        if any(origin.lower() not in own and origin not in self.origins for origin in origins):
            raise ProblemError(ProblemCode.ORIGIN_NOT_ALLOWED, "pages of that origin may not call this server")
        site = next((value for name, value in headers if name == b"sec-fetch-site"), b"")
        if not origins and site in {b"cross-site", b"same-site"}:
            # A browser says so of a link, an image or a form of another page, which send no Origin.
            raise ProblemError(ProblemCode.ORIGIN_NOT_ALLOWED, "a page of another origin sent the request")


def name_of(host: str) -> str | None:
    """Return the name in a Host header, lower case, without port and brackets; None when it is not a host."""
    found = _HOST.fullmatch(host.lower())
    return None if found is None else found["name"].strip("[]")


def _is_name(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return _NAME.fullmatch(host.lower()) is not None
    return True


_DISGUISED: Final = re.compile(rb"%(?:2e|2f|5c|25|[01][0-9a-f]|7f)", re.IGNORECASE)
_PLAIN_PATH: Final = re.compile(rb"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+")


class Callers(Protocol):
    """Says who sends the requests of a server."""

    async def caller(self, scope: Scope) -> Caller | None:
        """Return who sent a request; None where nobody needs to. Raises: ProblemError."""
        ...


class TokenCallers(Value):
    """The holders of tokens."""

    authenticator: Authenticator
    peers: Peers

    async def caller(self, scope: Scope) -> Caller | None:
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(ASSETS):
            return None
        address = scope["client"][0] if scope.get("client") else ""
        caller = await self.authenticator.caller(scope["headers"], address)
        # The right to approve may matter; looking for a connection's holder costs some 20 ms.
        is_approval = scope["method"] not in {"GET", "HEAD"} or scope["path"].startswith(_TOLD_OF_APPROVAL)
        if scope["path"] == MCP_PATH or (caller.token.allows(Right.APPROVE) and is_approval):
            peer = await self.peers.peer(_address(scope.get("client")), _address(scope.get("server")))
            caller = replace(caller, peer=peer)
        return caller


@dataclass(slots=True)
class EdgeMiddleware:
    """The outermost application; ``inner`` sees only requests that may come in."""

    inner: App
    borders: RequestPolicy | None
    """The hosts and pages that may call; None where no browser reaches: a unix socket has neither."""
    callers: Callers
    limits: Limits
    room: RequestLimiter
    underway: set[asyncio.Timeout] = field(default_factory=set)
    ends_s: float | None = None
    """When what is under way ends, on the loop's clock; None while the server serves."""

    def __post_init__(self) -> None:
        if self.borders is not None and self.borders.origins:
            self.inner = _for_pages(self.inner, sorted(self.borders.origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = _ResponseSender(send)
        try:
            with self.room.taken():
                await self._serve(scope, receive, answer)
        except Exception as error:  # noqa: BLE001  # the edge: whatever failed becomes a problem document
            if scope.get(TOLD):
                return
            problem = problem_of(error)
            if not answer.is_begun:
                await problem.response()(cast(Any, scope), cast(Any, receive), cast(Any, answer.refuse))

    def stop(self) -> None:
        """End what is under way ``stop_s`` from now, each request with an answer of its own."""
        self.ends_s = asyncio.get_running_loop().time() + self.limits.stop_s
        for limit in self.underway:
            limit.reschedule(self.ends_s)

    async def _serve(self, scope: Scope, receive: Receive, answer: "_ResponseSender") -> None:
        """Serve a request. Raises: ProblemError (unavailable) when the server stops and does not wait any longer."""
        limit = asyncio.timeout_at(self.ends_s)
        try:
            async with limit:
                self.underway.add(limit)
                is_preflight = self.borders is not None and self.borders.check(scope)
                raw = scope.get("raw_path") or scope["path"].encode()
                is_plain = _PLAIN_PATH.fullmatch(raw) and not _DISGUISED.search(raw)
                if raw != b"/" and (not is_plain or {b".", b".."} & {*raw.split(b"/")}):
                    # It would mean something else once it is decoded.
                    detail = "the path contains empty segments, dot segments or percent-encoded separators"
                    raise ProblemError(ProblemCode.PATH_NOT_ALLOWED, detail)
                if not is_preflight:
                    scope[CALLER] = await self.callers.caller(scope)
                    receive = await self._read_body(scope, receive)
                await self.inner(scope, receive, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            detail = "the server stops; what was asked for may have been done: look at the rows, then try again"
            raise ProblemError(ProblemCode.UNAVAILABLE, detail, headers={"Retry-After": "2"}) from None
        finally:
            self.underway.discard(limit)

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the full body; return what gives it to the application, and then reports that the caller has left."""
        headers = {name: value for name, value in scope["headers"] if name in {b"content-length", b"transfer-encoding"}}
        if not headers or headers.get(b"content-length") == b"0":
            return receive
        self._check_size(int(headers.get(b"content-length", b"0")))  # its form has been checked by the HTTP parser
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise ProblemError(ProblemCode.INVALID_REQUEST, "the caller left before the body was complete")
                    body += message.get("body", b"")
                    self._check_size(len(body))
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            detail = f"the body was not complete within {self.limits.body_s:g} s"
            raise ProblemError(ProblemCode.BODY_TIMEOUT, detail) from None
        is_given = False

        async def replayed() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return replayed

    def _check_size(self, size: int) -> None:
        if size > self.limits.body_bytes:
            raise ProblemError(ProblemCode.BODY_TOO_LARGE, f"at most {self.limits.body_bytes} bytes of a body are read")


@dataclass(slots=True)
class _ResponseSender:
    """Sends a response with our headers. ``refuse`` also ends the connection: the rest of a body is not waited for."""

    _send: Send
    is_begun: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_begun = True
            given = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in given)]
        await self._send(message)

    async def refuse(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        await self.send(message)


def _address(named: Sequence[Any] | None) -> Address | None:
    """Return host and port; None for what has none, such as a unix socket."""
    return (str(named[0]), int(named[1])) if named and len(named) > 1 and named[1] else None


class _Pages(CORSMiddleware):
    """Answers pages of other origins; a preflight that asks for too much is refused as every request is."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        detail = f"pages of other origins may not send this request: {bytes(response.body).decode()}"
        return ProblemError(ProblemCode.ORIGIN_NOT_ALLOWED, detail).response()


def _for_pages(inner: App, origins: Sequence[str]) -> App:
    """Let the pages of these origins read their answers. Never with cookies: there are none."""
    return _Pages(
        cast(Any, inner),
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "If-None-Match", "Last-Event-ID", *MCP_HEADERS),
        expose_headers=("ETag", "Location", "Retry-After", "WWW-Authenticate", "Mcp-Session-Id"),
        max_age=600,
    )
