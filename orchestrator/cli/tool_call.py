"""One call of ``soong tools call`` (EXE-07, EXE-12): interruptible, reported. Tools and results as text and JSON."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from soong.orchestrator.cli.console import emit, is_terminal, one_line, output, say, table
from soong.shared.core.config import Config
from soong.shared.core.ids import new_id
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.status import EndReason
from soong.shared.permissions.request import PermissionCallback
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.docs import EVERY_CALL, ArgumentDoc, arguments_of
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ArtifactRef, ErrorType, ToolResult
from soong.shared.tools.results import codec
from soong.shared.tools.results.rendering import for_person

if TYPE_CHECKING:
    from soong.orchestrator.direct.bootstrap import DirectRequest
    from soong.orchestrator.direct.session import DirectSession

EXIT_FAILED = 1
EXIT_DENIED = 3
EXIT_INTERRUPTED = 130
LEFT_BEHIND = frozenset({ErrorType.ABORTED, ErrorType.TIMEOUT})
"""Ends after which a Python function may still run in a thread: nothing stops one from outside."""

MAX_SHOWN_CHARS = 1_000_000
"""A result is bounded by the pipeline already; this only keeps a broken one from filling a terminal for ever."""


def terminal_callback() -> PermissionCallback | None:
    """Return the person at this terminal as callback; None when nobody is there. Standard output is for the result."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return None
    from soong.orchestrator.approvals.approval import is_run_here  # psutil

    if is_run_here():
        return None
    from soong.orchestrator.cli.prompt import (
        TerminalConsole,  # rich, only where somebody is asked
        TerminalPrompt,
    )

    return TerminalPrompt(TerminalConsole(sys.stderr), lambda _is_held: None)


@dataclass(slots=True)
class ToolCallCommand:
    """One call of one command: Ctrl-C ends it, and it is reported however it ended."""

    settings: Settings
    config: Config
    registry: ToolRegistry
    request: "DirectRequest"
    tool: str
    arguments: Mapping[str, Json]
    _interrupts: int = 0

    async def run(self, *, is_json: bool) -> int:
        """Make the call and report it; return the exit code."""
        from soong.orchestrator.direct.bootstrap import open_direct  # the pipeline: only a call needs it

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

    async def _result(self, session: "DirectSession") -> ToolResult | None:
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

    def _report(self, session: "DirectSession", result: ToolResult, *, is_json: bool) -> None:
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


def tool_json(tool: ToolDefinition, source: str) -> dict[str, Json]:
    """Return a tool for programs; a stable form, documented in docs/reference/tools.md."""
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "permission": tool.permission.value,
        "tags": sorted(tool.tags),
        "aliases": list(tool.aliases),
        "source": source,
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "timeout_ms": None if tool.timeout is None else tool.timeout // timedelta(milliseconds=1),
        "max_result_chars": tool.max_result_chars,
        "interrupt": tool.interrupt,
        "errors": [error.value for error in tool.errors],
    }


def tool_text(tool: ToolDefinition, source: str, settings: Settings) -> str:
    """Return all that a person needs to call a tool or to decide whether an agent should have it."""
    rows = [
        ("permission", _permission(tool)),
        ("tags", ", ".join(sorted(tool.tags)) or "none"),
        ("aliases", ", ".join(tool.aliases)),
        ("source", source),
        ("time", _time(tool, settings)),
        ("output", _output(tool, settings)),
        ("interrupt", "is waited for" if tool.interrupt == "block" else "ends it at once"),
        ("may end in", ", ".join(error.value for error in tool.errors) or "nothing of its own"),
        ("  any call", "as all tools:"),
        *((f"  {when}", ", ".join(error.value for error in errors)) for when, errors in EVERY_CALL.items()),
    ]
    head = f"{tool.name}{f'  ({inert(tool.title)})' if tool.title else ''}\n\n{inert(tool.description.strip())}"
    facts = "\n".join(f"{name:<18} {inert(value)}" for name, value in rows if value)
    return f"{head}\n\n{_arguments(arguments_of(tool.input_schema))}\n\n{facts}"


def result_json(
    tool: str, result: ToolResult, *, run_id: str, run_dir: Path, path_of: Callable[[str], Path]
) -> dict[str, Json]:
    """Return a result for programs: the stored form, what it adds to a context, where its record and bytes are."""
    artifacts = [
        {**stored_form, "path": str(path_of(str(stored_form["digest"])))}
        for stored_form in _objects(codec.to_json(tool, result)["artifacts"])
    ]
    return {
        **codec.to_json(tool, result),
        "artifacts": artifacts,
        "context_nodes": [asdict(node) for node in result.context_nodes],
        "evidence": list(result.evidence),
        "run_id": run_id,
        "run_dir": str(run_dir),
    }


def result_text(result: ToolResult, *, path_of: Callable[[str], Path]) -> str:
    """Return a result for people, inert, with the files that its artifacts are kept in."""
    shown = for_person(result, max_chars=MAX_SHOWN_CHARS)
    refs = dict.fromkeys((*result.artifacts, *(each for each in result.content if isinstance(each, ArtifactRef))))
    files = [f"{inert(ref.name) or 'artifact'} ({ref.size_bytes} bytes): {path_of(ref.digest)}" for ref in refs]
    return "\n".join([shown, *files])


def _permission(tool: ToolDefinition) -> str:
    if "dangerous" in tool.tags:
        return f"{tool.permission}: dangerous, off until config.toml enables it, then a person is asked"
    if tool.permission is Permission.WRITE:
        return "write: asks, unless a rule allows its target"
    return "readonly: runs by itself, but for sensitive targets and hosts"


def _time(tool: ToolDefinition, settings: Settings) -> str:
    if tool.is_agent_tool:
        return "as long as its child"
    own = settings.tool_timeout_ms if tool.timeout is None else tool.timeout // timedelta(milliseconds=1)
    return f"{own} ms, at most {settings.tool_max_timeout_ms} ms"


def _output(tool: ToolDefinition, settings: Settings) -> str:
    if tool.keeps_full_output:
        return "pages by itself"
    return f"{tool.max_result_chars or settings.max_result_chars} characters, then an artifact with a preview"


def _arguments(arguments: Sequence[ArgumentDoc]) -> str:
    if not arguments:
        return "It takes no arguments."
    rows = [
        (
            one.name,
            one.says,
            "required" if one.is_required else "" if one.default is None else f"[{json.dumps(one.default)}]",
            one.description,
        )
        for one in arguments
    ]
    return table(("argument", "takes", "", "meaning"), [[one_line(cell, 200) for cell in row] for row in rows])


def _objects(value: Json) -> list[Mapping[str, Json]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
