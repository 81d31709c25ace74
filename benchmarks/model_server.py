"""A model server that is not ours, ``llmock serve`` as a process of its own, and what it saw."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from tests.servers import free_port

START_LIMIT_S: Final = 30.0
ANSWER_LIMIT_S: Final = 120.0
TEXT: Final[Mapping[str, Any]] = {"type": "reply", "text": "done", "times": None}
MODEL: Final = "openai-chat:gpt-4o"
"""What a step calls it by."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The server. What it is told to do it does in order, one behaviour for one request."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which the provider's client finds the server."""
        return {"OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "sk-bench"}

    def will(
        self,
        *,
        calls: int = 0,
        tool: str = "",
        at_once: int = 1,
        latency_s: float = 0.0,
        latencies_s: Sequence[float] = (),
    ) -> None:
        """Forget all; answer so many requests with calls of a tool, and then every one with a text, after a pause.

        ``at_once`` calls are in each of these answers.
        The first requests pause for ``latencies_s``, one each, all others for ``latency_s``.
        """
        self._send("POST", "/_llmock/reset")
        call = {"name": tool, "arguments": {"path": "."}}
        behaviors: list[Mapping[str, Any]] = [TEXT]
        if calls:
            behaviors.insert(0, {"type": "reply", "tool_calls": [call] * at_once, "times": calls})
        behaviors += [{"type": "delay", "seconds": seconds, "times": 1} for seconds in latencies_s]
        if latency_s:
            behaviors.append({"type": "delay", "seconds": latency_s, "times": None})
        self._send("POST", "/_llmock/scenario", {"behaviors": behaviors})

    def requests(self) -> Sequence[Mapping[str, Any]]:
        """Return the requests since :meth:`will`, the last ten thousand; their times are of the monotonic clock."""
        found: Sequence[Mapping[str, Any]] = self._send("GET", "/_llmock/requests")["requests"]
        return found

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_LIMIT_S)
        with closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body))
            return json.load(connection.getresponse())


@contextmanager
def model_server(folder: Path) -> Iterator[ModelServer]:
    """Start a server on this machine and stop it afterwards. Raises: RuntimeError, when it does not start."""
    port = free_port()
    log_path = folder / "llmock.log"
    program = Path(sys.executable).with_name("llmock")
    words = ("serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "error")
    with log_path.open("wb") as log:
        process = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        server = ModelServer(port)
        _wait(server, process, log_path)
        yield server
    finally:
        process.terminate()
        process.wait()


def _wait(server: ModelServer, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server.will()
        except ConnectionError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"the model server did not start: {log_path.read_text(errors='replace')[-2000:]}")
