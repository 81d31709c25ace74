"""What commands say: results on standard output, words for people on standard error, nothing that a terminal obeys."""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from orchestrator.cli.verbosity import Verbosity, chosen
from shared.errors import Offence
from shared.jsontext import Json

_KEPT = frozenset("\n\t")
_UNSEEN = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10)))
) | frozenset(map(chr, (*range(0x180B, 0x1810), *range(0xE0100, 0xE01F0))))
"""Characters that count as printable and show nothing: words could hide in them."""
_RUN = re.compile(" {5,}")
MAX_MARKS = 3
"""Combining marks on one character; more are piled over the lines around it."""
_emitted: list[bool] = []
"""Has an entry once this process has written its JSON document."""


def say(text: str = "") -> None:
    """Tell a person something, beside the result; with --quiet nothing."""
    if chosen() is not Verbosity.QUIET:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def emit(value: object) -> None:
    """Write the one JSON document of a ``--json`` command."""
    _emitted.append(True)
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    # A lone surrogate has no bytes; its escape is JSON and says the same.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def emit_error(message: str, *, kind: str, exit_code: int, problems: Sequence[Offence] = ()) -> None:
    """Write the document of a ``--json`` command that came to nothing, unless it has written one already."""
    if not _emitted:
        error = {"type": kind, "message": message, "problems": [asdict(one) for one in problems]}
        emit({"error": error, "exit_code": exit_code})


def inert(text: str, *, limit: int = 0) -> str:
    """Return text from elsewhere as it may be shown, with control and other invisible characters spelled out.

    What a person is asked to allow must look like what it is: no escape sequence may hide, move or colour it.
    """
    if limit and len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_inert_chars(text))


def visible(text: str, *, limit: int = 0) -> str:
    """Return inert text as one line, line breaks and tabs spelled out too: nothing in it imitates another line.

    Nor do spaces that push what follows to where a line of ours would begin: long runs of them are counted.
    """
    line = inert(text, limit=limit).replace("\n", "\\n").replace("\t", "\\t")
    return _RUN.sub(lambda run: f" [{len(run[0])} spaces] ", line)


def folded(line: str, columns: int) -> list[str]:
    """Return a line of inert text in pieces of at most so many columns, broken at a space where one is near."""
    pieces: list[str] = []
    while _width(line) > columns:
        used, end = 0, 0
        while end < len(line) and (used := used + _width(line[end])) <= columns:
            end += 1
        space = line.rfind(" ", end // 2, end)
        end = space + 1 if space > 0 else max(1, end)
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def cut(line: str, columns: int) -> str:
    """Return a line of inert text that takes at most so many columns, with a mark where it was longer."""
    return line if _width(line) <= columns else f"{folded(line, max(1, columns - 1))[0].rstrip()}…"


def one_line(text: str, limit: int = 100) -> str:
    """Return inert text on one line, cut to ``limit`` characters."""
    line = inert(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def is_terminal() -> bool:
    """Say whether a person is there to be asked: standard input and output are both terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns, plain, for pipes and terminals alike."""
    cells = [list(map(str, heads)), *([one_line(cell, 80) for cell in row] for row in rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(heads))]
    lines = ["  ".join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def compact(value: Json | Mapping[str, Json], limit: int = 200) -> str:
    """Return a JSON value on one line."""
    return one_line(json.dumps(value, ensure_ascii=False, default=str), limit)


def _inert_chars(text: str) -> Iterator[str]:
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        is_plain = (char in _KEPT or char.isprintable()) and char not in _UNSEEN and marks <= MAX_MARKS
        yield char if is_plain else _spelled(char)


def _spelled(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
