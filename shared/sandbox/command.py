"""The command of a child process and its end: the port between tools and the runner of their programs.

Owns the values and the :class:`CommandRunner` protocol, the seam for an operating system sandbox. The runner without
one is :mod:`soong.shared.sandbox.process`, the one with Bubblewrap :mod:`soong.shared.sandbox.bubblewrap.runner`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

from soong.shared.core.errors import SoongError
from soong.shared.core.value import Value
from soong.shared.sandbox.duplex import DuplexProcess

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
