"""Child processes with every bound they need: argv only, no input, own group, bounded output and time.

The child gets the environment it is given and no descriptor but its three; its whole process group is killed when the
caller is cancelled, when its time is over, or when it has said more than is kept.
"""

import asyncio
import contextlib
import os
import signal
import sys
from datetime import timedelta

from shared.sandbox.command import Command, Ended, Finished

_STDERR_BYTES = 16 * 1024
_LAST_WORDS_S = 1.0
"""How long output may still come after the exit; it is in the pipe already unless a grandchild holds that open."""


async def run(command: Command) -> Finished:
    """Run a child to its end or to one of its bounds.

    Raises:
        OSError: it cannot be started.
        ValueError: an argument holds NUL.
    """
    loop = asyncio.get_running_loop()
    transport, child = await loop.subprocess_exec(
        lambda: _Child(command.max_stdout_bytes),
        *command.argv,
        stdin=command.stdin if isinstance(command.stdin, int) else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=f"/proc/self/fd/{command.cwd}" if sys.platform.startswith("linux") else command.cwd_path,
        env=dict(command.env),
        close_fds=True,
        start_new_session=True,
    )
    pid = transport.get_pid()
    try:
        ended = await child.end(command.timeout)
    finally:
        _kill_group(pid)
        try:
            await _reap(child)
        finally:
            transport.close()
    return Finished(transport.get_returncode() or 0, bytes(child.kept[1]), bytes(child.kept[2]), ended)


class ProcessRunner:
    """The :class:`shared.sandbox.command.CommandRunner` without an operating system sandbox."""

    async def run(self, command: Command) -> Finished:
        return await run(command)


class _Child(asyncio.SubprocessProtocol):
    """What one child says, bounded, and when it ends. A pipe that a stray grandchild holds open holds nothing up."""

    def __init__(self, max_stdout_bytes: int) -> None:
        self.kept = {1: bytearray(), 2: bytearray()}
        self._limits = {1: max_stdout_bytes, 2: _STDERR_BYTES}
        self._open = {1, 2}
        self.exited = asyncio.Event()
        self._silent = asyncio.Event()
        self._full = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        room = self._limits[fd] - len(self.kept[fd])
        self.kept[fd] += data[:room]
        if fd == 1 and len(data) > room:
            self._full.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  # the protocol's signature
        self._open.discard(fd)
        if not self._open:
            self._silent.set()

    def process_exited(self) -> None:
        self.exited.set()

    async def end(self, timeout: timedelta) -> Ended:
        """Wait for the exit, the time or the amount, whichever comes first."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.exited, self._full)]
        try:
            seconds = timeout.total_seconds()
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self.exited.is_set() and not self._full.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._silent.wait(), min(seconds, _LAST_WORDS_S))
        finally:
            for each in waiting:
                each.cancel()
        if self._full.is_set():
            return "output_limit"
        return "exited" if self.exited.is_set() else "timeout"


async def _reap(child: _Child) -> None:
    """Wait for the killed child, also when the caller is being cancelled: no zombie stays."""
    exited = asyncio.ensure_future(child.exited.wait())
    try:
        await asyncio.shield(exited)
    except asyncio.CancelledError:
        await asyncio.wait({exited})
        raise


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
