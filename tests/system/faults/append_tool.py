"""A tool that asks and leaves a line each time it runs, with a border on either side of what it does."""

import json
import os
from pathlib import Path

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.registry import Toolset
from tests.system.faults.borders import reach

TOOL = "test.append"
SCHEMA: JsonObject = {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}
tools = Toolset()


def note(file: Path, line: dict[str, Json]) -> None:
    """Append a line of JSON; those of several processes never mix."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


def noted(file: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def _append(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    reach("tool:before")
    run = context.identity.run_id
    line: dict[str, Json] = {"line": call_input["line"], "run": run, "effect": context.effect_id, "pid": os.getpid()}
    note(Path(os.environ["APPENDED"]), line)
    reach("tool:after")
    return {"appended": True}


def _target(_context: ToolContext, call_input: JsonObject) -> Target:
    return Target("resource", "lines", f"line {call_input['line']}")


tools.add(
    ToolDefinition(TOOL, "Append a line.", SCHEMA, _append, Permission.WRITE, frozenset({"shop"}), target=_target)
)
