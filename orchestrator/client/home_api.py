"""The operations of the running service of the home, over its unix socket, with the standard library alone.

A command that imports no database and no web framework is done in a fifth of a second. ``HomeUnreachableError``: no
service answers there. ``HomeRefusedError``: it does not serve this command. The caller then has the operations
elsewhere (:mod:`soong.orchestrator.http.own_api`).
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlencode

from soong.orchestrator.embedded import API_SOCKET
from soong.orchestrator.embedded.control import environment_digest, recorded
from soong.shared.core import timing
from soong.shared.core.errors import (
    ConflictError,
    InvalidPlanError,
    NotFoundError,
    Problem,
    SoongError,
    UnavailableError,
    UsageError,
)
from soong.shared.core.jsontext import Json

CHANNEL_HEADER: Final = "soong-channel"
ENVIRONMENT_HEADER: Final = "soong-environment"
ELSEWHERE: Final = frozenset({401, 421})
"""The service has another environment or sees other files than its caller, or the kernel does not name the caller."""
NO_CONTENT: Final = 204
NOT_MODIFIED: Final = 304
EVENTS: Final = "text/event-stream"
PIECE: Final = 64 * 1024
_OF_A_REQUEST: Final = ("body.", "query.", "header.", "path.")
"""Places of problems that are none of a plan's."""

Document = dict[str, Any]
Query = Mapping[str, str | int | bool | Sequence[str]]


class HomeUnreachableError(UnavailableError):
    """No service of the home serves this command over its socket. ``was_sent``: what it was sent may have been done."""

    def __init__(self, problem: object, *, was_sent: bool = False) -> None:
        self.was_sent = was_sent
        super().__init__(f"no service of the home answers: {problem}")


class HomeRefusedError(HomeUnreachableError):
    """The service does not serve this command; nothing was done."""


class ApiProblemError(Exception):
    """A problem document, as an operation is refused."""

    def __init__(self, status: int, document: Document) -> None:
        self.status, self.document = status, document
        super().__init__(str(document.get("detail", "the request failed")))

    @property
    def code(self) -> str:
        return str(self.document.get("code", ""))

    def error(self) -> SoongError:
        """Return it as an error of this program."""
        kinds = {404: NotFoundError, 409: ConflictError, 410: ConflictError, 422: UsageError, 503: UnavailableError}
        listed = [Problem(one["place"], one["problem"], one["hint"]) for one in self.document.get("errors") or ()]
        if listed and not any(one.place.startswith(_OF_A_REQUEST) for one in listed):
            invalid = InvalidPlanError(listed, total=self.document.get("total", 0))
            invalid.__cause__ = self
            return invalid
        kind: type[SoongError] = kinds.get(self.status, ConflictError)
        error = kind.__new__(kind)
        error.__cause__ = self
        lines = [f"  {one.place}: {one.problem}{f' -> {one.hint}' if one.hint else ''}" for one in listed]
        error.args = ("\n".join([str(self), *lines]),)
        return error


class ApiReply(NamedTuple):
    """The answer of an operation with its status and headers."""

    document: Document
    status: int
    headers: Mapping[str, str]


class OperationAnswer(Protocol):
    """An answer whose body has not been read."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes."""
        ...


