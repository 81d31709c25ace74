"""Lists of questions and all about one, for people: plain text, inert, as wide as the terminal is."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from soong.orchestrator.approvals.approval import WAITS, Approval, status_of_question
from soong.orchestrator.cli.console import folded, is_terminal, visible
from soong.orchestrator.cli.question_text import (
    age_text,
    facts_of,
    grant_text,
    input_lines,
    quoted,
    short_id,
    step_text,
)
from soong.orchestrator.client.program import program
from soong.shared.core.clock import to_the_second
from soong.shared.core.identity import RunIdentity
from soong.shared.permissions.request import Question

VALUE_CHARS: Final = 300
BLOCK_CHARS: Final = 4_000
BLOCK_LINES: Final = 60


def list_text(questions: Sequence[Question], now_us: int) -> str:
    """Return questions, a paragraph each; what waits is answered by the id at its head."""
    if not questions:
        return "no question waits"
    paragraphs = ["\n".join(_paragraph(question, now_us)) for question in questions]
    waiting = sum(status_of_question(question).word == WAITS for question in questions)
    count = f"{waiting} questions wait" if waiting > 1 else "1 question waits" if waiting else "no question waits"
    return "\n\n".join([*paragraphs, count])


def _paragraph(question: Question, now_us: int) -> Iterator[str]:
    request, ending = question.request, status_of_question(question)
    who = request.identity
    age = age_text((now_us - request.created_us) / 1_000_000)
    danger = "  DANGEROUS" if request.is_dangerous else ""
    yield f"{short_id(request.id)}  {age}  {visible(request.tool, limit=80)}  {visible(request.risk)}{danger}"
    rows = [
        (request.target_kind or "target", request.shown or "-"),
        ("step", f"{step_text(who)}  in {who.task_id or who.session_id}"),
        ("who", f"{who.agent_id} ({who.definition}, model {who.model or 'default'})"),
        ("grant", grant_text(request)),
    ]
    if ending.word != WAITS:
        rows.append((ending.word, _ended(question, ending.sentence)))
    yield from aligned(rows, indent="  ")


def _ended(question: Question, sentence: str) -> str:
    when = question.decision.decided_us if question.decision is not None else None
    return f"{sentence} ({to_the_second(when)})" if when is not None else sentence


def show_text(approval: Approval, now_us: int, *, is_full: bool) -> str:
    """Return all about one question: what PER-06 lists, its full input with ``is_full``, the target as it is now."""
    parts = [
        _head(approval, now_us),
        "\n".join(aligned(_rows(approval), indent="  ")),
        *_preview(approval, is_full=is_full),
        *_now(approval),
        *_input(approval, is_full=is_full),
        *_answering(approval),
    ]
    return "\n\n".join(parts)


def aligned(rows: Iterable[tuple[str, str]], *, indent: str = "") -> Iterator[str]:
    """Yield names and values, the values inert and folded to the terminal's width below each other."""
    shown = [(visible(name, limit=20), visible(value, limit=VALUE_CHARS)) for name, value in rows if value]
    column = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = folded(value, max(16, columns() - len(indent) - column - 2)) if columns() else [value]
        yield f"{indent}{name:<{column}}  {first}"
        yield from (f"{indent}{'':<{column}}  {piece}" for piece in more)


def columns() -> int:
    """Return how many columns there are to write on; 0 where lines are as long as what they say (a pipe, a file)."""
    return shutil.get_terminal_size().columns if is_terminal() else 0


def _head(approval: Approval, now_us: int) -> str:
    request = approval.request
    age = age_text((now_us - request.created_us) / 1_000_000)
    said = _ended(approval.question, approval.ending.sentence)
    why = f" ({visible(approval.withdrawn)})" if approval.withdrawn else ""
    return f"{request.id}\n{visible(request.tool, limit=80)}: {visible(said)}{why}; asked {age} ago"


def _rows(approval: Approval) -> Iterator[tuple[str, str]]:
    request, session = approval.request, approval.session
    for name, value in facts_of(request):
        if name not in ("parent", "unknown"):  # told below, from rows
            yield name, value
    for parent in approval.parents:
        yield "under", _lineage(parent)
    yield "task", f"{request.identity.task_id}  {approval.task_title}".strip()
    mode = f"{session.approval_mode}, answered by {session.principal}"
    yield "session", f"{session.id} ({mode}) on {session.project}"
    yield "grant", grant_text(request)
    yield "tainted", "this run has read what strangers wrote" if approval.is_tainted else ""
    yield "digest", f"{request.input_digest} (SHA-256 of the input that an answer is bound to)"
    yield "before", request.precondition


def _lineage(parent: RunIdentity) -> str:
    return f"{parent.role} agent {parent.agent_id}, run {parent.run_id} ({parent.definition or 'no definition'})"


def _preview(approval: Approval, *, is_full: bool) -> Iterator[str]:
    request = approval.request
    if request.preview and request.preview != approval.now.preview:
        yield "\n".join(["shown when it was asked:", *_block(request.preview, is_full=is_full)])


def _now(approval: Approval) -> Iterator[str]:
    now = approval.now
    if now.note:
        note = f"{'CHANGED: ' if now.is_changed else ''}{visible(now.note)}{':' if now.preview else ''}"
        lines = folded(note, columns()) if columns() else [note]
        yield "\n".join([*lines, *(_block(now.preview, is_full=True) if now.preview else [])])


def _input(approval: Approval, *, is_full: bool) -> Iterator[str]:
    yield "\n".join(input_lines(approval.full_input, max_chars=0 if is_full else BLOCK_CHARS, columns=columns()))


def _answering(approval: Approval) -> Iterator[str]:
    if approval.ending.word != WAITS:
        return
    request, key = approval.request, short_id(approval.request.id)
    once = f"{program()} approvals allow {key}{' [--session]' if request.offers_session else ''}"
    yield f"answer it: {once}\n           {program()} approvals deny {key} [--reason WORDS]"


def _block(text: str, *, is_full: bool) -> list[str]:
    lines = quoted(text, max_chars=0 if is_full else BLOCK_CHARS, columns=columns())
    if is_full or len(lines) <= BLOCK_LINES:
        return lines
    return [*lines[:BLOCK_LINES], f"  … {len(lines) - BLOCK_LINES} lines more; --full shows them"]
