"""Starts programs that are talked to in a Bubblewrap sandbox: the launcher of ``commands.sandbox`` auto and required.

The subreaper stays outside, as for commands: when it ends, so does Bubblewrap with everything inside.
"""

import asyncio
import contextlib

import msgspec
from msgspec.structs import replace

from soong.shared.core.value import Value
from soong.shared.sandbox.bubblewrap.runner import BubblewrapRunner
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.duplex import DuplexCommand, DuplexProcess, FamilyLauncher


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
