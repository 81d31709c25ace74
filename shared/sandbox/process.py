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
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.command import ChildCommand, CommandAccess, CommandEnd, Finished, Stream
from soong.shared.sandbox.subreaper_pipes import SubreaperPipes

HAS_SUBREAPER: Final = sys.platform.startswith("linux")


_STREAMS: Final[dict[int, Stream]] = {1: "stdout", 2: "stderr"}

_FULL_SPEED_BYTES: Final = 8 * 1024 * 1024
_PIPE_BYTES: Final = 64 * 1024

_TAIL_BYTES: Final = 4_096
_CHUNK_BYTES: Final = 64 * 1024


async def run(command: ChildCommand) -> Finished:
    """Run a child to its end or to one of its bounds, then kill its process group.

    Raises:
        OSError: it cannot be started.
        ValueError: an argument holds NUL.
    """
    child = await _started(command, command.argv, command.inherited)
    try:
        ended = await child.end()
    finally:
        await _unbroken(_leave(child))
    return child.finished(ended, child.code)


class ProcessRunner:
    """The :class:`soong.shared.sandbox.command.CommandRunner` without an operating system sandbox."""

    async def run(self, command: ChildCommand) -> Finished:
        """Run it, under a subreaper where there can be one.

        Raises:
            OSError: it cannot be started.
            ValueError: an argument holds NUL.
        """
        if not HAS_SUBREAPER:
            return await run(command)
        with SubreaperPipes() as pipes:
            return await _run_kept(command, pipes)

    def confinement(self, access: CommandAccess) -> str:
        """Return nothing: whatever it may reach, the command has the rights of this process."""
        del access
        return ""

    @contextmanager
    def wrapped(
        self, argv: Sequence[str], access: CommandAccess, *, cwd: Path, environment: Mapping[str, str]
    ) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Give the argv to start and the descriptors that it inherits: the same argv and none, as nothing confines it.

        :meth:`soong.shared.sandbox.bubblewrap.runner.BubblewrapRunner.wrapped` has the other form.
        """
        del access, cwd, environment
        yield tuple(argv), ()


async def _run_kept(command: ChildCommand, pipes: SubreaperPipes) -> Finished:
    limit_s = command.timeout.total_seconds() + timing.GRACE_S
    # By path and isolated: neither the current folder nor the environment decides what it imports.
    argv = (sys.executable, "-I", "-S", subreaper.__file__, *map(str, pipes.far_ends), str(limit_s), *command.argv)
    child = await _started(command, argv, (*pipes.far_ends, *command.inherited))
    try:
        pipes.start()  # until here there is only an idle subreaper, which a cancelled start kills
        ended = await child.end()
    finally:
        await _unbroken(_leave_kept(child, pipes))
    report = pipes.report
    if report.problem:
        raise OSError(report.problem, os.strerror(report.problem), command.argv[0])
    return replace(child.finished(ended, report.code), left_running=report.left)


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
            async with asyncio.timeout(timing.SHORT_LIMIT_S):
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
            # 64 KiB per tick: 64 MB/s, and the loop stays free.
            asyncio.get_running_loop().call_later(timing.TICK_S, _resume, pipe)


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
    _kill_group(child.pid)
    await child.exited.wait()
    await child.close()


async def _leave_kept(child: ChildProcess, pipes: SubreaperPipes) -> None:
    """Have the subreaper end its family, and do what can be done where it was killed or stopped by it."""
    pipes.let_go()
    child.send(signal.SIGCONT)
    try:
        async with asyncio.timeout(subreaper.SWEEP_LIMIT_S + timing.CLOSE_LIMIT_S):
            await child.exited.wait()
    except TimeoutError:
        child.send(signal.SIGKILL)
        await child.exited.wait()
    pipes.listen()
    if pipes.report.program and not pipes.report.is_complete:
        _kill_group(pipes.report.program)
    await child.close()


async def _unbroken(work: Coroutine[object, object, None]) -> None:
    """Finish the work although the caller is being cancelled, and only then let the cancellation continue."""
    task = asyncio.ensure_future(work)
    signal_: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            signal_ = error
    task.result()
    if signal_ is not None:
        raise signal_


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _resume(pipe: asyncio.ReadTransport) -> None:
    if not pipe.is_closing():
        pipe.resume_reading()


class KeptProcess:
    """One such program. ``stdin`` and ``stdout`` are its pipes; of what it says on stderr the end is kept."""

    def __init__(self, process: Process, pipes: SubreaperPipes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._process = process
        self._pipes = pipes
        self._tail = bytearray()
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> "KeptProcess":
        """Start a program; ``argv[0]`` is an absolute path.

        Raises:
            OSError: it cannot be started.
            ValueError: an argument holds NUL.
        """
        pipes = SubreaperPipes()
        keeper: tuple[str, ...] = ()
        if HAS_SUBREAPER:
            ends = map(str, pipes.far_ends)
            keeper = (sys.executable, "-I", "-S", subreaper.__file__, *ends, str(timing.LONGEST_S))
        try:
            process = await asyncio.create_subprocess_exec(
                *keeper,
                *argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=cwd,
                env=dict(env),
                pass_fds=pipes.far_ends if HAS_SUBREAPER else (),
                start_new_session=True,
            )
        except BaseException:
            pipes.close()
            raise
        pipes.start()
        return cls(process, pipes)

    @property
    def pid(self) -> int:
        """The process that we started: the subreaper, where there is one."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what it said on stderr."""
        return bytes(self._tail).decode("utf-8", "replace").strip()

    async def stop(self) -> int:
        """End it: by closing its input, and after a while by force. Return its exit code, negative for a signal.

        Raises:
            OSError: it could not be started at all, which only its subreaper knew.
        """
        with contextlib.suppress(OSError):
            self.stdin.close()
        if not await self._ends_within(timing.CLOSE_LIMIT_S):
            self._pipes.let_go()
            if not HAS_SUBREAPER:
                _kill_group(self.pid)
            if not await self._ends_within(subreaper.SWEEP_LIMIT_S + timing.CLOSE_LIMIT_S):
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        return self._ended()

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def _ended(self) -> int:
        self._listening.cancel()
        self._pipes.listen()
        self._pipes.close()
        report = self._pipes.report
        if not HAS_SUBREAPER:
            return self._process.returncode or 0
        if report.program and not report.is_complete:
            _kill_group(report.program)
        if report.problem:
            raise OSError(report.problem, os.strerror(report.problem))
        return report.code

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(_CHUNK_BYTES):
            self._tail += piece
            del self._tail[:-_TAIL_BYTES]
