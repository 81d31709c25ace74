"""Where a path leads and what it is: inside the project, inside the write roots, sensitive, protected (FS-06..09).

Pure classification of names plus resolution of links. Nothing is opened here; :mod:`shared.sandbox.descriptors` opens
exactly the resolved path that was classified, without following a link, so the two cannot be raced apart.

A hard link to a file elsewhere cannot be told from that file by any path. It is read like the file it is in (package
managers fill whole environments with hard links), and a write replaces the name, never the shared content.
"""

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from shared.sandbox.descriptors import PathRefusal, PathRefusedError

MAX_PATH_BYTES = 4095

SENSITIVE = (".ssh", ".gnupg", ".aws", ".config/gcloud", "*.pem", "*.key", ".env", ".env.*")
"""Patterns of one or more components; a path is sensitive when any stretch of it matches, so all below it is too."""

_KERNEL_ROOTS = (Path("/proc"), Path("/sys"), Path("/dev"))
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # an ordinary file system that happens to be mounted there
_CONTROL_FOLDER = ".soong"


class Roots(Protocol):
    """The folders of a run, absolute and resolved (a ``Workplace`` is one)."""

    @property
    def project(self) -> Path: ...
    @property
    def cwd(self) -> Path: ...
    @property
    def run_dir(self) -> Path: ...
    @property
    def write_roots(self) -> tuple[Path, ...]: ...


@dataclass(frozen=True, slots=True)
class Located:
    """A path as given and where it leads. ``resolved`` has no link in it at the time of asking; it need not exist."""

    given: str
    resolved: Path
    is_inside_project: bool
    is_inside_write_roots: bool
    is_sensitive: bool
    is_protected: bool


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """What counts as sensitive and as protected. ``agent_home`` is Soong's own folder; empty when there is none."""

    agent_home: Path | None = None
    sensitive: tuple[str, ...] = SENSITIVE

    def locate(self, roots: Roots, path: str) -> Located:
        """Resolve a path from outside and say what it is. Nothing in it is expanded: ``~`` and ``$X`` are names.

        Raises:
            PathRefusedError: not a usable path, or one into the kernel's own file systems.
        """
        _refuse_unusable(path)
        lexical = os.path.normpath(roots.cwd / path)
        if _is_kernel_path(Path(lexical)):
            raise PathRefusedError(PathRefusal.NOT_REGULAR, path, "lies in a file system of the kernel; it is not read")
        resolved = _resolve(roots.cwd / path, path)
        return Located(
            given=path,
            resolved=resolved,
            is_inside_project=is_below(resolved, roots.project),
            is_inside_write_roots=_is_below_any(resolved, write_roots(roots)),
            is_sensitive=any(self.is_sensitive(name) for name in {path, lexical, str(resolved)}),
            is_protected=self.is_protected(Path(lexical)) or self.is_protected(resolved),
        )

    def is_sensitive(self, path: str) -> bool:
        """Say whether any stretch of a path matches a sensitive pattern, as written or under another spelling."""
        return _matches_any(path, self.sensitive)

    def is_protected(self, path: Path) -> bool:
        """Say whether a path is one of our controls or a repository's, existing or not (FS-09)."""
        parts = tuple(map(_plain, path.parts))
        return _is_git_control(parts) or _is_control_file(parts) or self._is_in_home(path)

    def _is_in_home(self, path: Path) -> bool:
        if self.agent_home is None:
            return False
        parts = tuple(map(_plain, path.parts))
        return any(
            parts[: len(home)] == home and parts[len(home) : len(home) + 1] != ("runs",)
            for home in _spellings(self.agent_home)
        )


@lru_cache(maxsize=64)
def _spellings(home: Path) -> tuple[tuple[str, ...], ...]:
    """Return a folder's plain parts as named and as resolved: a link on the way to it must not unprotect it."""
    return tuple({tuple(map(_plain, each.parts)) for each in (home, Path(os.path.realpath(home)))})


