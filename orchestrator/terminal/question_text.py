"""A question in words, for the prompt of `soong run` and for `soong approvals` alike.

Texts of a run are made inert here: on one line for a fact, behind a margin for several lines. Nothing in them can look
like a line of ours.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from soong.orchestrator.approvals.full_input import VALUE_CHARS, facts_of, step_text
from soong.orchestrator.client.program import program
from soong.orchestrator.terminal.console import cells_of, cut, folded, is_terminal, short_id, visible
from soong.orchestrator.terminal.summary import Document
from soong.shared.core.jsontext import Json, inert

WAITS: Final = "waits"
MARGIN: Final = "  | "
GOES_ON: Final = "  : "

BLOCK_CHARS: Final = 4_000
BLOCK_LINES: Final = 60


def age_text(seconds: float) -> str:
    """Return how long ago something was, in the one unit that fits."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def grant_text(question: Document) -> str:
    """Return what a session grant would cover."""
    return question["session_grant"] or "none is offered: it is asked each time"


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
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{missing} of {len(text)} characters more (SHA-256 of all begins {checksum})"


def input_lines(given: Document, note: str, *, max_chars: int = 0, columns: int = 0) -> list[str]:
    """Return a call's input field by field: an argv a word a line, a text behind a margin, anything else as JSON."""
    lines = [f"input: {len(_json(given))} characters of JSON; {note}"]
    for name, value in given.items():
        lines += _field(visible(name, limit=VALUE_CHARS), value, max_chars, columns)
    return lines


def _field(name: str, value: Json, max_chars: int, columns: int) -> list[str]:
    if isinstance(value, list | tuple) and (bool(value) and all(isinstance(word, str) for word in value)):
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


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def list_text(questions: Sequence[Document], now_us: int) -> str:
    """Return questions, a paragraph each; what waits is answered by the id at its head."""
    if not questions:
        return "no question waits"
    paragraphs = ["\n".join(_paragraph(question, now_us)) for question in questions]
    waiting = sum(question["ending"] == WAITS for question in questions)
    count = f"{waiting} questions wait" if waiting > 1 else "1 question waits" if waiting else "no question waits"
    return "\n\n".join([*paragraphs, count])


def _paragraph(question: Document, now_us: int) -> Iterator[str]:
    who, target = question["identity"], question["target"]
    by = ", model ".join(filter(None, (who["definition"], who["model"])))
    danger = "  DANGEROUS" if question["is_dangerous"] else ""
    age, risk = _age(question, now_us), visible(question["risk"])
    yield f"{short_id(question['id'])}  {age}  {visible(question['tool'], limit=80)}  {risk}{danger}"
    rows = [
        (target["kind"] or "target", target["shown"] or "-"),
        ("input", _json(question["arguments"])),
        ("step", f"{step_text(who)}  in {who['task_id'] or who['session_id']}"),
        ("who", f"{who['agent_id']} ({by})"),
        ("grant", grant_text(question)),
    ]
    if question["ending"] != WAITS:
        rows.append((question["ending"], _ended(question)))
    yield from aligned(rows, indent="  ")


def _age(question: Document, now_us: int) -> str:
    return age_text(now_us / 1_000_000 - datetime.fromisoformat(question["asked"]).timestamp())


def _ended(question: Document) -> str:
    decision = question["decision"]
    return f"{question['sentence']} ({decision['decided'][:19]}Z)" if decision else str(question["sentence"])


def show_text(question: Document, now_us: int, *, is_full: bool) -> str:
    """Return all about one question: what PER-06 lists, its full input with ``is_full``, the target as it is now."""
    whole, most = question["full_input"], 0 if is_full else BLOCK_CHARS
    parts = [
        _head(question, now_us),
        "\n".join(aligned(_rows(question), indent="  ")),
        *_preview(question, is_full=is_full),
        *_now(question["now"]),
        "\n".join(input_lines(whole["input"], whole["note"], max_chars=most, columns=columns())),
    ]
    if question["ending"] == WAITS:
        key = short_id(question["id"])
        once = f"{program()} approvals allow {key}{' [--session]' if question['session_grant'] else ''}"
        parts.append(f"answer it: {once}\n           {program()} approvals deny {key} [--reason WORDS]")
    return "\n\n".join(parts)


def aligned(rows: Iterable[tuple[str, str]], *, indent: str = "", width: int | None = None) -> Iterator[str]:
    """Yield names and values, the values inert and folded to the terminal's ``width`` below each other."""
    width = columns() if width is None else width
    most = min(20, width // 3) if width else 20
    shown = [(cut(visible(name), most), visible(value, limit=VALUE_CHARS)) for name, value in rows if value]
    column = max((cells_of(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = folded(value, max(8, width - len(indent) - column - 2)) if width else [value]
        yield f"{indent}{name}{' ' * (column - cells_of(name))}  {first}"
        yield from (f"{indent}{'':<{column}}  {piece}" for piece in more)


def columns() -> int:
    """Return how many columns there are to write on; 0 where lines are as long as what they say (a pipe, a file)."""
    return shutil.get_terminal_size().columns if is_terminal() else 0


def _head(question: Document, now_us: int) -> str:
    why = f" ({visible(question['withdrawn'])})" if question["withdrawn"] else ""
    said = f"{visible(question['tool'], limit=80)}: {visible(_ended(question))}{why}"
    return f"{question['id']}\n{said}; asked {_age(question, now_us)} ago"


def _rows(question: Document) -> Iterator[tuple[str, str]]:
    session = question["session"]
    for name, value in facts_of(question):
        if name not in ("parent", "unknown"):  # told below, from rows
            yield name, value
    for parent in question["parents"]:
        definition = parent["definition"] or "no definition"
        yield "under", f"{parent['role']} agent {parent['agent_id']}, run {parent['run_id']} ({definition})"
    yield "task", f"{question['identity']['task_id']}  {question['task_title']}".strip()
    mode = f"{session['approval_mode']}, answered by {session['principal']}"
    yield "session", f"{session['id']} ({mode}) on {session['project']}"
    yield "grant", grant_text(question)
    yield "tainted", "this run has read what strangers wrote" if question["is_tainted"] else ""
    yield "digest", f"{question['input_digest']} (SHA-256 of the input that an answer is bound to)"
    yield "before", question["precondition"]


def _preview(question: Document, *, is_full: bool) -> Iterator[str]:
    preview, now = question["preview"], question["now"]
    if preview and (now is None or preview != now["preview"]):
        yield "\n".join(["shown when it was asked:", *_block(preview, is_full=is_full)])


def _now(now: Document | None) -> Iterator[str]:
    if now is not None and now["note"]:
        note = f"{'CHANGED: ' if now['is_changed'] else ''}{visible(now['note'])}{':' if now['preview'] else ''}"
        lines = folded(note, columns()) if columns() else [note]
        yield "\n".join([*lines, *(_block(now["preview"], is_full=True) if now["preview"] else [])])


def _block(text: str, *, is_full: bool) -> list[str]:
    lines = quoted(text, max_chars=0 if is_full else BLOCK_CHARS, columns=columns())
    if is_full or len(lines) <= BLOCK_LINES:
        return lines
    return [*lines[:BLOCK_LINES], f"  … {len(lines) - BLOCK_LINES} lines more; --full shows them"]
