"""Child processes with every bound they need: argv only, no input, own group, bounded output and time.

The child gets the environment it is given and no descriptor but its three; its whole process group is killed when the
caller is cancelled, when its time is over, or when it has said more than is kept.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

_CHUNK_BYTES = 64 * 1024
_STDERR_BYTES = 16 * 1024

Ended = Literal["exited", "timeout", "output_limit"]


@dataclass(frozen=True, slots=True)
class Finished:
    """How a child ended. ``code`` is its exit code, negative for a signal; output is complete only after ``exited``."""

    code: int
    stdout: bytes
    stderr: bytes
    ended: Ended


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. ``argv[0]`` is an absolute path; ``stdin`` is a descriptor, None is the null device.

    ``cwd`` is a descriptor of a directory, so that no rename can move the child elsewhere; where the system cannot
    start a child in a descriptor, ``cwd_path`` is used.
    """

    argv: Sequence[str]
    cwd: int
    cwd_path: Path
    env: Mapping[str, str]
    timeout: timedelta
    max_stdout_bytes: int
    stdin: int | None = None


async def run(command: Command) -> Finished:
    """Run a child to its end or to one of its bounds.

    Raises:
        OSError: it cannot be started.
        ValueError: an argument holds NUL.
    """
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=asyncio.subprocess.DEVNULL if command.stdin is None else command.stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=f"/proc/self/fd/{command.cwd}" if sys.platform.startswith("linux") else command.cwd_path,
        env=dict(command.env),
        close_fds=True,
        start_new_session=True,
    )
    try:
        return await _collect(process, command)
    finally:
        _kill_group(process.pid)
        await _reap(process)


async def _collect(process: asyncio.subprocess.Process, command: Command) -> Finished:
    assert process.stdout is not None and process.stderr is not None  # noqa: PT018  # both are pipes
    stderr = bytearray()
    stdout = bytearray()
    errors = asyncio.create_task(_read(process.stderr, stderr, _STDERR_BYTES, stop_when_full=False))
    ended: Ended = "exited"
    try:
        async with asyncio.timeout(command.timeout.total_seconds()):
            is_full = await _read(process.stdout, stdout, command.max_stdout_bytes, stop_when_full=True)
            if is_full:
                ended = "output_limit"
                _kill_group(process.pid)
            await process.wait()
    except TimeoutError:
        ended = "timeout"
        _kill_group(process.pid)
        await process.wait()
    finally:
        # A grandchild that left the group may hold the pipe open for ever; what came until now is what there is.
        await asyncio.wait({errors}, timeout=0.2)
        errors.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await errors
    return Finished(process.returncode or 0, bytes(stdout), bytes(stderr), ended)


async def _read(stream: asyncio.StreamReader, into: bytearray, limit: int, *, stop_when_full: bool) -> bool:
    """Read up to ``limit`` bytes; return whether there was more. Reads on and drops it unless told to stop."""
    is_full = False
    while chunk := await stream.read(_CHUNK_BYTES):
        room = limit - len(into)
        into += chunk[:room]
        is_full = is_full or len(chunk) > room
        if is_full and stop_when_full:
            return True
    return is_full


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Wait for the killed child, also when the caller is being cancelled: no zombie and no open transport stays."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait({waiting})
        raise
    finally:
        transport = getattr(process, "_transport", None)  # closing the pipes has no public call in asyncio
        if transport is not None:
            transport.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
