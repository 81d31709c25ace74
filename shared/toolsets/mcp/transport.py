"""How a server is reached: a program under a subreaper over its pipes, or a URL over streamable HTTP.

The SDK's own stdio transport starts a plain child, which outlives a killed worker; ours is a
:class:`soong.shared.sandbox.kept_process.KeptProcess`. Lines are bounded: what a server says is held in memory.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.core.log import get_logger
from soong.shared.sandbox.kept_process import KeptProcess

if TYPE_CHECKING:
    import httpx2

log = get_logger(__name__)

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_FLUSH_S: Final = 0.5
HTTP_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A server as a program. ``argv[0]`` is an absolute path."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]


class StdioPipes:
    """The pipes of one server program; ``transport`` is what the SDK's client is given."""

    def __init__(self, program: ServerProgram, on_end: Callable[[], None]) -> None:
        self._program = program
        self._on_end = on_end
        self._child: KeptProcess | None = None
        self.pid = 0
        self.last_words = ""
        self.code: int | None = None

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the program and yield its streams; leave with nothing of it alive.

        Raises:
            OSError: it cannot be started.
        """
        child = self._child = await KeptProcess.start(self._program.argv, self._program.cwd, self._program.env)
        self.pid = child.pid
        # No awaits until the streams are entered: a cancellation in between would leave the program alive.
        send_read, read = anyio.create_memory_object_stream[Any](0)
        write, receive_write = anyio.create_memory_object_stream[Any](0)
        written = anyio.Event()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, child, send_read)
                group.start_soon(self._write, child, receive_write, send_read, written)
                try:
                    yield read, write
                finally:
                    read.close()
                    write.close()
                    with anyio.move_on_after(_FLUSH_S, shield=True):
                        await written.wait()
                    with anyio.CancelScope(shield=True):
                        await self._stop(child)
                    group.cancel_scope.cancel()
        finally:
            for stream in (send_read, read, write, receive_write):
                stream.close()

    @property
    def words(self) -> str:
        """What the program said last on stderr."""
        return self.last_words or ("" if self._child is None else self._child.last_words)

    async def _stop(self, child: KeptProcess) -> None:
        try:
            self.code = await child.stop()
        except OSError as error:  # the subreaper could not start the program: the connection has failed for it
            self.last_words = f"{self._program.argv[0]} cannot be started: {error.strerror}"
            return
        self.last_words = child.last_words

    async def _read(self, child: KeptProcess, send: Any) -> None:
        buffer = bytearray()
        bad = 0
        async with send:
            while piece := await child.stdout.read(_CHUNK_BYTES):
                buffer += piece
                if b"\n" not in piece:
                    if len(buffer) > MAX_LINE_BYTES:
                        log.warning("mcp_line_too_long", program=self._program.argv[0], limit=MAX_LINE_BYTES)
                        break
                    continue
                *lines, rest = bytes(buffer).split(b"\n")
                buffer = bytearray(rest)
                for line in filter(None, map(bytes.strip, lines)):
                    message = _message(line)
                    if message is None:
                        bad += 1
                        if bad == 1:
                            log.warning("mcp_line_is_no_message", program=self._program.argv[0])
                        continue
                    try:
                        await send.send(message)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return
        self._on_end()

    async def _write(self, child: KeptProcess, receive: Any, send: Any, written: anyio.Event) -> None:
        try:
            async with receive:
                async for message in receive:
                    line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    child.stdin.write(line.encode("utf-8") + b"\n")
                    await child.stdin.drain()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await send.aclose()  # the connection is over: who waits for an answer must not wait for ever
            self._on_end()
        finally:
            written.set()


def _message(line: bytes) -> Any:
    """Return a line as a message of the protocol; None for one that is none, such as a greeting."""
    from mcp.shared.message import SessionMessage  # the SDK costs a quarter of a second: only a connection pays it
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


@asynccontextmanager
async def http_transport(
    url: str, headers: Mapping[str, str], auth: "httpx2.Auth | None", read_timeout_s: float
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a server over HTTP. Redirects are followed within its own origin only, by the SDK.

    An answer has at most as many bytes as a line over stdio; a larger one fails its request and no other.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from soong.shared.toolsets.mcp.bounded_stream import BoundedStream

    async def bound(response: httpx2.Response) -> None:
        told, most, problem = response.headers, MAX_LINE_BYTES, f"the answer has more than {MAX_LINE_BYTES} bytes"
        if told.get("content-encoding", "identity") != "identity":
            most, problem = 0, "the answer is packed, which was not asked for"
        is_events = told.get("content-type", "").lower().startswith("text/event-stream")
        if not is_events and isinstance(response.stream, httpx2.AsyncByteStream):  # the SDK bounds each event
            response.stream = BoundedStream(response.stream, most, lambda: httpx2.StreamError(problem))

    timeout = httpx2.Timeout(HTTP_TIMEOUT_S, read=read_timeout_s)
    async with (
        # What is packed has a length that its sender chooses after it was bounded.
        httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=timeout,
            auth=auth,
            event_hooks={"response": [bound]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE_BYTES) as streams,
    ):
        yield streams
