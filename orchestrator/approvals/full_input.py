"""The facts of a question that surfaces show in addition to its row: its lineage, and the full input of its call.

The question keeps a bounded summary and the digest of the real input, to which a decision is bound. The full input
is in the run's nodes as the model sent it, or in the event of the question as hooks made it, both without secrets.
It is the real input exactly when its digest is that one; otherwise a note describes it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, JsonObject, digest, parse_strict
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.runs.store import RunStore, log_of
from soong.shared.permissions.gate import MAX_SHOWN_CHARS
from soong.shared.permissions.request import PermissionRequest
from soong.shared.sandbox.redact import MARK

EXACT: Final = "exactly what an answer is bound to"
REDACTED: Final = f"without secrets, which read {MARK}; an answer is bound to the real input"
SUMMARY: Final = "a summary: the run's log does not have the full input; deny the call if you need to see it"

VALUE_CHARS: Final = 300


class FullInput(Value):
    """``input`` as a person may see it; ``note`` describes it. Nothing of it is cut exactly when ``is_complete``."""

    input: JsonObject
    note: str
    is_exact: bool = False
    is_complete: bool = True


async def read_full_input(store: RunStore, request: PermissionRequest) -> FullInput:
    """Read the full input of a question's call from its run's logs. Raises: UnavailableError."""
    found = full_input(request, await store.nodes(request.identity.run_id))
    if found.is_complete:
        return found
    event = await event_of(store, request, EventType.PERMISSION_REQUESTED)  # it has what hooks rewrote
    rewritten = None if event is None else event.data.get("input")
    return (_whole(request, rewritten) if isinstance(rewritten, Mapping) else None) or found


def full_input(request: PermissionRequest, nodes: Sequence[Node]) -> FullInput:
    """Return the full input of a question's call, as far as its run's nodes keep it."""
    if _has_digest(request.arguments, request.input_digest):
        return FullInput(request.arguments, EXACT, is_exact=True)
    found = (_whole(request, sent) for sent in _arguments_in(nodes, request.tool_call_id))
    return next(filter(None, found), FullInput(request.arguments, SUMMARY, is_complete=False))


def _whole(request: PermissionRequest, said: JsonObject) -> FullInput | None:
    if _has_digest(said, request.input_digest):
        return FullInput(said, EXACT, is_exact=True)
    return FullInput(said, REDACTED) if _fits(request.arguments, said) else None


async def event_of(store: RunStore, request: PermissionRequest, type: EventType) -> Event | None:
    """Find an event of a question in its run's log."""
    async for event in log_of(store, request.identity.run_id):
        if event.type == type and event.data.get("request_id") == request.id:
            return event
    return None


def _arguments_in(nodes: Sequence[Node], tool_call_id: str) -> Sequence[JsonObject]:
    """Return what the model sent under a call's id, newest first."""
    return [
        arguments
        for node in reversed(nodes)
        if node.kind is NodeKind.ASSISTANT
        for part in _parts(node.payload)
        if part.get("part_kind") == "tool-call" and part.get("tool_call_id") == tool_call_id
        if (arguments := _parsed(part.get("args"))) is not None
    ]


def _parts(payload: JsonObject) -> list[Mapping[str, Json]]:
    message = payload.get("message")
    parts = message.get("parts") if isinstance(message, Mapping) else None
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list | tuple) else []


def _parsed(value: Json) -> JsonObject | None:
    """Return arguments as an object: providers send them as one, or as its JSON text."""
    if isinstance(value, str):
        try:
            value = parse_strict(value)
        except InvalidJsonError:
            return None
    return value if isinstance(value, Mapping) else None


def _has_digest(value: JsonObject, expected: str) -> bool:
    try:
        return digest(value) == expected
    except InvalidJsonError:
        return False


def _fits(summary: Json, whole: Json) -> bool:
    """Say whether a question's summary is what this would be summed up to: equal but for what was cut."""
    if isinstance(summary, Mapping) and isinstance(whole, Mapping):
        known = {name: item for name, item in summary.items() if name != "…"}
        is_all = known.keys() == whole.keys() or ("…" in summary and known.keys() <= whole.keys())
        return is_all and all(_fits(item, whole[name]) for name, item in known.items())
    if isinstance(summary, list | tuple) and isinstance(whole, list | tuple):
        is_cut = bool(summary) and isinstance(summary[-1], str) and summary[-1].startswith("… (")
        kept = summary[:-1] if is_cut else summary
        return (is_cut or len(summary) == len(whole)) and len(kept) <= len(whole) and all(map(_fits, kept, whole))
    return summary == whole or (isinstance(summary, str) and _is_cut_of(summary, whole))


def _is_cut_of(summary: str, whole: Json) -> bool:
    """Say whether a text is cut from another, or stands for something that lies too deep."""
    if not isinstance(whole, str):
        return summary.startswith("… (")
    return len(whole) > MAX_SHOWN_CHARS and whole[:MAX_SHOWN_CHARS] == summary[:MAX_SHOWN_CHARS]


def step_text(who: Mapping[str, Any]) -> str:
    """Return the step that an asker works at: its id in the plan and its title."""
    step, title = who["step_key"].partition("/")[2], who["step_title"]
    return f"{step}  {title}".strip() if title != step else step


def facts_of(question: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a question without its preview, by name; callers leave out empty values."""
    who, target = question["identity"], question["target"]
    by = ", model ".join(filter(None, (who["definition"], who["model"])))
    yield "step", step_text(who)
    yield "who", f"{who['role']} agent {who['agent_id']}, run {who['run_id']} ({by})"
    foreign = f"{who['dispatched_by']}, another side than the session's: none of its rules and grants answers"
    yield "dispatched", foreign if who["is_foreign"] else ""
    yield "parent", f"agent {who['parent_agent_id']}, run {who['parent_run_id']}" if who["parent_run_id"] else "none"
    words = dict.fromkeys((question["permission"], *question["tags"]))
    yield "tool", f"{question['tool']} ({', '.join(words)})"
    yield target["kind"] or "target", target["shown"]
    yield "host", target["host"]
    summary = f": {question['risk_summary']}" if question["risk_summary"] else ""
    yield "risk", f"{question['risk']}{' - DANGEROUS' if question['is_dangerous'] else ''}{summary}"
    yield "hook", question["hook_result"] if question["hook_result"] != "none" else ""
    yield "in", question["cwd"]
    yield "with env", ", ".join(question["env"])
    given = json.dumps(question["arguments"], ensure_ascii=False, default=str)
    yield "arguments", "" if question["preview"] else given if len(given) <= VALUE_CHARS else f"{given[:VALUE_CHARS]}…"
    for effect in question["unknown_effects"]:
        yield "unknown", f"{effect.get('tool')} {effect.get('shown') or ''}: it may or may not have happened already"
    yield "policy", f"suggests: {question['suggested'].replace('_', ' ')}"
