"""The tools of a foreign agent for the pipeline: one for each kind of the protocol, with what a call touches.

An agent describes its own call: kind, title, paths, a diff, its raw input. All of that is the input that a person
is shown and a decision is bound to. The agent's program then acts by itself: the gate is before it and not around it
(docs/reference/acp.md).
"""

import asyncio
import difflib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from soong.shared.agents.acp_agents import NEEDED, AcpAgent, OwnKind
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.permissions.rules import METADATA_KEY
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.hosts import HostRefusedError, normal_host
from soong.shared.sandbox.paths import Located, PathPolicy
from soong.shared.tools.definition import Handler, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import arguments, string
from soong.shared.toolsets.code.atomic_write import ABSENT, read_state
from soong.shared.toolsets.code.named_files import is_network_client
from soong.shared.toolsets.code.paths import stands_key
from soong.shared.toolsets.code.write_file import MAX_COMPARED_LINES, locate_for_writing

LIMIT: Final = timedelta(seconds=600)
"""How long an allowed call of an agent's own may take; the deployment's longest time holds as well."""
MAX_PATHS: Final = 100
MAX_PREVIEW_CHARS: Final = 20_000
_FILES: Final = frozenset({OwnKind.READ, OwnKind.EDIT, OwnKind.DELETE, OwnKind.MOVE})

_SCHEMA: Final = arguments(
    "title",
    "kind",
    title=string("What the agent calls it."),
    kind=string("The kind that it states."),
    paths={"type": "array", "items": {"type": "string"}, "maxItems": MAX_PATHS, "description": "What it names."},
    diffs={
        "type": "array",
        "maxItems": MAX_PATHS,
        "items": {"type": "object"},
        "description": "Each with path, old and new.",
    },
    text=string("What else it shows."),
    input={"type": "object", "description": "The raw input of its tool."},
)


def own_tools(
    agent: AcpAgent, surface: Sequence[ToolDefinition], policy: PathPolicy, handler: Handler, start: Handler
) -> tuple[ToolDefinition, ...]:
    """Return the tools of an agent that a run with this surface may have; ``start`` begins the agent itself."""
    names = {tool.name for tool in surface}
    kinds = [kind for kind in OwnKind if NEEDED.get(kind, "") in {"", *names}]
    return tuple(_tool(agent, kind, policy, start if kind is OwnKind.RUN else handler) for kind in kinds)


def _tool(agent: AcpAgent, kind: OwnKind, policy: PathPolicy, handler: Handler) -> ToolDefinition:
    is_read = kind is OwnKind.READ
    tags = {"acp", kind.value, "readonly" if is_read else "write"}
    tags |= {"filesystem"} if kind in _FILES or kind is OwnKind.RUN else set()
    tags |= {"dangerous"} if kind is OwnKind.EXECUTE else set()
    tags |= {"network"} if kind is OwnKind.FETCH else set()
    return ToolDefinition(
        name=agent.tool(kind),
        title=f"{kind.value} of {agent.name}",
        description=f"A call of the agent {agent.name}, of the kind {kind.value}.",
        input_schema={"type": "object"} if kind is OwnKind.RUN else _SCHEMA,
        handler=handler,
        permission=Permission.READONLY if is_read else Permission.WRITE,
        tags=frozenset(tags),
        timeout=LIMIT,
        open_world=kind in (OwnKind.FETCH, OwnKind.OTHER, OwnKind.RUN),
        traits=lambda call_input: _traits(kind, call_input),
        target=lambda context, call_input: _target(agent, kind, policy, context, call_input),
        metadata={METADATA_KEY: True},
    )


def _traits(kind: OwnKind, call_input: JsonObject) -> Traits:
    words = command_of(call_input).split() if kind is OwnKind.EXECUTE else []
    return Traits(
        is_read_only=kind is OwnKind.READ,
        is_concurrency_safe=kind is OwnKind.READ,
        is_destructive=kind is OwnKind.DELETE,
        is_open_world=kind in (OwnKind.FETCH, OwnKind.OTHER, OwnKind.RUN) or any(map(is_network_client, words)),
    )


def command_of(call_input: JsonObject) -> str:
    """Return the command that an agent's call shows: its raw input where that has one, else its title."""
    raw = call_input.get("input")
    said = raw.get("command") if isinstance(raw, Mapping) else None
    if isinstance(said, list | tuple):
        said = " ".join(map(str, said))
    return said if isinstance(said, str) and said.strip() else str(call_input.get("title", ""))


