"""A tool, and a call's result, for people and for programs."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from msgspec.structs import asdict

from soong.orchestrator.cli.console import one_line, table
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.docs import EVERY_CALL, ArgumentDoc, arguments_of
from soong.shared.tools.result import ArtifactRef, ToolResult
from soong.shared.tools.results import codec
from soong.shared.tools.results.rendering import for_person

MAX_SHOWN_CHARS = 1_000_000
"""A result is bounded by the pipeline already; this only keeps a broken one from filling a terminal for ever."""


def tool_json(tool: ToolDefinition, source: str) -> dict[str, Json]:
    """Return a tool for programs; a stable form, documented in docs/tools.md."""
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
    artifacts = [_with_path(stored_form, path_of) for stored_form in _objects(codec.to_json(tool, result)["artifacts"])]
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


def _with_path(artifact: Mapping[str, Json], path_of: Callable[[str], Path]) -> dict[str, Json]:
    return {**artifact, "path": str(path_of(str(artifact["digest"])))}


def _objects(value: Json) -> list[Mapping[str, Json]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
