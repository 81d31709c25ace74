"""Terminals of a foreign agent: each is one ``code.run_command``, asked and bounded like any."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from acp import RequestError, schema

from soong.shared.agents.acp_agents import RUN_COMMAND
from soong.shared.core.jsontext import Json
from soong.shared.tools.result import TextBlock, ToolResult
from soong.worker.acp.calls import AgentCalls

MAX_TERMINALS: Final = 16
REFUSED_CODE: Final = 126
"""The exit code of a command that was not run, as a shell says it."""


@dataclass(slots=True)
class _Terminal:
    call_id: str
    task: "asyncio.Task[ToolResult]"
    most_bytes: int | None


@dataclass(slots=True)
class AgentTerminals:
    """One run's. ``abort`` ends one call by its id."""

    calls: AgentCalls
    abort: Callable[[str, str], object]
    _open: dict[str, _Terminal] = field(default_factory=dict)
    _made: int = 0

    def create(
        self, command: str, arguments: Sequence[str], cwd: str | None, env: Sequence[object], most_bytes: int | None
    ) -> str:
        """Begin a command and return the terminal's id. Raises: RequestError."""
        if env:
            details = "variables of a command come from the user's configuration; leave `env` out"
            raise RequestError.invalid_params({"details": details})
        if len(self._open) >= MAX_TERMINALS:
            raise RequestError(-32603, f"{MAX_TERMINALS} terminals are open; release one")
        asked: dict[str, Json] = {"argv": [command, *arguments], **({"cwd": cwd} if cwd else {})}
        ids: list[str] = []
        task = self.calls.begin(RUN_COMMAND, asked, on_id=ids.append)
        self._made += 1
        terminal_id = f"terminal-{self._made}"
        self._open[terminal_id] = _Terminal(ids[0], task, most_bytes)
        return terminal_id

    def output(self, terminal_id: str) -> schema.TerminalOutputResponse:
        """Return what a command has said: all of it once it has ended, and nothing before."""
        terminal = self._get(terminal_id)
        if not terminal.task.done():
            return schema.TerminalOutputResponse(output="", truncated=False)
        result = terminal.task.result()
        text = _text(result)
        whole = text.encode()
        most = len(whole) if terminal.most_bytes is None else terminal.most_bytes
        kept = whole[max(0, len(whole) - most) :].decode("utf-8", "ignore")
        return schema.TerminalOutputResponse(
            output=kept, truncated=len(kept) < len(text), exit_status=schema.TerminalExitStatus(exit_code=_code(result))
        )

    async def wait(self, terminal_id: str) -> schema.WaitForTerminalExitResponse:
        """Wait for a command's end."""
        result = await asyncio.shield(self._get(terminal_id).task)
        return schema.WaitForTerminalExitResponse(exit_code=_code(result))

    async def kill(self, terminal_id: str) -> None:
        """End a command; its output stays."""
        terminal = self._get(terminal_id)
        if not terminal.task.done():
            self.abort(terminal.call_id, "its agent ended it")
            await asyncio.wait({terminal.task})

    async def release(self, terminal_id: str) -> None:
        """End a command and forget it."""
        await self.kill(terminal_id)
        del self._open[terminal_id]

    async def close(self) -> None:
        """End whatever runs."""
        for terminal_id in list(self._open):
            await self.release(terminal_id)

    def _get(self, terminal_id: str) -> _Terminal:
        try:
            return self._open[terminal_id]
        except KeyError:
            raise RequestError.invalid_params({"details": f"there is no terminal {terminal_id[:100]!r}"}) from None


def _text(result: ToolResult) -> str:
    """Return the output as an agent reads it; of a command that was not run, why."""
    if result.error is not None and not _ran(result):
        return f"{result.error.message}\n"
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


def _ran(result: ToolResult) -> bool:
    return isinstance(result.data, dict) and "exit_code" in result.data


def _code(result: ToolResult) -> int:
    code = result.data.get("exit_code") if isinstance(result.data, dict) else None
    if not isinstance(code, int):
        return 0 if result.error is None else REFUSED_CODE
    return code if code >= 0 else 128 - code
