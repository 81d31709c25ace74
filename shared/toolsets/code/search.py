"""code.search: a regular expression over a tree or a file, by ripgrep (FS-03, FS-06)."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError, opened_below, opened_directory, opened_file
from soong.shared.sandbox.names import readable
from soong.shared.sandbox.paths import Located, PathPolicy, shown_path
from soong.shared.sandbox.redact import blocks_of
from soong.shared.sandbox.threads import check, run_blocking
from soong.shared.tools.definition import Permission, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, flag, flag_of, integer, number_of, string, text_of
from soong.shared.toolsets.code import rg
from soong.shared.toolsets.code.paths import check_object, permitted, read_target

DEFAULT_LIMIT: Final = 200
MAX_LIMIT: Final = 1000
MAX_QUERY_CHARS: Final = 4096
MAX_GLOB_CHARS: Final = 1024

_BOM: Final = b"\xef\xbb\xbf"
_WIDE_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_PIECE_BYTES: Final = 1024 * 1024
_MAX_WIDE_BYTES: Final = 16 * 1024 * 1024
"""Text in UTF-16 has no place in bytes that can be looked up, so it is turned as a whole, as far as this."""


def search_tool(policy: PathPolicy) -> ToolDefinition:
    """Return the definition. A place outside the project asks, unlike a read of one named file."""
    return ToolDefinition(
        name="code.search",
        title="Search",
        description="Search files below a directory, hidden ones too, for a regular expression (Rust syntax). Sorted "
        "by path and line. Files that .gitignore names, binary files and secrets are not searched, but counted.",
        search_hint="grep rg ripgrep find regex",
        input_schema=arguments(
            "query",
            query=string(
                "Regular expression; a file's byte order mark is not searched.", minLength=1, maxLength=MAX_QUERY_CHARS
            ),
            path=string("Directory or file to search; the project when absent."),
            glob=string(
                "Only files whose path matches, such as '*.py' (anywhere below) or './*.py'.", maxLength=MAX_GLOB_CHARS
            ),
            ignored=flag("Also search files that .gitignore names.", default=False),
            limit=integer("How many matches at most.", DEFAULT_LIMIT, 1, MAX_LIMIT),
        ),
        handler=partial(_search, policy),
        permission=Permission.READONLY,
        tags=frozenset({"code", "filesystem", "readonly"}),
        errors=(ErrorType.FILE_NOT_FOUND, ErrorType.NOT_REGULAR_FILE, ErrorType.PATH_CONFLICT),
        target=partial(read_target, policy),
    )


async def _search(policy: PathPolicy, context: ToolContext, call_input: JsonObject) -> ToolResult:
    located = permitted(policy, context, call_input)
    limit = number_of(call_input, "limit", DEFAULT_LIMIT)
    withheld = rg.withheld_below(context.run_dirs, located.resolved, rg.SEARCHES)
    with _opened(policy, located, context, call_input, withheld) as what:
        # A place that was itself asked for and allowed is searched whole, but for what a rule withholds.
        is_allowed = located.is_sensitive or (what.file is not None and context.target.is_sensitive)
        if what.file is not None:
            blocks = () if is_allowed else blocks_of(what.file)
            hidden = rg.SearchExclusions(policy, what.cwd_path, what.cwd, shows_sensitive=True, keys={"": blocks})
        else:
            hidden = rg.SearchExclusions(policy, what.cwd_path, what.cwd, withheld, shows_sensitive=is_allowed)
            await hidden.look_for_keys(what)
        matches = await rg.search(what, limit, hidden.is_shown)
        held = await run_blocking(lambda stop: confirmed(what.cwd, matches.found[:limit], stop, what.file))
        if what.file is None:
            left_out = await hidden.count(what)
        else:
            left_out = rg.LeftOut(binary=int(await run_blocking(partial(is_binary, what.file))))
    return _result(context, located, matches, held, limit, left_out)


@contextmanager
def _opened(
    policy: PathPolicy, located: Located, context: ToolContext, call_input: JsonObject, withheld: tuple[str, ...]
) -> Iterator[rg.Search]:
    """Open the place by descriptor: a directory to start in, or one file that ripgrep reads from standard input."""
    query, path = text_of(call_input, "query"), located.resolved
    glob = _relative(text_of(call_input, "glob"), path)
    is_all, program = flag_of(call_input, "ignored", default=False), rg.program(context.run_dirs)
    if "\0" in query or "\0" in glob:
        raise ToolError(ErrorType.INVALID_INPUT, "query and glob cannot hold a NUL character")
    if stat.S_ISREG(_mode(located)):
        with opened_file(path) as file, opened_directory(path.parent) as folder:
            check_object(context, path, file)
            yield rg.Search(program, query, "", folder, path.parent, (), file)
    else:
        sensitive = () if located.is_sensitive else rg.globs(policy, path)
        with opened_directory(path) as folder:
            check_object(context, path, folder)
            kept = rg.withheld_globs(withheld, path)
            yield rg.Search(
                program, query, glob, folder, path, (*sensitive, *rg.kernel_globs(path)), withheld=kept, is_all=is_all
            )


def _relative(glob: str, base: Path) -> str:
    """Return a glob as ripgrep reads it: from the base where it is written so, all that is below a folder."""
    mark, pattern = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    if pattern.startswith(("./", f"{base}/")):
        pattern = f"/{pattern.removeprefix(f'{base}/').removeprefix('./')}"
    return f"{mark}{pattern}{'**' if pattern.endswith('/') else ''}"


def _mode(located: Located) -> int:
    try:
        return os.lstat(located.resolved).st_mode  # only chooses how to open; the descriptor is checked for what it is
    except OSError:
        return 0


class Confirmed(Value):
    """A line as it is in the file. ``text`` is cut to ``MAX_COLUMNS`` bytes, with marks, and holds the match.
    ``column`` is the byte of a cut line, from 1, at which the match begins; 0 for a line that is shown in full.
    """

    path: str
    line: int
    text: str
    column: int = 0


def _result(
    context: ToolContext, located: Located, matches: rg.Matches, held: list[Confirmed], limit: int, left_out: rg.LeftOut
) -> ToolResult:
    rows: list[Json] = [_row(match, located, context) for match in held]
    is_truncated = matches.is_cut or len(matches.found) > limit
    counts = {"left_out": left_out.secret, "ignored": left_out.ignored, "binary": left_out.binary}
    data: dict[str, Json] = {"matches": rows, "count": len(rows), "truncated": is_truncated, **counts}
    if matches.is_partial or len(held) < min(len(matches.found), limit):
        data["partial"] = True
    lines = [f"{readable(str(row['path']))}:{row['line']}:{row['text']}" for row in rows if isinstance(row, dict)]
    lines += [] if rows else ["no matches"]
    lines += ["[more matches follow; narrow the query, path or glob]"] if is_truncated else []
    lines += [] if left_out.candidates else ["[path and glob name no file that is searched]"]
    for count, words in (
        (left_out.ignored, "files ignored by .gitignore not searched; ignored=true does"),
        (left_out.binary, "binary files searched only up to their first NUL"),
        (left_out.secret, "files left out: sensitive, hard-linked, or withheld by a rule"),
    ):
        lines += [f"[{count} {words}]"] if count else []
    lines += ["[some places could not be read or changed meanwhile]"] if "partial" in data else []
    summary = f"{len(rows)} matches" + (", more follow" if is_truncated else "")
    return ToolResult(context.tool_call_id, (TextBlock("\n".join(lines)),), summary, data)


def _row(match: Confirmed, located: Located, context: ToolContext) -> dict[str, Json]:
    path = located.resolved / match.path if match.path else located.resolved
    row: dict[str, Json] = {"path": shown_path(path, context.run_dirs), "line": match.line, "text": match.text}
    return row | ({"column": match.column} if match.column else {})


def confirmed(folder: int, matches: Iterable[rg.Match], stop: Event, file: int | None = None) -> list[Confirmed]:
    """Return those of the matches, sorted by path, that hold; ``file`` is the one file of a search in no directory."""
    found: list[Confirmed] = []
    for path, lines in groupby(matches, key=lambda match: match.path):
        check(stop)
        if file is not None:
            found += _confirmed_in(file, lines)
            continue
        try:
            with opened_below(folder, path) as descriptor:
                found += _confirmed_in(descriptor, lines)
        except (PathRefusedError, OSError):
            continue  # gone, or no longer what ripgrep read
    return found


def _confirmed_in(descriptor: int, matches: Iterable[rg.Match]) -> Iterator[Confirmed]:
    head = os.pread(descriptor, len(_BOM), 0)
    wide = None
    if head.startswith(_WIDE_BOMS):  # as ripgrep saw it
        wide = os.pread(descriptor, _MAX_WIDE_BYTES, 0).decode("utf-16", "replace").encode("utf-8")
    start = len(_BOM) if head == _BOM else 0  # ripgrep counts from behind it
    for match in matches:
        at = start + match.offset
        line, is_full = _line(wide, descriptor, at)
        # ripgrep gives a last line without an ending one of its own.
        is_same = (
            match.text in (line, line + b"\r") if is_full else match.text[: rg.MAX_COLUMNS] == line[: rg.MAX_COLUMNS]
        )
        if is_same and is_full:
            yield Confirmed(match.path, match.line, line.decode("utf-8", "replace").rstrip("\r"))
        elif is_same:
            line, is_full = _line(wide, descriptor, at + match.shown_from)
            yield Confirmed(match.path, match.line, _cut(line, match.shown_from, is_full=is_full), match.column)


def _line(wide: bytes | None, descriptor: int, at: int) -> tuple[bytes, bool]:
    """Return the text from an offset to the line's end, or one byte more than is shown; and whether it is all of it."""
    there = os.pread(descriptor, rg.MAX_COLUMNS + 1, at) if wide is None else wide[at : at + rg.MAX_COLUMNS + 1]
    line, newline, _ = there.partition(b"\n")
    return line, bool(newline) or len(there) <= rg.MAX_COLUMNS


def _cut(line: bytes, begin: int, *, is_full: bool) -> str:
    text = line[: rg.MAX_COLUMNS].decode("utf-8", "ignore").rstrip("\r")
    return (f"[from byte {begin + 1}] " if begin else "") + text + ("" if is_full else " [the line continues]")


def is_binary(descriptor: int, stop: Event) -> bool:
    """Say whether a file holds a NUL, unless it is UTF-16, which ripgrep decodes."""
    at, piece = 0, os.pread(descriptor, _PIECE_BYTES, 0)
    if piece.startswith(_WIDE_BOMS):
        return False
    while piece and b"\0" not in piece:
        check(stop)
        at += len(piece)
        piece = os.pread(descriptor, _PIECE_BYTES, at)
    return bool(piece)