def write_roots(roots: Roots) -> tuple[Path, ...]:
    """Return where a run may write: its roots and its own workspace and deliverables."""
    return (*roots.write_roots, roots.run_dir / "workspace", roots.run_dir / "deliverables")


def shown_path(path: Path, roots: Roots) -> str:
    """Return a path for results: relative to the project when inside it, absolute otherwise, always valid text."""
    if not is_below(path, roots.project):
        return valid_text(str(path))
    return valid_text(str(path)[len(str(roots.project).rstrip("/")) :].lstrip("/") or ".")


def is_below(path: Path, root: Path) -> bool:
    """Say whether a path is a folder or lies in it, by whole components; both are normal and absolute."""
    # pathlib's own test splits both paths into parts each time, ten times dearer, and this is asked for every entry.
    folder = str(root).rstrip("/")
    return str(path) == folder or str(path).startswith(f"{folder}/")


def valid_text(name: str) -> str:
    """Replace what a file name holds that is not Unicode: results and events must stay valid JSON."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _refuse_unusable(path: str) -> None:
    if not path:
        raise PathRefusedError(PathRefusal.INVALID, path, "is empty; give a path")
    if "\0" in path:
        raise PathRefusedError(PathRefusal.INVALID, path, "holds a NUL character")
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise PathRefusedError(PathRefusal.INVALID, path, "is not valid Unicode") from error
    if size > MAX_PATH_BYTES:
        raise PathRefusedError(
            PathRefusal.INVALID, path[:80] + "…", f"has {size} bytes; at most {MAX_PATH_BYTES} are taken"
        )


def _resolve(path: Path, given: str) -> Path:
    try:
        resolved = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise PathRefusedError(PathRefusal.INVALID, given, f"cannot be resolved: {error}") from error
    if _is_kernel_path(resolved):
        raise PathRefusedError(PathRefusal.NOT_REGULAR, given, "leads into a file system of the kernel; it is not read")
    return resolved


def _is_kernel_path(path: Path) -> bool:
    return _is_below_any(path, _KERNEL_ROOTS) and not is_below(path, _SHARED_MEMORY)


def _is_below_any(path: Path, roots: Iterable[Path]) -> bool:
    return any(is_below(path, root) for root in roots)


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    """Return a name without what a careless reader or another file system would not tell apart.

    Compatibility forms, case, invisible characters and trailing dots and spaces: a sensitive or protected name must not
    be reached by spelling it differently.
    """
    composed = unicodedata.normalize("NFKC", name).casefold()
    return "".join(char for char in composed if unicodedata.category(char) != "Cf").rstrip(" .") or name


def _matches_any(path: str, patterns: tuple[str, ...]) -> bool:
    matcher = _matcher(patterns)
    if matcher.search(path):
        return True
    return not path.isascii() and matcher.search("/".join(map(_plain, path.split("/")))) is not None


@lru_cache(maxsize=64)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression over whole paths; each pattern is a glob over one or more neighbouring components."""
    stretches = ("/+".join(_component(part) for part in pattern.split("/")) for pattern in patterns)
    # Trailing dots and spaces are dropped by some file systems, and case is ignored by some.
    return re.compile(rf"(?:^|/)(?:{'|'.join(stretches)})[ .]*(?:/|$)", re.IGNORECASE)


def _component(glob: str) -> str:
    return "".join("[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char) for char in glob)


def _is_git_control(parts: tuple[str, ...]) -> bool:
    """Say whether a path runs code or redirects a repository: hooks, config, or ``.git`` itself being made a file."""
    if ".git" not in parts:
        return False
    below = parts[parts.index(".git") + 1 :]
    return not below or "hooks" in below or below[-1] in {"config", "config.worktree"} or below[0] == "config"


def _is_control_file(parts: tuple[str, ...]) -> bool:
    if parts and parts[-1] == ".mcp.json":
        return True
    if _CONTROL_FOLDER not in parts:
        return False
    below = parts[parts.index(_CONTROL_FOLDER) + 1 :]
    return below[:1] != ("runs",)
