"""Child processes: the command of one and its end, the port to the runner, and a program that is talked to.

Owns the :class:`CommandRunner` protocol, the seam for an operating system sandbox. The runner without one is
:mod:`soong.shared.sandbox.process`, the one with Bubblewrap :mod:`soong.shared.sandbox.bubblewrap.runner`. A subreaper
(:mod:`soong.shared.sandbox.subreaper`) is between us and a program, so that all its descendants end with it, when it is
stopped and when we are killed. It needs Linux. Elsewhere the process group alone is ended.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.value import Value
from soong.shared.sandbox import subreaper

HAS_SUBREAPER: Final = sys.platform.startswith("linux")
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer line of a program's output is not read; the reader ends the process."""
MAX_ERROR_BYTES: Final = 16 * 1024
_MAX_REPORT_BYTES: Final = 4096


class Report(Value):
    """The report of a subreaper. A report without an end: it was killed, and the kernel killed its program with it.

    ``problem`` is the errno of a program that could not be started, ``program`` its process id, ``left`` how many
    descendants could not be killed.
    """

    program: int = 0
    problem: int = 0
    code: int = -signal.SIGKILL
    left: int = 0
    is_complete: bool = False

    @classmethod
    def read(cls, text: str) -> "Report":
        words = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in text.splitlines() if line}
        program, problem = words.get("started", [0])[0], words.get("failed", [0])[0]
        code, left = words.get("ended", [-signal.SIGKILL, 0])
        return cls(program, problem, code, left, is_complete="ended" in words or "failed" in words)


class SubreaperPipes:
    """Two pipes, open for one run. When our end of the first is closed, by us or by our death, all of it ends."""

    def __init__(self) -> None:
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        self.far_ends: Final = (control, status)
        """The subreaper's ends: to receive, and to report."""
        self._open = {control, status, self._control, self._status}

    def __enter__(self) -> "SubreaperPipes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def argv(self, limit_s: float, program: Sequence[str]) -> tuple[str, ...]:
        """Return what is started in place of a program. It inherits the far ends."""
        # By path and isolated: neither the current folder nor the environment decides what it imports.
        own = (sys.executable, "-I", "-S", subreaper.__file__)
        return (*own, *map(str, self.far_ends), str(limit_s), *program)

    def start(self) -> None:
        self._close(*self.far_ends)
        with contextlib.suppress(BrokenPipeError):  # somebody killed it; then there is no report
            os.write(self._control, b"1")

    def let_go(self) -> None:
        """Have the subreaper end whatever lives."""
        self._close(self._control)

    async def ended(self, exited: Callable[[], Awaitable[object]], send: Callable[[int], object]) -> Report:
        """End whatever lives, and do what can be done where the subreaper was killed or stopped by its program."""
        self.let_go()
        send(signal.SIGCONT)
        try:
            async with asyncio.timeout(subreaper.SWEEP_LIMIT_S + timing.CLOSE_LIMIT_S):
                await exited()
        except TimeoutError:
            send(signal.SIGKILL)
            await exited()
        report = Report()
        os.set_blocking(self._status, False)
        with contextlib.suppress(BlockingIOError):  # the subreaper has ended: all of its report is in the pipe
            report = Report.read(os.read(self._status, _MAX_REPORT_BYTES).decode("ascii"))
        if report.program and not report.is_complete:
            kill_group(report.program)
        return report

    def close(self) -> None:
        """Close what is open of both; whatever lives ends."""
        self._close(*tuple(self._open))

    def _close(self, *descriptors: int) -> None:
        for descriptor in self._open.intersection(descriptors):
            self._open.remove(descriptor)
            os.close(descriptor)