def precondition_of(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> str:
    """Return the state of the files that a call names. Raises: PathRefusedError."""
    located = [locate_for_writing(policy, context, path) for path in _paths(call_input)]
    return "\n".join(_state(one.resolved) for one in located)


def _target(agent: AcpAgent, kind: OwnKind, policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Target:
    if kind is OwnKind.RUN:
        return _program(call_input)
    if kind in _FILES and _paths(call_input):
        return _files(kind, policy, context, call_input)
    if kind in _FILES and kind is not OwnKind.READ:
        problem = f"the agent's {kind.value} names no file"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="name its path in a diff or a location")
    if kind is OwnKind.FETCH:
        return _host(call_input)
    shown = command_of(call_input) if kind is OwnKind.EXECUTE else str(call_input.get("title", ""))
    where = f"{agent.name}: {shown} in {context.run_dirs.cwd}" if kind is OwnKind.EXECUTE else ""
    return Target(
        kind="command" if kind is OwnKind.EXECUTE else "resource",
        scope=where,
        shown=f"{shown} in {context.run_dirs.cwd}" if kind is OwnKind.EXECUTE else shown,
        preview=_preview(call_input),
        # A search or a read that names nothing may be of anything.
        is_inside_roots=kind is not OwnKind.READ,
    )


def _program(call_input: JsonObject) -> Target:
    argv = " ".join(json.dumps(word) if " " in word else word for word in map(str, _list(call_input.get("argv"))))
    shown = f"{argv} in {call_input.get('cwd')}"
    sandbox = call_input.get("sandbox")
    lines = [
        "an agent's own program: what it asks for is asked here; what it does without asking runs with the rights of",
        "the worker's user, and it may reach the network" if not sandbox else f"its sandbox; {sandbox}",
        f"environment: {', '.join(map(str, _list(call_input.get('env'))))}",
        f"session mode: {call_input.get('mode') or 'the agent has none'}",
    ]
    return Target("command", scope=shown, shown=shown, preview="\n".join(lines))


def _files(kind: OwnKind, policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> Target:
    paths = _paths(call_input)
    located = [_located(kind, policy, context, path) for path in paths]
    is_one = len(located) == 1
    first = located[0].resolved
    is_read = kind is OwnKind.READ
    is_inside = all(one.is_inside_read_roots if is_read else one.is_inside_write_roots for one in located)
    return Target(
        # Rules and grants are for one place; a call over several is asked as a whole.
        kind="path" if is_one else "resource",
        scope=str(first.parent) if is_one else "",
        shown=str(first) if is_one else ", ".join(str(one.resolved) for one in located),
        is_inside_roots=is_inside,
        is_sensitive=any(_is_sensitive(kind, one) for one in located),
        precondition="" if kind is OwnKind.READ else precondition_of(policy, context, call_input),
        preview=_preview(call_input),
    )


def _located(kind: OwnKind, policy: PathPolicy, context: ToolContext, path: str) -> Located:
    if kind is OwnKind.READ:
        return policy.locate(context.run_dirs, path)
    return locate_for_writing(policy, context, path)


def _is_sensitive(kind: OwnKind, located: Located) -> bool:
    more = stands_key(located.resolved) if kind is OwnKind.READ else located.is_steering
    return located.is_sensitive or more


def _state(path: Path) -> str:
    if path.is_dir():
        return f"folder {path.stat().st_ino}"
    return read_state(path).precondition


def _host(call_input: JsonObject) -> Target:
    raw = call_input.get("input")
    url = str(raw.get("url", "")) if isinstance(raw, Mapping) else ""
    try:
        host = normal_host(urlsplit(url).hostname or "") if url else ""
    except (HostRefusedError, ValueError) as error:
        raise ToolError(ErrorType.INVALID_INPUT, f"the address {url[:200]!r} names no host: {error}") from error
    return Target(
        "host" if host else "resource",
        scope=host,
        shown=url or str(call_input.get("title", "")),
        host=host,
        preview=_preview(call_input),
    )


def _paths(call_input: JsonObject) -> list[str]:
    diffs = [one.get("path") for one in _list(call_input.get("diffs")) if isinstance(one, Mapping)]
    said = [*diffs, *_list(call_input.get("paths"))]
    return list(dict.fromkeys(path for path in said if isinstance(path, str) and path))


def _preview(call_input: JsonObject) -> str:
    """Return what a person reads: the title, the diffs, what else the agent shows, and the raw input of its tool."""
    parts = [f"the agent calls it: {call_input.get('title', '')}"]
    parts += [_diff_text(one) for one in _list(call_input.get("diffs")) if isinstance(one, Mapping)]
    text, raw = str(call_input.get("text", "")), call_input.get("input")
    parts += [text] if text else []
    if raw:
        parts.append(f"input: {json.dumps(raw, ensure_ascii=False, indent=1)}")
    shown = "\n".join(parts)
    return shown if len(shown) <= MAX_PREVIEW_CHARS else f"{shown[:MAX_PREVIEW_CHARS]}\n[it continues]"


def _diff_text(diff: Mapping[str, Json]) -> str:
    path, old, new = str(diff.get("path")), diff.get("old"), str(diff.get("new", ""))
    if not isinstance(old, str):
        return f"new content of {path}:\n{new}"
    before, after = old.splitlines(), new.splitlines()
    note = "" if _holds(path, old) else "\n[the file does not hold the old text that the agent shows]"
    if max(len(before), len(after)) > MAX_COMPARED_LINES:
        return f"new content of {path}, {len(after)} lines{note}:\n{new}"
    return "\n".join(difflib.unified_diff(before, after, path, path, lineterm="")) + note


def _holds(path: str, text: str) -> bool:
    """Say whether a file has a text now; what cannot be read is not held against the agent."""
    try:
        if not os.path.isabs(path):  # noqa: PTH117  # text of others, not yet a path
            return True
        state = read_state(Path(os.path.realpath(path)))
    except (OSError, PathRefusedError, ValueError):
        return True
    if state.precondition == ABSENT or state.content is None:
        return state.precondition != ABSENT
    return text.encode("utf-8", "surrogatepass") in state.content


async def check_unchanged(kind: OwnKind, policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> None:
    """Hold the files of a call to what they were when it was asked. Raises: PathRefusedError."""
    if kind in _FILES and kind is not OwnKind.READ:
        now = await asyncio.to_thread(precondition_of, policy, context, call_input)
        if now != context.precondition:
            raise PathRefusedError(PathRefusal.CHANGED, context.target.shown, "changed since it was asked", "ask again")


def _list(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list | tuple) else ()
