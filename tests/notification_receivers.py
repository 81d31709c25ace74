"""A receiver of notifications over HTTP, as an operator runs one: it keeps what it was sent, and answers as told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import http_on_a_thread


@dataclass(frozen=True)
class Received:
    """One request. Names of headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpReceiver:
    """``status`` and ``headers`` are what it answers; ``taken`` is what it answered 2xx to."""

    port: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    taken: list[Received] = field(default_factory=list)
    refused: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ids(self) -> list[str]:
        return [one.headers["webhook-id"] for one in self.taken]


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    """Run a receiver on a loopback port."""
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received = Received(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            (receiver.taken if receiver.status < 300 else receiver.refused).append(received)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http_on_a_thread(Handler) as receiver.port:
        yield receiver
