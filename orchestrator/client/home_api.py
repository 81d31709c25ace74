"""The operations of the running service of the home, over its unix socket, with the standard library alone.

A command that imports no database and no web framework is done in a fifth of a second. ``HomeUnreachableError`` says
that no service answers there, or that it does not serve this command: the caller then has the operations elsewhere
(:mod:`soong.orchestrator.http.own_api`).
"""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from soong.orchestrator.embedded import API_SOCKET
from soong.shared.core import timing
from soong.shared.core.errors import ConflictError, NotFoundError, SoongError, UnavailableError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.secret_names import SECRET_ENDINGS

CHANNEL_HEADER: Final = "soong-channel"
ENVIRONMENT_HEADER: Final = "soong-environment"
ELSEWHERE: Final = frozenset({401, 421})
"""The service has another environment or sees other files than its caller, or the kernel does not name the caller."""
_OF_THE_REQUEST: Final = frozenset({"SOONG_AGENT_HOME", "SOONG_MODEL"})
"""Variables that choose the service, or that a request carries itself."""

Document = dict[str, Any]
Query = Mapping[str, str | int | bool]


class HomeUnreachableError(UnavailableError):
    """No service of the home serves this command over its socket. ``was_sent``: what it was sent may have been done."""

    def __init__(self, problem: object, *, was_sent: bool = False) -> None:
        self.was_sent = was_sent
        super().__init__(f"no service of the home answers: {problem}")


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
        kind: type[SoongError] = kinds.get(self.status, ConflictError)
        error = kind.__new__(kind)
        error.__cause__ = self
        error.args = ("\n".join([str(self), *map(_line_of, self.document.get("errors") or ())]),)
        return error


def _line_of(error: Mapping[str, Any]) -> str:
    hint = f" -> {error['hint']}" if error.get("hint") else ""
    return f"  {error['place']}: {error['problem']}{hint}"


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class HomeApi:
    """One connection to the socket of the home; opened by the first call."""

    def __init__(self, home: Path, *, channel: str = "cli") -> None:
        self._home = home
        self._channel = channel
        self._connection: _UnixConnection | None = None

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Document:
        """Return the document that an operation returns.

        Raises:
            HomeUnreachableError: no service serves this here; the operation may have been done all the same.
            SoongError: the operation was refused.
        """
        # A change waits for the word of an owner; a service that does not answer a reader at once is frozen.
        limit_s = timing.MINUTE_S if method != "GET" else timing.COMMAND_LIMIT_S + int((query or {}).get("wait", 0))
        text = self._read(method, path, query, body, headers or {}, limit_s)
        document: Document = json.loads(text) if text else {}
        return document

    def text(self, path: str, *, query: Query | None = None) -> str:
        """Return what an operation answers with that sends text. Raises: as :meth:`call`."""
        return self._read("GET", path, query, None, {}, timing.COMMAND_LIMIT_S).decode()

    def stream(self, path: str, *, query: Query | None = None) -> Iterator[tuple[str, Document]]:
        """Yield name and data of each event of a stream, until its event `end`. Raises: as :meth:`call`."""
        response = self._send("GET", path, query, None, {}, 2 * timing.MINUTE_S)
        if response.status >= 400:
            raise ApiProblemError(response.status, json.loads(response.read())).error()
        kept: list[bytes] = []
        while line := self._line(response):
            kept.append(line)
            if line == b"\n":
                for name, event in events_of([b"".join(kept)]):
                    if name == "end":
                        return
                    yield name, event
                kept.clear()
        raise self._lost(OSError("the service has stopped"))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _line(self, response: HTTPResponse) -> bytes:
        try:
            return response.readline()
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error

    def _read(
        self, method: str, path: str, query: Query | None, body: Json, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        response = self._send(method, path, query, body, headers, timeout_s)
        try:
            text = response.read()
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error
        if response.status >= 400:
            raise ApiProblemError(response.status, json.loads(text)).error()
        return text

    def _send(
        self, method: str, path: str, query: Query | None, body: Json, headers: Mapping[str, str], timeout_s: float
    ) -> HTTPResponse:
        sent = {
            CHANNEL_HEADER: self._channel,
            ENVIRONMENT_HEADER: environment_digest(os.environ),
            "content-type": "application/json",
            **headers,
        }
        address = f"{path}?{urlencode(texts_of(query))}" if query else path
        data = None if body is None else json.dumps(body).encode()
        try:
            connection = self._connection or _UnixConnection(socket_of(self._home), timeout_s)
            self._connection = connection
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, address, body=data, headers=sent)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error
        if response.status in ELSEWHERE:
            self.close()
            raise HomeUnreachableError("it does not serve this command")
        return response

    def _lost(self, error: Exception) -> HomeUnreachableError:
        was_sent = self._connection is not None and self._connection.sock is not None
        self.close()
        return HomeUnreachableError(error, was_sent=was_sent)


def socket_of(home: Path) -> str:
    """Return the socket that the service of a home has recorded. Raises: OSError."""
    try:
        record = json.loads((home / "service.json").read_text(encoding="utf-8"))
        return str(Path(record["control"]).with_name(API_SOCKET))
    except (ValueError, KeyError, TypeError) as error:
        raise OSError("no record of a service that can be read") from error


def environment_digest(environment: Mapping[str, str]) -> str:
    """Return a digest of the variables that change what a command writes: settings, the home of ``~``, and secrets.

    Secrets count because each process keeps those of its own environment out of the rows (EVT-05).
    """
    wanted = {
        name: value
        for name, value in environment.items()
        if (name == "HOME" or name.startswith("SOONG_") or name.upper().endswith(SECRET_ENDINGS))
        and name not in _OF_THE_REQUEST
    }
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def events_of(frames: Sequence[bytes]) -> Iterator[tuple[str, Document]]:
    """Yield name and data of server-sent events, each given complete; comments are left out."""
    for frame in frames:
        fields = dict(line.partition(": ")[::2] for line in frame.decode().splitlines())
        if "data" in fields:
            yield fields.get("event", ""), json.loads(fields["data"])


def texts_of(query: Query) -> dict[str, str]:
    """Return the parameters of a request as they are sent."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in query.items()}