class Calls(ABC):
    """The operations over one transport, which has :meth:`sent` of its own. Several calls run at once."""

    __slots__ = ()

    @abstractmethod
    def sent(
        self, method: str, path: str, query: Query, body: Json, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[OperationAnswer]:
        """Send a request and give what comes back of it."""

    async def reply(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiReply:
        """Return what an operation answers. Raises: HomeUnreachableError, no service serves this here; the operation
        may have been done all the same; SoongError, the operation was refused; its cause is the problem.
        """
        async with self._answered(method, path, query, body, headers) as answer:
            text = b"".join([piece async for piece in answer.pieces()])
        return ApiReply(json.loads(text) if text else {}, answer.status, answer.headers)

    async def text(self, path: str, *, query: Query | None = None) -> str:
        """Return what an operation answers with that sends text. Raises: as :meth:`reply`."""
        async with self._answered("GET", path, query) as answer:
            return b"".join([piece async for piece in answer.pieces()]).decode()

    async def stream(self, path: str, *, query: Query | None = None) -> AsyncGenerator[tuple[str, Document]]:
        """Yield name and data of each event of a stream, until its event `end`. Raises: as :meth:`reply`."""
        async with (
            self._answered("GET", path, query, None, {"accept": EVENTS}) as answer,
            aclosing(answer.pieces()) as pieces,
        ):
            kept = b""
            async for piece in pieces:
                *whole, kept = (kept + piece).split(b"\n\n")
                for frame in whole:
                    fields = dict(line.partition(": ")[::2] for line in frame.decode().splitlines())
                    if fields.get("event") == "end":
                        return
                    if "data" in fields:  # and no comment
                        yield fields.get("event", ""), json.loads(fields["data"])
        if answer.status != NO_CONTENT:
            raise HomeUnreachableError("the service has stopped", was_sent=True)

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, query: Query | None, body: Json = None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[OperationAnswer]:
        async with self.sent(method, path, query or {}, body, headers or {}) as answer:
            if answer.status >= 400:
                text = b"".join([piece async for piece in answer.pieces()])
                raise ApiProblemError(answer.status, json.loads(text)).error()
            yield answer


@dataclass(frozen=True)
class HomeApi(Calls):
    """The operations over the socket of the home. Each call has a connection of its own."""

    home: Path
    channel: str = "cli"

    @asynccontextmanager
    async def sent(
        self, method: str, path: str, query: Query, body: Json, headers: Mapping[str, str]
    ) -> AsyncGenerator[OperationAnswer]:
        """Raises: HomeUnreachableError, also where what came back cannot be read."""
        # A change waits for the word of an owner; a service that does not answer a reader at once is frozen.
        limit_s = timing.MINUTE_S if method != "GET" else timing.COMMAND_LIMIT_S + int(str(query.get("wait", 0)))
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(None if headers.get("accept") == EVENTS else limit_s):
                reader, writer = await asyncio.open_unix_connection(socket_of(self.home))
                writer.write(self._request(method, path, query, body, headers))
                exchange = await _HttpAnswer.begun(reader)
                if exchange.status in ELSEWHERE:
                    raise HomeRefusedError("it does not serve this command")
                yield exchange
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            raise HomeUnreachableError(error, was_sent=writer is not None) from error
        finally:
            if writer is not None:
                writer.close()

    def _request(self, method: str, path: str, query: Query, body: Json, headers: Mapping[str, str]) -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        sent = {
            "host": "localhost",
            "connection": "close",
            CHANNEL_HEADER: self.channel,
            ENVIRONMENT_HEADER: environment_digest(),
            "content-type": "application/json",
            "content-length": str(len(data)),
            **headers,
        }
        address = f"{path}?{query_string(query)}" if query else path
        lines = [f"{method} {address} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + data


class _HttpAnswer(NamedTuple):
    """An answer of HTTP/1.1 whose body has not been read."""

    reader: asyncio.StreamReader
    status: int
    headers: Mapping[str, str]

    @classmethod
    async def begun(cls, reader: asyncio.StreamReader) -> "_HttpAnswer":
        first = (await reader.readline()).split()
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        if len(first) < 2:
            raise ValueError("it closed the connection")
        return cls(reader, int(first[1]), headers)

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body as it comes."""
        if self.status in (NO_CONTENT, NOT_MODIFIED):
            return
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                yield (await self.reader.readexactly(size + 2))[:-2]
        elif "content-length" in self.headers:
            yield await self.reader.readexactly(int(self.headers["content-length"]))
        else:
            while piece := await self.reader.read(PIECE):
                yield piece


def socket_of(home: Path) -> str:
    """Return the socket that the service of a home has recorded. Raises: OSError."""
    try:
        return str(Path(str(recorded(home)["control"])).with_name(API_SOCKET))
    except KeyError:
        raise OSError("no record of a service that can be read") from None


def query_string(query: Query) -> str:
    """Return the parameters of a request as they are sent; a list is sent once for each of its values."""
    sent = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    return urlencode(sent, doseq=True)
