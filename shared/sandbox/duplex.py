"""A child process that is talked to while it runs: its input and output are streams, and its family ends with it.

The port is :class:`ProcessLauncher`; a launcher that puts the program into an operating system sandbox is another
adapter of it. The one here puts a subreaper between us and the program, as
:class:`soong.shared.sandbox.process.ProcessRunner` does for commands, so that all its descendants end with it, when it
is stopped and when we are killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.process import HAS_SUBREAPER
from soong.shared.sandbox.subreaper_pipes import SubreaperPipes

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""A longer line of its output is not read; who reads it ends the process."""
MAX_ERROR_BYTES: Final = 16 * 1024


class DuplexCommand(Value):
    """What to run. ``argv[0]`` is an absolute path, ``env`` the full environment, ``cwd`` a folder that exists.

    ``access`` is what a sandbox lets it reach; ``inherited`` are descriptors that it gets, by their own numbers.
    """

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    access: CommandAccess = msgspec.field(default_factory=CommandAccess)
    inherited: tuple[int, ...] = ()


class DuplexProcess(Protocol):
    """A running program. The caller that started it calls :meth:`end`, whatever happens."""

    @property
    def output(self) -> asyncio.StreamReader: ...

    @property
    def input(self) -> asyncio.StreamWriter: ...

    @property
    def last_errors(self) -> str:
        """Return the end of what it wrote to its error stream."""
        ...

    def kill(self) -> None:
        """Begin to end it and all its descendants, at once."""
        ...

    async def end(self) -> None:
        """Kill what lives of it and wait until nothing does. May be called again."""
        ...


class ProcessLauncher(Protocol):
    """Starts programs that are talked to."""

    async def start(self, command: DuplexCommand) -> DuplexProcess:
        """Start it.

        Raises:
            OSError: it cannot be started.
            ValueError: an argument holds NUL.
            SandboxUnavailableError: it has to run in a sandbox, and there is none.
        """
        ...

    def confinement(self, access: CommandAccess) -> str:
        """Return in one line for people how a program with this access is confined; empty: by nothing.

        Raises:
            SandboxUnavailableError: it would not be started.
        """
        ...


class FamilyLauncher:
    """The :class:`ProcessLauncher` without an operating system sandbox."""

    async def start(self, command: DuplexCommand) -> DuplexProcess:
        """Start it, under a subreaper where there can be one.

        Raises:
            OSError: it cannot be started.
            ValueError: an argument holds NUL.
        """
        if not os.access(command.argv[0], os.X_OK):
            raise FileNotFoundError(2, "is not a program", command.argv[0])
        pipes = SubreaperPipes()
        argv: Sequence[str] = command.argv
        if HAS_SUBREAPER:
            own = (sys.executable, "-I", "-S", subreaper.__file__)
            argv = (*own, *map(str, pipes.far_ends), str(timing.LONGEST_STEP_S), *command.argv)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=command.cwd,
                env=dict(command.env),
                pass_fds=(*(pipes.far_ends if HAS_SUBREAPER else ()), *command.inherited),
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )
        except BaseException:
            pipes.__exit__()
            raise
        pipes.start()
        return _FamilyProcess(process, pipes)

    def confinement(self, access: CommandAccess) -> str:
        """Return nothing: the program has the rights of its user."""
        del access
        return ""


@dataclass(slots=True)
class _FamilyProcess:
    """A program under a subreaper: it ends with all its descendants."""

    _process: asyncio.subprocess.Process
    _pipes: SubreaperPipes
    _errors: bytearray = field(default_factory=bytearray)
    _reading: "asyncio.Task[None]" = field(init=False)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read_errors())

    @property
    def output(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def input(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def last_errors(self) -> str:
        return bytes(self._errors).decode("utf-8", "replace")

    def kill(self) -> None:
        self._pipes.let_go()
        self._send(signal.SIGCONT)
        if not HAS_SUBREAPER:
            self._kill_group(self._process.pid)

    async def end(self) -> None:
        if self._is_over:
            return
        self.kill()
        try:
            async with asyncio.timeout(subreaper.SWEEP_LIMIT_S + timing.CLOSE_LIMIT_S):
                await self._process.wait()
        except TimeoutError:
            self._send(signal.SIGKILL)
            await self._process.wait()
        if HAS_SUBREAPER:
            self._pipes.listen()
            report = self._pipes.report
            if report.program and not report.is_complete:
                self._kill_group(report.program)  # the subreaper was killed, perhaps by its program
        self._is_over = True
        self._pipes.__exit__()
        self.input.close()
        self._reading.cancel()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(4096):
            self._errors += piece
            del self._errors[:-MAX_ERROR_BYTES]

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    @staticmethod
    def _kill_group(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
