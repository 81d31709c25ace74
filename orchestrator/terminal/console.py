"""Output of commands: results on standard output, words for people on standard error, nothing that a terminal obeys."""

import json
import re
import sys
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TextIO, TypeAlias

import typer
from msgspec.structs import asdict

from soong.shared.core.errors import Problem, SoongError, UsageError
from soong.shared.core.jsontext import Json, inert, inert_json

Columns: TypeAlias = Mapping[str, str | Callable[[Any], str]]
"""The columns of a table: fields of a document, or values made of it."""
NO_TERMINAL: Final = "standard input and output are not a terminal"
OF_A_RUN: Final = "a run started this command, and runs do not answer for people"
_RUN = re.compile(" {5,}")
_emitted: list[bool] = []
"""Has an entry once this process has written its JSON document."""


class Verbosity(StrEnum):
    """QUIET prints results and errors only; VERBOSE logs more and shows tracebacks."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


_chosen = [Verbosity.NORMAL]


def choose(verbosity: Verbosity) -> None:
    _chosen[0] = verbosity


def chosen() -> Verbosity:
    return _chosen[0]


def say(text: str = "") -> None:
    """Print a message for a person, apart from the result; with --quiet nothing."""
    if chosen() is not Verbosity.QUIET:
        _write(sys.stderr, f"{inert(text)}\n")


def complain(message: str) -> None:
    """Tell a person what went wrong, also with --quiet."""
    _write(sys.stderr, f"soong: {inert(message)}\n")


def output(text: str, *, end: str = "\n") -> None:
    """Write a result for people."""
    _write(sys.stdout, inert(text) + end)


def emit_text(text: str) -> None:
    """Write a document for programs that is not JSON, unchanged; only a terminal gets it inert, by its stream."""
    _write(sys.stdout, text)


def emit(value: object, *, is_line: bool = False, is_ascii: bool = False) -> None:
    """Write the one JSON document of a ``--json`` command, or with ``is_line`` one of its lines.

    Programs get text as it is, or with ``is_ascii`` as escapes; on a terminal what is not seen is an escape always.
    """
    _emitted.append(True)
    indent, separators = (None, (",", ":")) if is_line else (2, None)
    text = json.dumps(value, ensure_ascii=is_ascii, default=str, indent=indent, separators=separators)
    if sys.stdout.isatty():
        text = inert_json(text)
    # A lone surrogate has no bytes; its escape is JSON and says the same.
    _write(sys.stdout, text.encode("utf-8", "backslashreplace").decode() + "\n")


def emit_error(message: str, *, kind: str, exit_code: int, problems: Sequence[Problem] = ()) -> None:
    """Write the document of a ``--json`` command that came to nothing, unless it has written one already."""
    if not _emitted:
        error = {"type": kind, "message": message, "problems": [asdict(one) for one in problems]}
        emit({"error": error, "exit_code": exit_code})


def visible(text: str, *, limit: int = 0) -> str:
    """Return inert text as one line, line breaks and tabs spelled out too: nothing in it imitates another line.

    Nor do spaces that push what follows to where a line of ours would begin: long runs of them are counted.
    """
    if limit and len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    line = spelled_out(text)
    return _RUN.sub(lambda run: f" [{len(run[0])} spaces] ", line)


def spelled_out(text: str) -> str:
    """Return text as one inert line, uncut, its line breaks and tabs spelled out."""
    return inert(text).replace("\n", "\\n").replace("\t", "\\t")


def folded(line: str, columns: int) -> list[str]:
    """Return a line of inert text in pieces of at most so many columns, broken at a space where one is near."""
    return list(_pieces(line, columns))


def _pieces(line: str, columns: int) -> Iterator[str]:
    """Yield the pieces one by one, each in the time of its own length: a line may be a megabyte."""
    begin = 0
    while (end := _end_of_fitting(line, begin, columns)) < len(line):
        space = line.rfind(" ", begin + (end - begin) // 2, end)
        end = space + 1 if space > begin else max(begin + 1, end)
        yield line[begin:end]
        begin = end
    yield line[begin:]


def _end_of_fitting(line: str, begin: int, columns: int) -> int:
    """Return the place of the first character from ``begin`` on that does not fit into the columns."""
    end = begin + max(0, columns)
    if line[begin : end + 1].isascii():
        return min(end, len(line))
    used, end = 0, begin
    while end < len(line) and (used := used + cells_of(line[end])) <= columns:
        end += 1
    return end


def cut(line: str, columns: int) -> str:
    """Return a line of inert text that takes at most so many columns, with a mark where it was longer."""
    return line if cells_of(line) <= columns else f"{next(_pieces(line, max(1, columns - 1))).rstrip()}…"


def one_line(text: str, limit: int = 100) -> str:
    """Return inert text on one line, cut to ``limit`` characters; 0: all of it, as a message ends with its remedy."""
    line = inert(" ".join(text.split()))
    return line if not limit or len(line) <= limit else f"{line[: limit - 1]}…"


def is_terminal() -> bool:
    """Say whether a person is there to be asked: standard input and output are both terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def short_id(request_id: str) -> str:
    """Return the end of an id: its beginning is the time, which questions that come together share."""
    return request_id[-8:]