class DuplexProcess:
    """A running program. The caller that started it calls :meth:`end` or :meth:`stop`, whatever happens. ``input`` and
    ``output`` are its pipes; the end of its error stream is kept.
    """

    def __init__(self, process: Process, pipes: SubreaperPipes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.input = process.stdin
        self.output = process.stdout
        self.pid = process.pid
        """The process that we started: the subreaper, where there is one."""
        self._process = process
        self._pipes = pipes
        self._report: Report | None = None
        self._errors = bytearray()
        self._reading = asyncio.ensure_future(self._read_errors())

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        inherited: tuple[int, ...] = (),
        max_line_bytes: int = 64 * 1024,
    ) -> "DuplexProcess":
        """Start a program; ``argv[0]`` is an absolute path, ``inherited`` are descriptors that it gets.
        Raises: OSError, it cannot be started; ValueError, an argument holds NUL.
        """
        if not os.access(argv[0], os.X_OK):
            raise FileNotFoundError(2, "is not a program", argv[0])
        pipes = SubreaperPipes()
        try:
            process = await asyncio.create_subprocess_exec(
                *(pipes.argv(timing.LONGEST_S, argv) if HAS_SUBREAPER else argv),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=cwd,
                env=dict(env),
                pass_fds=(*(pipes.far_ends if HAS_SUBREAPER else ()), *inherited),
                start_new_session=True,
                limit=max_line_bytes,
            )
        except BaseException:
            pipes.close()
            raise
        pipes.start()
        return cls(process, pipes)

    @property
    def last_errors(self) -> str:
        return bytes(self._errors).decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Begin to end it and all its descendants, at once."""
        self._pipes.let_go()
        self._send(signal.SIGCONT)
        if not HAS_SUBREAPER:
            kill_group(self.pid)

    async def stop(self) -> int:
        """Close its input, and end it if that does not end it in a while. Return and raise as :meth:`end`."""
        with contextlib.suppress(OSError):
            self.input.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timing.CLOSE_LIMIT_S):
                await self._process.wait()
        return await self.end()

    async def end(self) -> int:
        """Kill what lives of it and wait until nothing does; return its exit code, negative for a signal.
        Raises: OSError, it could not be started at all, which only its subreaper knew.
        """
        if self._report is None:
            self.kill()
            report = await self._pipes.ended(self._process.wait, self._send)
            self._report = report
            self._pipes.close()
            self.input.close()
            self._reading.cancel()
        if self._report.problem:
            raise OSError(self._report.problem, os.strerror(self._report.problem))
        return self._report.code if HAS_SUBREAPER else self._process.returncode or 0

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._errors += piece
            del self._errors[:-MAX_ERROR_BYTES]

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


CommandEnd: TypeAlias = Literal["exited", "timeout", "output_limit"]
Stream: TypeAlias = Literal["stdout", "stderr"]


class SandboxUnavailableError(SoongError):
    """A command has to run in a sandbox and there is none here; ``hint`` is the next step."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


class CommandAccess(Value):
    """The reach of a command in a sandbox, beyond the read-only system; it has no effect without a sandbox.

    Files and folders, absolute and resolved. The deepest entry above a path decides about it, so a folder can be
    readable inside a writable one, or ``hidden``: it is there, and empty.
    """

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    has_network: bool = False


class ChildCommand(Value):
    """The command to run. ``argv[0]`` is an absolute path; nothing is looked up, no shell is between.

    ``cwd`` is a descriptor of a directory, so that no rename can move the child elsewhere; ``cwd_path`` is used if the
    system cannot start a child in a descriptor. ``env`` is the child's full environment. ``stdin`` is a descriptor, the
    bytes to be read from it, or None for the null device.

    The first ``max_…_bytes`` of each stream are kept. Later output ends the child (``stop``) or is counted and
    discarded (``discard``); memory is bounded either way. ``heard`` gets every piece as it comes, on the loop.
    ``access`` is its reach in a sandbox; ``inherited`` are more descriptors that it gets, by their own numbers.
    """

    argv: Sequence[str]
    cwd: int
    cwd_path: Path
    env: Mapping[str, str]
    timeout: timedelta
    max_stdout_bytes: int
    stdin: int | bytes | None = None
    max_stderr_bytes: int = 16 * 1024
    overflow: Literal["stop", "discard"] = "stop"
    heard: Callable[[Stream, bytes], None] | None = None
    access: CommandAccess = msgspec.field(default_factory=CommandAccess)
    inherited: tuple[int, ...] = ()


class Finished(Value):
    """How a child ended. ``code`` is its exit code, negative for a signal; output is complete only after ``exited``.

    ``stdout_bytes`` and ``stderr_bytes`` count all output, kept or not. ``left_running`` counts descendants that could
    not be ended: another user's, or stuck in the kernel. ``sandbox`` names what confined it; empty: nothing did.
    ``denial`` is the part of its failure that the sandbox caused, as far as its own words show it.
    """

    code: int
    stdout: bytes
    stderr: bytes
    ended: CommandEnd
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    left_running: int = 0
    sandbox: str = ""
    denial: str = ""


class CommandRunner(Protocol):
    """Runs one child to its end or to one of its bounds, or starts one that is talked to; nothing it started lives on.

    Cancelling the caller ends the child and all its descendants, also those that left its process group or session,
    before the cancellation continues.
    """

    async def run(self, command: ChildCommand) -> Finished:
        """Run it.
        Raises: OSError, it cannot be started; ValueError, an argument holds NUL; SandboxUnavailableError, it has to run
        in a sandbox, and there is none.
        """

    async def start(
        self, argv: Sequence[str], access: CommandAccess, *, cwd: Path, env: Mapping[str, str]
    ) -> DuplexProcess:
        """Start a program in a folder that exists; ``env`` is its full environment.
        Raises: OSError, it cannot be started; ValueError, an argument holds NUL; SandboxUnavailableError, it has to run
        in a sandbox, and there is none.
        """

    def confinement(self, access: CommandAccess) -> str:
        """Return in one line for people how a command with this access is confined; empty: by nothing.
        Raises: SandboxUnavailableError, it would not be run.
        """
