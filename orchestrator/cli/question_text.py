"""A question in words, for the prompt of `soong run` and for `soong approvals` alike.

Whatever comes from a run is made inert here: on one line where it is a fact, behind a margin where it has lines of its
own. Nothing in it can look like a line of ours.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from soong.orchestrator.approvals.full_input import FullInput, read_full_input
from soong.orchestrator.cli.console import compact, folded, visible
from soong.shared.core.identity import RunIdentity
from soong.shared.core.inert import inert
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.store import RunStore
from soong.shared.permissions.request import PermissionRequest

VALUE_CHARS: Final = 300
SHORT_ID_CHARS: Final = 8
MARGIN: Final = "  | "
GOES_ON: Final = "  : "


def short_id(request_id: str) -> str:
    """Return the end of an id: its beginning is the time, which questions that come together share."""
    return request_id[-SHORT_ID_CHARS:]


def age_text(seconds: float) -> str:
    """Return how long ago something was, in the one unit that fits."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def step_text(who: RunIdentity) -> str:
    """Return the step that an asker works at: its id in the plan and its title."""
    step, title = who.step_key.partition("/")[2], who.step_title
    return f"{step}  {title}".strip() if title != step else step


def facts_of(request: PermissionRequest) -> Iterator[tuple[str, str]]:
    """Yield the facts of a question without its preview, by name; callers leave out empty values."""
    who = request.identity
    yield "step", step_text(who)
    yield "who", f"{who.role} agent {who.agent_id}, run {who.run_id} ({who.definition}, model {who.model or 'default'})"
    foreign = f"{who.origin.principal}, another side than the session's: none of its rules and grants answers"
    yield "dispatched", foreign if who.origin.is_foreign else ""
    yield "parent", f"agent {who.parent_agent_id}, run {who.parent_run_id}" if who.parent_run_id else "none"
    words = dict.fromkeys((request.permission, *request.tags))
    yield "tool", f"{request.tool} ({', '.join(words)})"
    yield request.target_kind or "target", request.shown
    yield "host", request.host
    yield "risk", f"{request.risk}{' - DANGEROUS' if request.is_dangerous else ''}{_after(request.risk_summary)}"
    yield "hook", request.hook_result if request.hook_result != "none" else ""
    yield "in", request.cwd
    yield "with env", ", ".join(request.env)
    yield "arguments", "" if request.preview else compact(request.arguments, VALUE_CHARS)
    for effect in request.unknown_effects:
        yield "unknown", f"{effect.get('tool')} {effect.get('shown') or ''}: it may or may not have happened already"
    yield "advice", f"{request.suggested.value.replace('_', ' ')} (policy)"


def grant_text(request: PermissionRequest) -> str:
    """Return what a session grant would cover."""
    return request.scope or "none is offered: it is asked each time"


def quoted(text: str, *, max_chars: int = 0, columns: int = 0) -> list[str]:
    """Return text of others as lines behind a margin, cut with a mark that tells its length and digest.

    With ``columns`` no line is longer: one that was has another margin where it continues, so that what the terminal
    would put at the beginning of a line is never there.
    """
    kept = text[:max_chars] if max_chars else text
    lines: list[str] = []
    for line in inert(kept.removesuffix("\n")).split("\n"):
        first, *more = folded(line.expandtabs(), columns - len(MARGIN)) if columns else [line]
        lines += [f"{MARGIN}{first}", *(f"{GOES_ON}{piece}" for piece in more)]
    if kept != text:
        lines.append(f"{MARGIN}… {cut_mark(text, len(text) - len(kept))}")
    return lines


def cut_mark(text: str, missing: int) -> str:
    """Return the mark for text that was left out."""
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{missing} of {len(text)} characters more (SHA-256 of all begins {checksum})"


def input_lines(whole: FullInput, *, max_chars: int = 0, columns: int = 0) -> list[str]:
    """Return a call's input field by field: an argv a word a line, a text behind a margin, anything else as JSON."""
    lines = [f"input: {len(_json(whole.input))} characters of JSON; {whole.note}"]
    for name, value in whole.input.items():
        lines += _field(visible(name, limit=VALUE_CHARS), value, max_chars, columns)
    return lines


def full_input_reader(store: RunStore) -> Callable[[PermissionRequest], Awaitable[FullInput]]:
    """Return what reads a call's full input from the rows, for a prompt."""

    async def read(request: PermissionRequest) -> FullInput:
        return await read_full_input(store, request)

    return read


def _field(name: str, value: Json, max_chars: int, columns: int) -> list[str]:
    if isinstance(value, list | tuple) and _is_words(value):
        words = [f"[{place}] {visible(str(word))}" for place, word in enumerate(value)]
        lines = [line for word in words for line in quoted(word, max_chars=max_chars, columns=columns)]
        return [f"  {name}: {len(words)} words", *lines]
    text = value if isinstance(value, str) else _json(value)
    if "\n" not in text and len(text) <= VALUE_CHARS:
        line = f"  {name}: {visible(text)}"
        return [line] if not columns or len(line) <= columns // 2 else [f"  {name}:", *quoted(text, columns=columns)]
    count = text.count("\n") + (not text.endswith("\n"))
    ending = "" if text.endswith("\n") else ", no line break at the end"
    head = f"  {name}: {len(text)} characters, {count} lines{ending}"
    return [head, *quoted(text, max_chars=max_chars, columns=columns)]


def _is_words(value: Sequence[Json]) -> bool:
    return bool(value) and all(isinstance(word, str) for word in value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _after(text: str) -> str:
    return f": {text}" if text else ""
