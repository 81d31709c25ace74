"""A tool that pays back and one that looks, which never come back the first time: a worker dies while they run."""

import asyncio
import json
import os
import signal
from pathlib import Path

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.registry import Toolset

tools = Toolset()
ORDER: JsonObject = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


def lines_of(path: Path) -> list[dict[str, Json]]:
    """Return what was done, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _note(path: Path, context: ToolContext, call_input: JsonObject) -> int:
    """Leave a line; return how many there are now."""
    line: dict[str, Json] = {"effect_id": context.effect_id, "order": call_input["order"], "pid": os.getpid()}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return len(lines_of(path))


async def _done(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    count = _note(Path(os.environ["REFUNDS"]), context, call_input)
    if count == 1 and (dies_after := os.environ.get("DIES_AFTER_S")):
        await asyncio.sleep(float(dies_after))
        os.kill(os.getpid(), signal.SIGKILL)
    if count == 1:
        await asyncio.Event().wait()
    return {"done": count}


def _target(_context: ToolContext, call_input: JsonObject) -> Target:
    return Target("resource", f"order:{call_input['order']}", f"order {call_input['order']}")


TAGS = frozenset({"shop"})
tools.add(ToolDefinition("shop.refund", "Pay back.", ORDER, _done, Permission.WRITE, TAGS, target=_target))
tools.add(ToolDefinition("shop.look", "Look.", ORDER, _done, Permission.READONLY, TAGS))
tools.add(
    ToolDefinition(
        *("shop.count", "Look, alone.", ORDER, _done, Permission.READONLY, TAGS),
        traits=lambda _call_input: Traits(is_read_only=True),
    )
)
