"""Runs commands in a Bubblewrap sandbox: the command runner of ``commands.sandbox`` ``auto`` and ``required``.

The subreaper stays outside: it starts Bubblewrap in place of the program, and Bubblewrap dies with it. Who starts
programs by other means, such as agents that speak a protocol on their standard streams, uses
:meth:`BubblewrapRunner.wrapped`.
"""

import asyncio
import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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
    Finished,
    SandboxUnavailableError,
    Stream,
)
from soong.shared.sandbox.duplex import DuplexCommand, DuplexProcess, FamilyLauncher
from soong.shared.sandbox.process import ProcessRunner

NAME: Final = "bubblewrap"
_FAILED_CODE: Final = 1
"""Of Bubblewrap itself; a program of it may end with the same."""
_LAST_WORDS_BYTES: Final = 8192
_NOT_STARTED: Final = re.compile(rb"^(?:bwrap: execvp|prlimit: failed to execute) .*: ([^:\n]+)\s*$", re.MULTILINE)
_REASONS: Final = {number: os.strerror(number) for number in (errno.EACCES, errno.ENOENT, errno.ENOEXEC, errno.E2BIG)}

_READ_ONLY: Final = "Read-only file system"
_HIDDEN: Final = ("No such file or directory", "Permission denied", "ENOENT", "EACCES")
_NETWORK: Final = (
    "Network is unreachable",
    "Temporary failure in name resolution",
    "Could not resolve host",
    "could not resolve host",
    "Name or service not known",
    "ENETUNREACH",
    "EAI_AGAIN",
    "Network unreachable",
)
_PATH: Final = re.compile(r"(?:^|[\s'\"`(=:])(/[^\s'\"`():,;]+)")
_LAST_LINES: Final = 20


class BubblewrapRunner(Value):
    """Runs each command in a sandbox of its own. ``is_required``: where there is none, nothing is run at all."""

    host: HostLayout
    is_required: bool = False
    inner: ProcessRunner = msgspec.field(default_factory=ProcessRunner)

    async def run(self, command: ChildCommand) -> Finished:
        """Run it.

        Raises:
            OSError: it cannot be started.
            ValueError: an argument holds NUL.
            SandboxUnavailableError: a sandbox is required and there is none, or this one could not be made.
        """
        found = await asyncio.to_thread(self._found)
        if found is None:
            return await self.inner.run(command)
        last = _LastWords(command)
        opened = contextlib.ExitStack()
        try:
            box = await asyncio.to_thread(opened.enter_context, self._wrapped(found, command))
            inside = replace(command, argv=box.argv, inherited=box.descriptors, heard=last.hear)
            finished = await self.inner.run(inside)
            if finished.code == _FAILED_CODE and finished.ended == "exited" and not box.has_started():
                raise _not_started(command, last.words)
            return _explained(command, finished, box, last.words)
        finally:
            opened.close()

    def confinement(self, access: CommandAccess) -> str:
        """Return in one line for people what a command with this access can reach. Blocks the first time.

        Raises:
            SandboxUnavailableError: a sandbox is required and there is none.
        """
        if self._found() is None:
            return ""
        places = ", ".join(map(str, access.writable)) or "nothing"
        return f"{NAME}: writes {places} and private temporary files; network {'yes' if access.has_network else 'no'}"

    @contextlib.contextmanager
    def wrapped(
        self, argv: Sequence[str], access: CommandAccess, *, cwd: Path, environment: Mapping[str, str]
    ) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Give the argv to start in place of this one, and the descriptors that it inherits; for long-lived programs.

        The same argv and none where there is no sandbox and none is required. The context can end once the program has
        been started. Blocks the first time.

        Raises:
            OSError: a place that it is to see cannot be opened.
            SandboxUnavailableError: a sandbox is required and there is none.
        """
        found = self._found()
        if found is None:
            yield tuple(argv), ()
            return
        with wrapped(found, self.host, access, argv, cwd=cwd, environment=environment, reports=False) as box:
            yield box.argv, box.descriptors

    def _found(self) -> BubblewrapProbe | None:
        found = probe()
        if found.works:
            return found
        if self.is_required:
            problem = f"commands.sandbox is 'required', and {found.problem}"
            raise SandboxUnavailableError(problem, f"{found.hint}, or set commands.sandbox to 'auto' or 'off'")
        return None

    def _wrapped(
        self, found: BubblewrapProbe, command: ChildCommand
    ) -> contextlib.AbstractContextManager[WrappedCommand]:
        return wrapped(found, self.host, command.access, command.argv, cwd=command.cwd_path, environment=command.env)


class _LastWords:
    """Passes output on and keeps the end of what was said on stderr."""

    def __init__(self, command: ChildCommand) -> None:
        self.words = b""
        self._heard = command.heard

    def hear(self, stream: Stream, piece: bytes) -> None:
        if stream == "stderr":
            self.words = (self.words + piece)[-_LAST_WORDS_BYTES:]
        if self._heard is not None:
            self._heard(stream, piece)


def _not_started(command: ChildCommand, words: bytes) -> Exception:
    program = _NOT_STARTED.search(words)
    if program is None:
        return SandboxUnavailableError(f"no sandbox could be made for {command.argv[0]!r}: {_last_line(words)}")
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


def _last_line(words: bytes) -> str:
    return (words.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]


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


class BubblewrapLauncher(Value):
    """Implements ``ProcessLauncher``. ``runner`` says whether there is a sandbox, and what it shows."""

    runner: BubblewrapRunner
    inner: FamilyLauncher = msgspec.field(default_factory=FamilyLauncher)

    async def start(self, command: DuplexCommand) -> DuplexProcess:
        """Start it, in a sandbox of its own.

        Raises:
            OSError: it cannot be started, or a place that it is to see cannot be opened.
            ValueError: an argument holds NUL.
            SandboxUnavailableError: a sandbox is required and there is none.
        """
        with contextlib.ExitStack() as opened:
            wrapping = self.runner.wrapped(command.argv, command.access, cwd=command.cwd, environment=command.env)
            argv, descriptors = await asyncio.to_thread(opened.enter_context, wrapping)
            return await self.inner.start(replace(command, argv=argv, inherited=descriptors))

    def confinement(self, access: CommandAccess) -> str:
        """Return in one line for people what a program with this access can reach. Blocks the first time.

        Raises:
            SandboxUnavailableError: a sandbox is required and there is none.
        """
        return self.runner.confinement(access)
