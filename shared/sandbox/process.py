"""Child processes with every bound they need: argv only, bounded output and time, nothing left behind.

The child gets the environment it is given, no descriptor but its three and no terminal. :class:`ProcessRunner` puts a
subreaper (:mod:`soong.shared.sandbox.subreaper`) between us and a program, so that all its descendants end with it,
also when we are killed. :func:`run` does without: for programs of our own that start nothing, where some
milliseconds count.

The subreaper needs Linux. Elsewhere :class:`ProcessRunner` is :func:`run`, which ends the process group alone: there a
descendant that makes a session of its own outlives its command.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.sandbox.command import (
    HAS_SUBREAPER,
    MAX_LINE_BYTES,
    ChildCommand,
    CommandAccess,
    CommandEnd,
    DuplexProcess,
    Finished,
    Report,
    Stream,
    SubreaperPipes,
    kill_group,
)
from soong.shared.sandbox.redact import Redactor, decoded, inert_text
from soong.shared.sandbox.threads import unbroken

_STREAMS: Final[dict[int, Stream]] = {1: "stdout", 2: "stderr"}

_FULL_SPEED_BYTES: Final = 8 * 1024 * 1024
_PIPE_BYTES: Final = 64 * 1024

STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")
TAIL_BYTES: Final = 64 * 1024

_MARGIN_CHARS: Final = 16 * 1024
"""No token or key is longer. A secret that begins before a border ends within as much behind it."""


async def run(command: ChildCommand) -> Finished:
    """Run a child to its end or to one of its bounds, then kill its process group.
    Raises: OSError, it cannot be started; ValueError, an argument holds NUL.
    """
    child = await _started(command, command.argv, command.inherited)
    try:
        ended = await child.end()
    finally:
        await unbroken(_leave(child))
    return child.finished(ended, child.code)


class ProcessRunner:
    """The :class:`soong.shared.sandbox.command.CommandRunner` without an operating system sandbox."""

    async def run(self, command: ChildCommand) -> Finished:
        if not HAS_SUBREAPER:
            return await run(command)
        with SubreaperPipes() as pipes:
            argv = pipes.argv(command.timeout.total_seconds() + timing.GRACE_S, command.argv)
            child = await _started(command, argv, (*pipes.far_ends, *command.inherited))
            try:
                pipes.start()  # until here there is only an idle subreaper, which a cancelled start kills
                ended = await child.end()
            finally:
                report = await unbroken(_leave_kept(child, pipes))
        if report.problem:
            raise OSError(report.problem, os.strerror(report.problem), command.argv[0])
        return replace(child.finished(ended, report.code), left_running=report.left)

    def confinement(self, access: CommandAccess) -> str:
        """Return nothing: whatever it may reach, the command has the rights of this process."""
        del access
        return ""

    async def start(
        self,
        argv: Sequence[str],
        access: CommandAccess,
        *,
        cwd: Path,
        env: Mapping[str, str],
        inherited: tuple[int, ...] = (),
    ) -> DuplexProcess:
        del access
        return await DuplexProcess.start(argv, cwd=cwd, env=env, inherited=inherited, max_line_bytes=MAX_LINE_BYTES)


class ChildProcess(asyncio.SubprocessProtocol):
    """Collects output by the bounds of its command. ``exited`` is set when the process itself has ended."""

    def __init__(self, command: ChildCommand) -> None:
        self._command = command
        self._limits = {1: command.max_stdout_bytes, 2: command.max_stderr_bytes}
        self._kept = {1: bytearray(), 2: bytearray()}
        self._said = {1: 0, 2: 0}
        self._open = {1, 2}
        self._silent = asyncio.Event()
        self._is_full = False
        self._over = asyncio.Event()
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._limits[fd] - len(self._kept[fd])
        self._kept[fd] += data[:room]
        self._said[fd] += len(data)
        if fd == 1 and len(data) > room and self._command.overflow == "stop":
            self._is_full = True
            self._over.set()
        if self._command.heard is not None:
            self._command.heard(_STREAMS[fd], data)
        if len(data) >= _PIPE_BYTES and self._said[fd] > _FULL_SPEED_BYTES:
            pipe = cast("asyncio.ReadTransport | None", self._transport.get_pipe_transport(fd))
            if pipe is not None and pipe.is_reading():
                pipe.pause_reading()
                # 64 KiB per tick: 64 MB/s, and the loop stays free.
                asyncio.get_running_loop().call_later(timing.TICK_S, _resume, pipe)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  # the protocol's signature
        self._open.discard(fd)
        if not self._open & _STREAMS.keys():
            self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._over.set()

    async def end(self) -> CommandEnd:
        """Wait for the exit, the time or the amount, whichever comes first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._command.timeout.total_seconds()):
                await self._over.wait()
        if self._is_full:
            return "output_limit"
        return "exited" if self.exited.is_set() else "timeout"

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._transport.send_signal(number)

    async def close(self) -> None:
        """Hear the last words of what has ended and let go of its pipes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timing.SHORT_LIMIT_S):
                await self._silent.wait()
        self._transport.close()

    @property
    def code(self) -> int:
        """The exit code; negative for a signal."""
        return self._transport.get_returncode() or 0

    def finished(self, ended: CommandEnd, code: int) -> Finished:
        if ended == "exited" and self._is_full:
            ended = "output_limit"  # the rest came between the exit and the end of the pipe
        return Finished(code, bytes(self._kept[1]), bytes(self._kept[2]), ended, self._said[1], self._said[2])


async def _started(command: ChildCommand, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> ChildProcess:
    loop = asyncio.get_running_loop()
    with _input(command.stdin) as stdin:
        _, child = await loop.subprocess_exec(
            lambda: ChildProcess(command),
            *argv,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=f"/proc/self/fd/{command.cwd}" if HAS_SUBREAPER else command.cwd_path,
            env=dict(command.env),
            close_fds=True,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    return child


@contextmanager
def _input(stdin: int | bytes | None) -> Iterator[int]:
    """Give the descriptor to read from. Bytes become a file without a name: no writer has to wait for a reader."""
    if not isinstance(stdin, bytes):
        yield asyncio.subprocess.DEVNULL if stdin is None else stdin
        return
    with os.fdopen(os.memfd_create("stdin"), "w+b") if HAS_SUBREAPER else tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        yield file.fileno()


async def _leave(child: ChildProcess) -> None:
    kill_group(child.pid)
    await child.exited.wait()
    await child.close()


async def _leave_kept(child: ChildProcess, pipes: SubreaperPipes) -> Report:
    report = await pipes.ended(child.exited.wait, child.send)
    await child.close()
    return report


def _resume(pipe: asyncio.ReadTransport) -> None:
    if not pipe.is_closing():
        pipe.resume_reading()


class OutputTranscript:
    """Collects both streams of one command. ``hear`` takes the pieces as they come; all else may be asked any time.
    ``max_bytes`` bounds the beginnings of both streams together.
    """

    def __init__(self, max_bytes: int, redactor: Redactor) -> None:
        self._room = max_bytes
        self._redactor = redactor
        self._margin = max([_MARGIN_CHARS, *map(len, redactor.values)])
        self._ring = TAIL_BYTES + 4 * self._margin  # a character has up to four bytes
        self._heads: dict[Stream, bytearray] = {stream: bytearray() for stream in STREAMS}
        self._tails: dict[Stream, bytearray] = {stream: bytearray() for stream in STREAMS}
        self.said: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        """Bytes of each stream, kept or not."""

    def hear(self, stream: Stream, piece: bytes) -> None:
        self.said[stream] += len(piece)
        kept = piece[: self._room]
        self._room -= len(kept)
        self._heads[stream] += kept
        tail = self._tails[stream]
        tail += piece[len(kept) :][-self._ring :]
        if len(tail) > 2 * self._ring:
            del tail[: -self._ring]

    def left_out(self, stream: Stream) -> int:
        """Return how many bytes were not kept."""
        return self.said[stream] - len(self._heads[stream]) - len(self._tails[stream])

    def is_cut(self) -> bool:
        return any(self.left_out(stream) for stream in STREAMS)

    def raw(self, stream: Stream) -> str:
        """Return the output without secrets, otherwise unchanged; bytes that are not text are lone surrogates."""
        head, tail, left_out = self._heads[stream], self._tails[stream], self.left_out(stream)
        if not left_out:
            return self._redactor.text(decoded(bytes(head + tail)))
        # A stream that is never closed keeps back what could be the beginning of a secret.
        beginning = self._redactor.stream().feed(decoded(bytes(head)))
        end = self._without_broken_start(decoded(bytes(tail)))
        return f"{beginning}\n[… some {left_out} bytes left out …]\n{end}"

    def shown(self, stream: Stream) -> str:
        return inert_text(self.raw(stream))

    def last_lines(self, stream: Stream, count: int, max_chars: int) -> list[str]:
        """Return the last complete lines, for progress; an unfinished one could be half a secret."""
        head, tail = self._heads[stream], self._tails[stream]
        recent = bytes(tail) if len(tail) >= self._ring else bytes(head[-self._ring :] + tail)
        text = decoded(recent)
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
        text = text[: len(text) - self._unfinished(text)]
        is_whole = len(recent) == self.said[stream]
        clean = self._redactor.text(text) if is_whole else self._without_broken_start(text)
        lines = [line.rstrip() for line in inert_text(clean).split("\n")]
        return [line[:max_chars] for line in lines if line][-count:]

    def _without_broken_start(self, text: str) -> str:
        """Return a text whose beginning is missing, from where no secret that began before it can reach."""
        cut = self._margin
        for start, end in sorted(self._redactor.spans(text)):
            if start < cut < end:
                cut = end
        return self._redactor.text(text[cut:])

    def _unfinished(self, text: str) -> int:
        """Return how many characters at the end are the first lines of a secret of several lines."""
        values = self._redactor.values
        ends = ((value, place + 1) for value in values for place, char in enumerate(value[:-1]) if char == "\n")
        return max((end for value, end in ends if text.endswith(value[:end])), default=0)
