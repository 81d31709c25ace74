"""One child process as the event loop sees it: what it says, bounded, and when it ends.

Who starts it and who ends its descendants is :mod:`soong.shared.sandbox.process`.
"""

import asyncio
import contextlib
from typing import Final, cast

from soong.shared.sandbox.command import ChildCommand, CommandEnd, Finished, Stream

_STREAMS: Final[dict[int, Stream]] = {1: "stdout", 2: "stderr"}

_LAST_WORDS_S: Final = 1.0
"""How long the end of a pipe is waited for after the exit; only a process that we could not kill holds one open."""
_FULL_SPEED_BYTES: Final = 8 * 1024 * 1024
_PIPE_BYTES: Final = 64 * 1024
_PAUSE_S: Final = 0.001
"""A child that fills its pipe again after the first read is read once per pause: 64 MB/s, and the loop stays free."""


class ChildProcess(asyncio.SubprocessProtocol):
    """Collects output by the bounds of its command. ``exited`` is set when the process itself has ended."""

    def __init__(self, command: ChildCommand) -> None:
        self._command = command
        self._limits = {1: command.max_stdout_bytes, 2: command.max_stderr_bytes}
        self._kept = {1: bytearray(), 2: bytearray()}
        self._said = {1: 0, 2: 0}
        self._open = {1, 2}
        self._silent = asyncio.Event()
        self._full = asyncio.Event()
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._limits[fd] - len(self._kept[fd])
        self._kept[fd] += data[:room]
        self._said[fd] += len(data)
        if fd == 1 and len(data) > room and self._command.overflow == "stop":
            self._full.set()
        if self._command.heard is not None:
            self._command.heard(_STREAMS[fd], data)
        if len(data) >= _PIPE_BYTES and self._said[fd] > _FULL_SPEED_BYTES:
            self._slow_down(fd)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  # the protocol's signature
        self._open.discard(fd)
        if not self._open & _STREAMS.keys():
            self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()

    async def end(self) -> CommandEnd:
        """Wait for the exit, the time or the amount, whichever comes first."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.exited, self._full)]
        try:
            seconds = self._command.timeout.total_seconds()
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if self._full.is_set():
            return "output_limit"
        return "exited" if self.exited.is_set() else "timeout"

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        with contextlib.suppress(ProcessLookupError):
            self._transport.send_signal(number)

    async def close(self) -> None:
        """Hear the last words of what has ended and let go of its pipes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._silent.wait()
        self._transport.close()

    @property
    def code(self) -> int:
        """The exit code; negative for a signal."""
        return self._transport.get_returncode() or 0

    def finished(self, ended: CommandEnd, code: int) -> Finished:
        """Return how it ended, with what it said."""
        if ended == "exited" and self._full.is_set():
            ended = "output_limit"  # the rest came between the exit and the end of the pipe
        return Finished(code, bytes(self._kept[1]), bytes(self._kept[2]), ended, self._said[1], self._said[2])

    def _slow_down(self, fd: int) -> None:
        pipe = cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(fd))
        if pipe is not None and pipe.is_reading():
            pipe.pause_reading()
            asyncio.get_running_loop().call_later(_PAUSE_S, _resume, pipe)


def _resume(pipe: asyncio.ReadTransport) -> None:
    if not pipe.is_closing():
        pipe.resume_reading()
