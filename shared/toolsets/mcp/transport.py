"""The transport to a server: a program under a subreaper over its pipes, or a URL over streamable HTTP.

The SDK's own stdio transport starts a plain child, which outlives a killed worker; ours is a
:class:`soong.shared.sandbox.command.DuplexProcess`. A server's messages pass the
:mod:`~soong.shared.toolsets.mcp.intake` on both ways, and are bounded: they are held in memory.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from soong.shared.core import timing
from soong.shared.core.jsontext import dump, inert
from soong.shared.core.log import get_logger
from soong.shared.sandbox.command import DuplexProcess
from soong.shared.toolsets.mcp.intake import END_BYTES, MAX_LINE_BYTES, Intake, Message

if TYPE_CHECKING:
    import httpx2

log = get_logger(__name__)

_CHUNK_BYTES: Final = 64 * 1024


class StdioPipes:
    """The pipes of one server program; ``transport`` is what the SDK's client is given."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], on_end: Callable[[], None]) -> None:
        self._argv, self._cwd, self._env = argv, cwd, env
        self._on_end = on_end
        self._child: DuplexProcess | None = None
        self._intake = Intake()
        self.pid = 0
        self.last_words = ""
        self.code: int | None = None

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start the program and yield its streams; leave with nothing of it alive.
        Raises: OSError, it cannot be started.
        """
        child = self._child = await DuplexProcess.start(self._argv, cwd=self._cwd, env=self._env)
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
                    with anyio.move_on_after(timing.SHORT_LIMIT_S, shield=True):
                        await written.wait()
                    with anyio.CancelScope(shield=True):
                        try:
                            self.code = await child.stop()
                            self.last_words = child.last_errors
                        except OSError as error:  # the subreaper could not start the program
                            self.last_words = f"{self._argv[0]} cannot be started: {error.strerror}"
                    group.cancel_scope.cancel()
        finally:
            for stream in (send_read, read, write, receive_write):
                stream.close()

    @property
    def words(self) -> str:
        """The last words of the program on stderr."""
        return self.last_words or ("" if self._child is None else self._child.last_errors)

    async def _read(self, child: DuplexProcess, send: Any) -> None:
        is_noted = False
        async with send:
            try:
                async for line, is_cut in _lines(child):
                    found = self._intake.too_long(line) if is_cut else self._intake.line(line)
                    if not found and not is_noted:
                        words = inert(line[:200].decode("utf-8", "replace"))
                        log.warning("mcp_line_is_no_message", program=self._argv[0], line=words)
                        is_noted = True
                    for message in map(_session_message, found):
                        if message is not None:
                            await send.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            self._on_end()  # before its end is seen in the streams: a call learns from it that nothing more comes

    async def _write(self, child: DuplexProcess, receive: Any, send: Any, written: anyio.Event) -> None:
        try:
            async with receive:
                async for item in receive:
                    message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                    self._intake.sent(message)
                    child.input.write(dump(message).encode("utf-8") + b"\n")
                    await child.input.drain()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._on_end()
            await send.aclose()  # the connection is over: a reader of an answer must not wait for ever
        finally:
            written.set()


async def _lines(child: DuplexProcess) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield the lines that a program prints; a too long line as its two ends, marked as cut."""
    line, is_cut = bytearray(), False
    while piece := await child.output.read(_CHUNK_BYTES):
        first, *others = piece.split(b"\n")
        line += first
        for following in others:
            if line:
                yield bytes(line), is_cut
            line, is_cut = bytearray(following), False
        if len(line) > MAX_LINE_BYTES:
            del line[END_BYTES:-END_BYTES]
            is_cut = True


def _session_message(message: Message) -> Any:
    """Return a message as the SDK takes it; None for one that is none of the protocol."""
    from mcp.shared.message import SessionMessage  # the SDK costs a quarter of a second: only a connection pays it
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValueError:
        return None


@asynccontextmanager
async def http_transport(
    url: str, headers: Mapping[str, str], auth: "httpx2.Auth | None", read_timeout_s: float
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a server over HTTP. Redirects are followed within its own origin only, by the SDK. An answer
    has at most as many bytes as a line over stdio; a larger one fails its request and no other.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from soong.shared.toolsets.mcp.http_answers import AnswerStream, BoundedStream

    asked: set[str] = set()

    async def bound(response: httpx2.Response) -> None:
        told, most, problem = response.headers, MAX_LINE_BYTES, f"the answer has more than {MAX_LINE_BYTES} bytes"
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            return
        intake = _intake_of(response.request, asked)
        kind = told.get("content-type", "").lower()
        if told.get("content-encoding", "identity") != "identity":
            most, problem = 0, "the answer is packed, which was not asked for"
        elif kind.startswith("text/event-stream"):
            response.stream = AnswerStream(response.stream, intake, is_events=True)
            return
        elif intake.waiting and (response.is_success or kind.startswith("application/json")):
            told["content-type"] = "application/json"  # another content type is shown by its beginning
            response.stream = AnswerStream(response.stream, intake, is_events=False)
            return
        response.stream = BoundedStream(response.stream, most, lambda: httpx2.StreamError(problem))

    timeout = httpx2.Timeout(timing.PATIENCE_S, read=read_timeout_s)
    async with (
        # The sender of packed data chooses its unpacked length, which the bound does not cover.
        httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **headers},
            timeout=timeout,
            auth=auth,
            event_hooks={"response": [bound]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams,
    ):
        yield streams


def _intake_of(request: "httpx2.Request", asked: set[str]) -> Intake:
    """Return what reads the answer of a request; one that is not JSON-RPC waits for nothing."""
    intake = Intake(is_of_one_request=True, asked=asked)
    try:
        message = json.loads(request.content)
    except (ValueError, RuntimeError):  # no body, a form, or one that is streamed
        return intake
    if isinstance(message, dict):
        intake.sent(message)
    return intake
