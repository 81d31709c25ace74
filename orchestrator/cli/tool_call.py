"""One call of ``soong tools call``: made, interruptible, reported (EXE-07, EXE-12)."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from soong.orchestrator.approvals.provenance import is_run_here
from soong.orchestrator.cli.console import emit, is_terminal, output, say
from soong.orchestrator.cli.tool_text import result_json, result_text
from soong.orchestrator.direct.bootstrap import DirectRequest, open_direct
from soong.orchestrator.direct.session import DirectSession
from soong.shared.core.config import Config
from soong.shared.core.ids import new_id
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.status import EndReason
from soong.shared.permissions.request import PermissionCallback
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ErrorType, ToolResult

EXIT_FAILED = 1
EXIT_DENIED = 3
EXIT_INTERRUPTED = 130
LEFT_BEHIND = frozenset({ErrorType.ABORTED, ErrorType.TIMEOUT})
"""Ends after which a Python function may still run in a thread: nothing stops one from outside."""


def terminal_callback() -> PermissionCallback | None:
    """Return the person at this terminal as callback; None when nobody is there. Standard output is for the result."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty() or is_run_here():
        return None
    from soong.orchestrator.cli.drawing import TerminalConsole  # rich, only where somebody is asked
    from soong.orchestrator.cli.prompt import TerminalPrompt

    return TerminalPrompt(TerminalConsole(sys.stderr), lambda _is_held: None)


@dataclass(slots=True)
class ToolCallCommand:
    """One call of one command: Ctrl-C ends it, and it is reported however it ended."""

    settings: Settings
    config: Config
    registry: ToolRegistry
    request: DirectRequest
    tool: str
    arguments: Mapping[str, Json]
    _interrupts: int = 0

    async def run(self, *, is_json: bool) -> int:
        """Make the call and report it; return the exit code."""
        async with open_direct(self.settings, self.request, self.config, self.registry) as session:
            result = await self._result(session)
            if self._interrupts:
                await session.end(EndReason.ABORTED_TOOLS)
            if result is not None:
                self._report(session, result, is_json=is_json)
        code = EXIT_INTERRUPTED if self._interrupts or result is None else _exit_code(result)
        if result is not None and result.error is not None and result.error.type in LEFT_BEHIND:
            _leave(code)  # the interpreter would wait for that thread
        return code

    async def _result(self, session: DirectSession) -> ToolResult | None:
        """Return how the call ended; None when it was interrupted before it began."""
        call_id = new_id("call")
        calling = asyncio.create_task(session.call(self.tool, self.arguments, tool_call_id=call_id))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, calling)
        try:
            return await calling
        except asyncio.CancelledError:
            return session.result_of(call_id)

    def _interrupt(self, calling: "asyncio.Task[ToolResult]") -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            _leave(EXIT_INTERRUPTED)
        say("\nending the call … (Ctrl-C again leaves at once)")
        calling.cancel("interrupted by the person at the terminal")

    def _report(self, session: DirectSession, result: ToolResult, *, is_json: bool) -> None:
        path_of = session.artifact_path
        if is_json:
            emit(result_json(self.tool, result, run_id=session.run_id, run_dir=session.run_dir, path_of=path_of))
        elif result.ok:
            output(result_text(result, path_of=path_of))
        else:
            say(result_text(result, path_of=path_of))
        if not is_json and is_terminal():
            say(f"recorded in {session.run_dir}")


def _exit_code(result: ToolResult) -> int:
    if result.error is None:
        return 0
    return EXIT_DENIED if result.error.type.is_denial else EXIT_FAILED


def _leave(code: int) -> None:
    """End the process now; everything that had to be written has been."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
