"""One call of ``soong tools call`` (EXE-07, EXE-12): interruptible, reported. Its arguments, the tool and the result.

Arguments are ``key=value`` by the schema's type, or JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from soong.orchestrator.cli.options import pairs_of, value_of
from soong.orchestrator.terminal.console import details, emit, is_terminal, one_line, output, say, table
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidJsonError, UsageError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import MAX_BYTES, Json, JsonObject, inert, parse_strict
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.record import EndReason
from soong.shared.permissions.request import PermissionCallback, PermissionDecision, PermissionRequest
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import EVERY_CALL, ArtifactRef, ErrorType, ToolResult
from soong.shared.tools.results import rendering
from soong.shared.tools.schema import ArgumentDoc, arguments_of, validate

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
    from soong.orchestrator.terminal.prompt import (
        TerminalConsole,  # rich, only where somebody is asked
        TerminalPrompt,
        document_of,
    )

    prompt = TerminalPrompt(TerminalConsole(sys.stderr), lambda _is_held: None)

    async def ask(request: PermissionRequest) -> PermissionDecision:
        choice, reason = await prompt(document_of(request))
        return PermissionDecision(choice, reason)

    return ask


async def make_call(
    settings: Settings,
    config: Config,
    registry: ToolRegistry,
    request: "DirectRequest",
    tool: str,
    arguments: Mapping[str, Json],
    *,
    is_json: bool,
) -> int:
    """Make a call, which Ctrl-C ends, and report it however it ended; return the exit code."""
    from soong.orchestrator.direct.bootstrap import open_direct  # the pipeline: only a call needs it

    call_id, interrupts = new_id("call"), [0]
    async with open_direct(settings, request, config, registry) as session:
        calling = asyncio.create_task(session.call(tool, arguments, tool_call_id=call_id))

        def interrupt() -> None:
            interrupts[0] += 1
            if interrupts[0] > 1:
                _leave(EXIT_INTERRUPTED)
            say("\nending the call … (Ctrl-C again leaves at once)")
            calling.cancel("interrupted by the person at the terminal")

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        with suppress(asyncio.CancelledError):
            await calling
        if interrupts[0]:
            await session.end(EndReason.ABORTED_TOOLS)
        result = session.result_of(call_id)  # None: it was interrupted before it began
        if result is not None:
            _report(session, tool, result, is_json=is_json)
    error = result.error if result is not None else None
    code = EXIT_DENIED if error is not None and error.type.is_denial else EXIT_FAILED if error is not None else 0
    code = EXIT_INTERRUPTED if interrupts[0] or result is None else code
    if error is not None and error.type in LEFT_BEHIND:
        _leave(code)  # the interpreter would wait for that thread
    return code


def _report(session: "DirectSession", tool: str, result: ToolResult, *, is_json: bool) -> None:
    path_of = session.artifact_path
    if is_json:
        emit(result_json(tool, result, run_id=session.run_id, run_dir=session.run_dir, path_of=path_of))
        return
    write = output if result.ok else say
    write(result_text(result, path_of=path_of))
    if is_terminal():
        say(f"recorded in {session.run_dir}")


def _leave(code: int) -> None:
    """End the process now; everything that had to be written has been."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


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
    return f"{head}\n\n{_arguments(arguments_of(tool.input_schema))}\n\n{details(row for row in rows if row[1])}"


def result_json(
    tool: str, result: ToolResult, *, run_id: str, run_dir: Path, path_of: Callable[[str], Path]
) -> dict[str, Json]:
    """Return a result for programs: the stored form, what it adds to a context, where its record and bytes are."""
    stored: dict[str, Any] = dict(rendering.to_json(tool, result))
    return {
        **stored,
        "artifacts": [{**one, "path": str(path_of(one["digest"]))} for one in stored["artifacts"]],
        "context_nodes": [asdict(node) for node in result.context_nodes],
        "evidence": list(result.evidence),
        "run_id": run_id,
        "run_dir": str(run_dir),
    }


def result_text(result: ToolResult, *, path_of: Callable[[str], Path]) -> str:
    """Return a result for people, inert, with the files that its artifacts are kept in."""
    shown = rendering.for_person(result, max_chars=MAX_SHOWN_CHARS)
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


def read_arguments(tool: str, schema: JsonObject, words: Sequence[str], text: str | None) -> dict[str, Json]:
    """Return the arguments of a call: the JSON object of ``--args``, together with the ``key=value`` words.
    Raises: UsageError, says which word is wrong and what it may be.
    """
    arguments: Json = {}
    if text is not None:
        try:
            arguments = parse_strict(_source(text))
        except InvalidJsonError as error:
            raise UsageError(f"--args is not the JSON of an object: {error}") from error
    if not isinstance(arguments, dict):
        raise UsageError('--args takes a JSON object, such as \'{"path": "README.md"}\'')
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    given: dict[str, Json] = {}
    for name, value in pairs_of(words, "the argument", "such as path=README.md; or pass --args JSON").items():
        if name in arguments:
            raise UsageError(f"the argument {name!r} is given twice; give it once")
        part = known.get(name)
        is_text = isinstance(part, Mapping) and part.get("type") == "string"
        given[name] = value if is_text else value_of(value)
    # The pipeline reports missing arguments, and arguments that exclude each other.
    parts = {key: schema[key] for key in ("type", "properties", "additionalProperties", "$defs") if key in schema}
    if violations := validate(parts, given):
        raise UsageError(f"{tool} does not take these arguments: {'; '.join(map(str, violations))}")
    return {**arguments, **given}


def _source(text: str) -> str | bytes:
    """Return the JSON text itself, that of standard input (``-``) or of a file (``@name``); one byte over the limit."""
    if text == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("--args - reads standard input, which is a terminal; pipe the JSON in, or use @file")
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"--args {text!r}: not a file; name one, or use - for standard input")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"--args {text!r} cannot be read: {getattr(error, 'strerror', None) or error}") from error
