"""What a search leaves out: sensitive files, private keys, hard links, and what a rule withholds (FS-06, PER-10).

ripgrep gets the patterns as globs, so that it opens none of them; every path that it names is judged again here,
where spellings are seen through. Of a file with a key later in it, the lines of the key are left out. The count does
not depend on the query: a count that did would reveal, question by question, the content of a secret.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError, opened_below
from soong.shared.sandbox.key_material import MARKERS, blocks_of, holds_key
from soong.shared.sandbox.names import components
from soong.shared.sandbox.paths import KERNEL_ROOTS, PathPolicy, is_below, is_linked_elsewhere
from soong.shared.sandbox.threads import check, run_blocking
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.rg import Match, Search, files_named, files_with, searched_files

Blocks = tuple[tuple[int, int], ...]

_CHECK_EVERY: Final = 1024
WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_NOT_ASCII: Final = ("**/*[!\x01-\x7f]*", "**/*[!\x01-\x7f]*/**")
"""Names of which ripgrep cannot say what they are another spelling of."""

LISTS: Final = ("code.list_dir",)
SEARCHES: Final = ("code.search", "code.read_file")
"""The tools whose rules a search keeps, its own first: what it shows of a file is the file's content."""


class LeftOut(Value):
    """Numbers of files that a search does not look into: ``ignored`` by .gitignore, ``binary`` only to their first NUL.

    ``candidates`` are the files that its place and glob name, less those. Of trees with more than about 100,000 files
    the numbers are approximate.
    """

    secret: int = 0
    ignored: int = 0
    binary: int = 0
    candidates: int = 1


class SearchExclusions(Value):
    """What one search below ``base``, open as ``folder``, may not look into."""

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
        """Say whether a line of a file below the base is part of the search."""
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
                    self._note_keys(path, descriptor)
            except (PathRefusedError, OSError):
                self.with_key.add(path)  # what cannot be looked into is not shown

    def _note_keys(self, path: str, descriptor: int) -> None:
        # Text in UTF-16 has other offsets for ripgrep than for us.
        is_wide = os.pread(descriptor, 2, 0) in WIDE_MARKS
        if is_wide or holds_key(descriptor):
            self.with_key.add(path)
        elif blocks := blocks_of(descriptor):
            self.keys[path] = blocks

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

    Raises:
        ToolError: all of the base is withheld.
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
