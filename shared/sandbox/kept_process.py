"""A program that is talked to for as long as it lives: a server over standard input and output.

Like every program of a run it is under a subreaper (:mod:`soong.shared.sandbox.subreaper`): it ends with all its
descendants when it is stopped, and when we are killed. Elsewhere than on Linux there is no subreaper, and its process
group is killed.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.process import HAS_SUBREAPER
from soong.shared.sandbox.subreaper_pipes import SubreaperPipes

_TAIL_BYTES: Final = 4_096
_CHUNK_BYTES: Final = 64 * 1024


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


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
