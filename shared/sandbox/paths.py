"""The target and the class of a path: inside the project, inside the write roots, sensitive, protected (FS-06..09).

Resolution of links, and classification by the names of :mod:`soong.shared.sandbox.names`. Nothing is opened here;
:mod:`soong.shared.sandbox.descriptors` opens exactly the resolved path that was classified, without following a
link, so the two cannot be raced apart.
"""

import errno
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import all_suffixes
from itertools import takewhile
from pathlib import Path
from typing import Final, Protocol

import msgspec

from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.names import GIT_CONTROLS, SENSITIVE, STEERING, components, is_control, is_sensitive, plain

MAX_PATH_BYTES = 4095

_WRITTEN = frozenset({"runs"})
"""Our own folders that runs may write."""
READ = _WRITTEN | {"skills"}
"""Our own folders that agents read without a question."""

KERNEL_ROOTS = (Path("/proc"), Path("/sys"), Path("/dev"))
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # an ordinary file system that happens to be mounted there

_HEAD: Final = "HEAD"
_COMMON: Final = "commondir"
_STORE: Final = frozenset({"objects", "refs"})
_KNOWN: Final = {plain(name): name for name in (_HEAD, *_STORE, *GIT_CONTROLS)}

_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages", "node_modules", ".venv", "venv", ".pnpm-store"})
_SYSTEM_FOLDERS: Final = ("/usr/", "/nix/store/")
_FOR_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH

_SUFFIXES: Final = frozenset(map(plain, all_suffixes()))


class Roots(Protocol):
    """The folders of a run, absolute and resolved (a ``RunDirs`` is one)."""

    @property
    def project(self) -> Path: ...
    @property
    def cwd(self) -> Path: ...
    @property
    def run_dir(self) -> Path: ...
    @property
    def write_roots(self) -> tuple[Path, ...]: ...
    @property
    def writable_by_rule(self) -> tuple[Path, ...]: ...
    @property
    def read_roots(self) -> tuple[Path, ...]: ...


class Located(Value):
    """A path as given and where it leads. ``resolved`` has no link in it at the time of asking; it need not exist."""

    given: str
    resolved: Path
    is_inside_project: bool
    is_inside_write_roots: bool
    is_inside_read_roots: bool
    is_sensitive: bool
    is_protected: bool
    is_steering: bool
    """It controls other programs or later agents: a write asks whatever allows its folder."""


class ImportGuard(Value):
    """``folders`` of the import path but the program's own, and the top-level ``names`` that the program imports."""

    folders: tuple[Path, ...] = ()
    names: frozenset[str] = frozenset()

    def covers(self, inner: tuple[str, ...]) -> bool:
        """Say whether a path below such a folder, given by its plain parts, is a module or package of such a name. A
        folder alone is none: Python takes one without ``__init__`` only when it finds nothing else of that name.
        """
        if not inner or len(inner) > 2:
            return False
        name, _, suffix = inner[-1].partition(".")
        is_module = f".{suffix}" in _SUFFIXES
        if len(inner) == 1:
            return is_module and name in self.names
        return is_module and name == "__init__" and inner[0] in self.names