def why_nobody_is_asked() -> str:
    """Say why nobody can be asked here; empty when a person can be (PER-13)."""
    if not is_terminal():
        return NO_TERMINAL
    from soong.orchestrator.approvals.approval import is_run_here  # psutil, which a bare --help does not pay

    return OF_A_RUN if is_run_here() else ""


def confirm(question: str, shown: str, *, is_sure: bool) -> None:
    """Show what is about to be done to several things and ask once. Raises: typer.Exit, the answer is no; UsageError,
    nobody can be asked here.
    """
    say(shown)
    if is_sure:
        return
    if not is_terminal():
        raise UsageError(f"to {question} takes a yes, and this is not a terminal; add --yes")
    if not typer.confirm(f"{question}?", err=True):
        raise typer.Exit(1)


async def for_each(items: Sequence[Mapping[str, Any]], act: Callable[[Any], Awaitable[None]]) -> None:
    """Do something to each item. One that fails is reported, and does not hold back the next.
    Raises: typer.Exit, one of several has failed; SoongError, the only one has.
    """
    failed = 0
    for item in items:
        try:
            await act(item)
        except SoongError as error:
            if len(items) == 1:
                raise
            failed += 1
            say(f"{item['id']}: {visible(str(error))}")
    if failed:
        say(f"{failed} of {len(items)} failed")
        raise typer.Exit(1)


def number_of(count: int, thing: str) -> str:
    """Return how many there are of a thing, in words."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, uncut: Collection[str] = ()) -> str:
    """Return rows in columns, plain, for pipes and terminals alike. Columns in ``uncut`` hold messages."""
    limits = [0 if head in uncut else 80 for head in heads]
    cells = [list(map(str, heads)), *([one_line(*cell) for cell in zip(row, limits, strict=True)] for row in rows)]
    widths = [max(cells_of(row[column]) for row in cells) for column in range(len(heads))]
    lines = [
        "  ".join((cell + " " * (width - cells_of(cell))) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def show(document: object, text: Callable[[], str], *, is_json: bool, is_ascii: bool = False) -> None:
    """Write a result: its document for programs, or its text for people."""
    if is_json:
        emit(document, is_ascii=is_ascii)
    else:
        output(text())


def listed(
    items: Sequence[Any],
    columns: Columns,
    *,
    is_json: bool,
    uncut: Collection[str] = (),
    empty: str = "",
    name: str = "",
) -> None:
    """Write a list of documents: as JSON, with a ``name`` as an object's field, or as a table."""
    document = {name: items} if name else items
    show(document, lambda: table_of(items, columns, uncut) if items or not empty else empty, is_json=is_json)


def table_of(items: Sequence[Any], columns: Columns, uncut: Collection[str] = ()) -> str:
    rows = [[str(item[one]) if isinstance(one, str) else one(item) for one in columns.values()] for item in items]
    return table([*columns], rows, uncut=uncut)


def details(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns, for people; nothing is cut."""
    shown = [(name, inert(value)) for name, value in rows]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in shown)


def second_of(instant: str | None) -> str:
    """Return an instant of a document without the fraction of its second."""
    return f"{instant[:19]}Z" if instant else ""


def compact(value: Json | Mapping[str, Json], limit: int = 200) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=str), limit)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def cells_of(text: str) -> int:
    """Return how many columns a line takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)
