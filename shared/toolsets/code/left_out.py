"""What a search leaves out: sensitive files and hard links, whatever they hold (FS-06).

ripgrep is told the patterns as globs, so that it opens none of them; every path that it names is judged again here,
where spellings are seen through. The count does not depend on the query: a count that did would tell, question by
question, what stands in a secret.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from shared.sandbox.links import is_linked_elsewhere
from shared.sandbox.names import components
from shared.sandbox.paths import KERNEL_ROOTS, PathPolicy, is_below
from shared.sandbox.threads import check, run_blocking
from shared.toolsets.code.rg import Search, files_named, searched_files

_CHECK_EVERY: Final = 1024
_NOT_ASCII: Final = ("**/*[!\x01-\x7f]*", "**/*[!\x01-\x7f]*/**")
"""Names of which ripgrep cannot say what they are another spelling of."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What one search below ``base``, open as ``folder``, may not look into."""

    policy: PathPolicy
    base: Path
    folder: int

    def is_shown(self, path: str) -> bool:
        """Say whether a file below the base is part of the search."""
        return not self._is_sensitive(path) and not self._is_linked(path)

    async def count(self, what: Search) -> int:
        """Count the files that are left out: sensitive ones, ignored or not, and hard links among those searched."""
        named = await files_named(what, tuple(_candidates(self.policy, self.base)))
        searched = await searched_files(what)
        return await run_blocking(lambda stop: self._count(named, searched, stop))

    def _count(self, named: Iterable[str], searched: Iterable[str], stop: Event) -> int:
        sensitive = {path for path in _stoppable(named, stop) if self._is_sensitive(path)}
        return len(sensitive.union(path for path in _stoppable(searched, stop) if not self.is_shown(path)))

    def _is_sensitive(self, path: str) -> bool:
        return self.policy.is_sensitive(f"{self.base}/{path}")

    def _is_linked(self, path: str) -> bool:
        try:
            status = os.stat(path, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False  # it went away; nothing of it will be shown
        return is_linked_elsewhere(self.base / path, status)


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
    """Yield each pattern wherever it stands, its end where the base is its beginning, and our own secrets."""
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


def _stoppable(paths: Iterable[str], stop: Event) -> Iterator[str]:
    for position, path in enumerate(paths):
        if position % _CHECK_EVERY == 0:
            check(stop)
        yield path