class PathPolicy(Value):
    """The sensitive and the protected paths.

    ``agent_home`` is Soong's own folder; None when there is none. ``data`` is that of runs and artifacts; None: the
    home. ``controls`` are files and folders that steer us wherever they are: the programs of configured hooks, the
    modules that tools come from. ``secrets`` are files of ours whose content opens something, such as the signing key:
    reading them asks and writing them is refused, whatever they are called. ``imports`` are the files that would be
    imported in place of a module of the program. ``steering`` are patterns of files whose writing always asks.
    Raises: InvalidConfigError, a sensitive pattern names nothing.
    """

    agent_home: Path | None = None
    sensitive: tuple[str, ...] = SENSITIVE
    controls: tuple[Path, ...] = ()
    data: Path | None = None
    secrets: tuple[Path, ...] = ()
    imports: ImportGuard = msgspec.field(default_factory=ImportGuard)
    steering: tuple[str, ...] = STEERING

    def __post_init__(self) -> None:
        for pattern in (*self.sensitive, *self.steering):
            components(pattern)

    def locate(self, roots: Roots, path: str) -> Located:
        """Resolve a path from outside and say what it is. Nothing in it is expanded: ``~`` and ``$X`` are names.
        Raises: PathRefusedError, not a usable path, or one into the kernel's own file systems.
        """
        _refuse_unusable(path)
        lexical = os.path.normpath(roots.cwd / path)
        if _is_kernel_path(Path(lexical)):
            raise PathRefusedError(PathRefusal.NOT_REGULAR, path, "lies in a file system of the kernel; it is not read")
        resolved = _resolve(as_listed(roots.cwd / path), path)
        ways = {lexical, str(resolved)}  # one, where there is no link on the way
        # A run reads unasked what it works on and writes, the user's skills, and what is configured.
        skills = () if self.agent_home is None else (self.agent_home / "skills",)
        read_roots = (roots.project, roots.run_dir, *write_roots(roots), *roots.read_roots, *skills)
        return Located(
            given=path,
            resolved=resolved,
            is_inside_project=is_below(resolved, roots.project),
            is_inside_write_roots=_is_below_any(resolved, write_roots(roots)),
            is_inside_read_roots=_is_below_any(resolved, read_roots),
            is_sensitive=any(self.is_sensitive(name) for name in {path, *ways}),
            is_protected=any(self.is_protected(Path(way)) for way in ways),
            is_steering=any(is_sensitive(way, self.steering) for way in ways),
        )

    def is_sensitive(self, path: str) -> bool:
        """Say whether a path is sensitive: any stretch of it matches a pattern, or it is one of our own files.

        As written or under another spelling. Ours are the secrets, and what lies in the home and in the data folder but
        for runs and skills, which agents read.
        """
        return is_sensitive(path, self.sensitive) or self._is_our_secret(path)

    def is_protected(self, path: Path) -> bool:
        """Say whether a path is one of our controls or a repository's, existing or not (FS-09)."""
        parts = tuple(map(plain, path.parts))
        is_ours = self._is_in_own_folder(parts, _WRITTEN) or _is_listed(parts, (*self.controls, *self.secrets))
        places = (place for folder in self.imports.folders for place in _spellings(folder))
        is_imported = any(parts[: len(place)] == place and self.imports.covers(parts[len(place) :]) for place in places)
        return is_control(parts) or is_ours or is_imported or steers_repository(path)

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The home and the data folder, which may be one."""
        return tuple(dict.fromkeys(folder for folder in (self.agent_home, self.data) if folder is not None))

    def secret_places(self) -> Iterator[Path]:
        """Yield our own files and folders whose content is sensitive, as far as there are any now."""
        yield from self.secrets
        for folder in self.own_folders:
            with suppress(OSError), os.scandir(folder) as entries:
                yield from (folder / entry.name for entry in entries if plain(entry.name) not in READ)

    def _is_our_secret(self, path: str) -> bool:
        if not path.startswith("/"):
            return False
        if path.isascii() and not path.casefold().startswith(_beginnings((*self.secrets, *self.own_folders))):
            return False  # a search asks this for every file
        parts = ("/", *map(plain, filter(None, path.split("/"))))
        return self._is_in_own_folder(parts, READ) or _is_listed(parts, self.secrets)

    def _is_in_own_folder(self, parts: tuple[str, ...], but: frozenset[str]) -> bool:
        """Say whether a path is one of our folders or lies in it, but for the named entries of the folder."""
        return any(
            parts[: len(place)] == place and (len(parts) == len(place) or parts[len(place)] not in but)
            for folder in self.own_folders
            for place in _spellings(folder)
        )


def _is_listed(parts: tuple[str, ...], listed: Iterable[Path]) -> bool:
    places = (place for each in listed for place in _spellings(each))
    return any(parts[: len(place)] == place for place in places)


@lru_cache(maxsize=64)
def _beginnings(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Return what every spelling of a place begins with, in lower case: a quick look before a thorough one."""
    return tuple({"/".join(("", *takewhile(str.isascii, place[1:]))) for path in paths for place in _spellings(path)})


