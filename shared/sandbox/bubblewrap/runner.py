"""Runs commands in a Bubblewrap sandbox: the command runner of ``commands.sandbox`` ``auto`` and ``required``.

The subreaper stays outside: it starts Bubblewrap in place of the program, and Bubblewrap dies with it.
"""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.value import Value
from soong.shared.sandbox.bubblewrap.mounts import HostLayout, SandboxView
from soong.shared.sandbox.bubblewrap.wrapped import BubblewrapProbe, WrappedCommand, probe, wrapped
from soong.shared.sandbox.command import (
    ChildCommand,
    CommandAccess,
    DuplexProcess,
    Finished,
    SandboxUnavailableError,
    Stream,
)
from soong.shared.sandbox.process import ProcessRunner

NAME: Final = "bubblewrap"
_FAILED_CODE: Final = 1
"""The exit code of Bubblewrap itself; a program in it may end with the same."""
_LAST_WORDS_BYTES: Final = 8192
_NOT_STARTED: Final = re.compile(rb"^(?:bwrap: execvp|prlimit: failed to execute) .*: ([^:\n]+)\s*$", re.MULTILINE)
_REASONS: Final = {number: os.strerror(number) for number in (errno.EACCES, errno.ENOENT, errno.ENOEXEC, errno.E2BIG)}

_READ_ONLY: Final = "Read-only file system"
_HIDDEN: Final = ("No such file or directory", "Permission denied", "ENOENT", "EACCES")
_NETWORK: Final = (
    *("Network is unreachable", "Temporary failure in name resolution", "Could not resolve host"),
    *("could not resolve host", "Name or service not known", "ENETUNREACH", "EAI_AGAIN", "Network unreachable"),
)
_PATH: Final = re.compile(r"(?:^|[\s'\"`(=:])(/[^\s'\"`():,;]+)")
_LAST_LINES: Final = 20


class BubblewrapRunner(Value):
    """Runs each command in a sandbox of its own. ``is_required``: without a sandbox, nothing is run at all."""

    host: HostLayout
    is_required: bool = False
    inner: ProcessRunner = msgspec.field(default_factory=ProcessRunner)

    async def run(self, command: ChildCommand) -> Finished:
        found = await asyncio.to_thread(self._found)
        if found is None:
            return await self.inner.run(command)
        words = bytearray()

        def hear(stream: Stream, piece: bytes) -> None:
            if stream == "stderr":
                words.extend(piece)
                del words[:-_LAST_WORDS_BYTES]
            if command.heard is not None:
                command.heard(stream, piece)

        opened = contextlib.ExitStack()
        try:
            access, cwd, env = command.access, command.cwd_path, command.env
            wrapping = wrapped(found, self.host, access, command.argv, cwd=cwd, environment=env)
            box = await asyncio.to_thread(opened.enter_context, wrapping)
            inside = replace(command, argv=box.argv, inherited=box.descriptors, heard=hear)
            finished = await self.inner.run(inside)
            if finished.code == _FAILED_CODE and finished.ended == "exited" and not box.has_started():
                raise _not_started(command, bytes(words))
            return _explained(command, finished, box, bytes(words))
        finally:
            opened.close()

    def confinement(self, access: CommandAccess) -> str:
        """Return what a command with this access can reach. Blocks the first time."""
        if self._found() is None:
            return ""
        places = ", ".join(map(str, access.writable)) or "nothing"
        return f"{NAME}: writes {places} and private temporary files; network {'yes' if access.has_network else 'no'}"

    async def start(
        self, argv: Sequence[str], access: CommandAccess, *, cwd: Path, env: Mapping[str, str]
    ) -> DuplexProcess:
        found = await asyncio.to_thread(self._found)
        if found is None:
            return await self.inner.start(argv, access, cwd=cwd, env=env)
        with contextlib.ExitStack() as opened:
            wrapping = wrapped(found, self.host, access, argv, cwd=cwd, environment=env, reports=False)
            box = await asyncio.to_thread(opened.enter_context, wrapping)
            return await self.inner.start(box.argv, access, cwd=cwd, env=env, inherited=box.descriptors)

    def _found(self) -> BubblewrapProbe | None:
        found = probe()
        if found.works:
            return found
        if self.is_required:
            problem = f"commands.sandbox is 'required', and {found.problem}"
            raise SandboxUnavailableError(problem, f"{found.hint}, or set commands.sandbox to 'auto' or 'off'")
        return None


def _not_started(command: ChildCommand, words: bytes) -> Exception:
    program = _NOT_STARTED.search(words)
    if program is None:
        last = (words.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        return SandboxUnavailableError(f"no sandbox could be made for {command.argv[0]!r}: {last}")
    return _start_error(command, program)


def _start_error(command: ChildCommand, said: re.Match[bytes]) -> OSError:
    reason = said[1].decode("utf-8", "replace")
    number = next((code for code, text in _REASONS.items() if text == reason), errno.ENOENT)
    return OSError(number, f"{os.strerror(number)} in the sandbox", command.argv[0])


def _explained(command: ChildCommand, finished: Finished, box: WrappedCommand, words: bytes) -> Finished:
    """Return how it ended, with what the sandbox had to do with it."""
    limited = _NOT_STARTED.search(words) if finished.code in (126, 127) else None
    if limited is not None and limited[0].startswith(b"prlimit"):
        raise _start_error(command, limited)
    text = words.decode("utf-8", "replace")
    is_failure = finished.ended == "exited" and finished.code != 0
    refused = denial(text, box.view, has_network=command.access.has_network) if is_failure else ""
    return replace(finished, sandbox=NAME, denial=refused)


def denial(words: str, view: SandboxView, *, has_network: bool) -> str:
    """Return what the sandbox refused, as one clause, or nothing."""
    for line in reversed(words.splitlines()[-_LAST_LINES:]):
        if _READ_ONLY in line:
            place = (_PATH.findall(line) or [""])[-1]
            return f"{place!r} is read-only in the sandbox" if place else "the place is read-only in the sandbox"
        if not has_network and any(sign in line for sign in _NETWORK):
            return "the sandbox has no network"
        if any(sign in line for sign in _HIDDEN):
            hidden = (path for path in _PATH.findall(line) if view.kind_at(Path(path)) in (None, "empty"))
            if place := next((path for path in hidden if not path.startswith(("/proc", "/dev"))), ""):
                return f"{place!r} is not visible in the sandbox"
    return ""