@lru_cache(maxsize=4096)
def _spellings(path: Path) -> tuple[tuple[str, ...], ...]:
    """Return a path's plain parts as named and as resolved: a link on the way to it must not unprotect it."""
    return tuple({tuple(map(plain, each.parts)) for each in (path, Path(os.path.realpath(path)))})


def write_roots(roots: Roots) -> tuple[Path, ...]:
    """Return where a run may write: its roots and its own workspace and deliverables."""
    return (*roots.write_roots, roots.run_dir / "workspace", roots.run_dir / "deliverables")


def shown_path(path: Path, roots: Roots) -> str:
    """Return a path for results: relative to the project when inside it, absolute otherwise, always valid text."""
    if not is_below(path, roots.project):
        return valid_text(str(path))
    return valid_text(str(path)[len(str(roots.project).rstrip("/")) :].lstrip("/") or ".")


def is_below(path: Path, root: Path) -> bool:
    """Say whether a path is a folder or lies in it, by components; both are normal and absolute."""
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


def as_listed(path: Path) -> Path:
    """Return a path with the names of its folders' entries where these are the same text in another Unicode form. A
    model writes a letter with an accent as one character, and a file system may keep it as two.
    """
    if str(path).isascii() or os.path.lexists(path):
        return path
    listed = Path(path.anchor)
    for part in path.parts[1:]:
        listed = listed / part if part.isascii() or os.path.lexists(listed / part) else listed / _twin(listed, part)
    return listed


def _twin(folder: Path, name: str) -> str:
    composed = unicodedata.normalize("NFC", name)
    try:
        with os.scandir(folder) as entries:
            names = [each.name for each in entries if unicodedata.normalize("NFC", each.name) == composed]
    except OSError:
        return name
    return names[0] if len(names) == 1 else name


def _resolve(path: Path, given: str) -> Path:
    try:
        try:
            resolved = Path(os.path.realpath(path, strict=True))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
                raise
            resolved = Path(os.path.realpath(path))  # it need not exist
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            raise PathRefusedError(
                PathRefusal.INVALID, given[:80] + "…", "is longer than the file system takes"
            ) from error
        raise PathRefusedError(PathRefusal.INVALID, given, f"cannot be resolved: {error}") from error
    except RecursionError as error:  # the standard library follows each link of a chain one call deeper
        raise PathRefusedError(PathRefusal.INVALID, given, "leads through too many links") from error
    if _is_kernel_path(resolved):
        raise PathRefusedError(PathRefusal.NOT_REGULAR, given, "leads into a file system of the kernel; it is not read")
    return resolved


def _is_kernel_path(path: Path) -> bool:
    return _is_below_any(path, KERNEL_ROOTS) and not is_below(path, _SHARED_MEMORY)


def _is_below_any(path: Path, roots: Iterable[Path]) -> bool:
    return any(is_below(path, root) for root in roots)


def steers_repository(path: Path) -> bool:
    """Say whether writing a file gives a repository a control, or makes a repository of a folder with one."""
    return any(
        (name := _KNOWN.get(plain(part), "")) and _is_steered(Path(*path.parts[:at]), name)
        for at, part in enumerate(path.parts)
        if at > 0
    )


def _is_steered(folder: Path, written: str) -> bool:
    there = {name for name in _KNOWN.values() if os.path.lexists(folder / name)}
    after = there | {written}
    is_repository = _HEAD in after and (_COMMON in after or after >= _STORE)
    if not is_repository or after.isdisjoint(GIT_CONTROLS):
        return False
    return written in GIT_CONTROLS or written not in there


def is_linked_elsewhere(path: Path, status: os.stat_result) -> bool:
    """Say whether a file has more names that its path does not explain."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink < 2:
        return False
    is_explained = str(path).startswith(_SYSTEM_FOLDERS) or not _PACKAGE_FOLDERS.isdisjoint(path.parts)
    return not is_explained or not status.st_mode & _FOR_OTHERS


def stands_linked(path: Path) -> bool:
    """Say the same of the current file at a resolved path; nothing there has no other name."""
    try:
        return is_linked_elsewhere(path, path.lstat())
    except OSError:
        return False
