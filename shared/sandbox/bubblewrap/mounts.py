"""The file system of a sandbox: its places, read-only or writable, and their replacements.

Everything that is not listed does not exist inside. The deepest mount above a path decides about it. Owns the decision;
:mod:`soong.shared.sandbox.bubblewrap.runner` makes arguments of it.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.names import CONTROL_FILES, CONTROL_FOLDERS, GIT_CONTROLS, SENSITIVE
from soong.shared.sandbox.paths import is_below

MountKind: TypeAlias = Literal["read", "write", "private", "empty", "link"]
"""The place itself, read-only or writable; an own empty folder in memory; a file that cannot be read; a link."""

SYSTEM: Final = tuple(map(Path, ("/usr", "/etc", "/opt", "/nix/store", "/gnu/store", "/snap")))
_LINKED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on today's systems, folders of their own on others."""
TEMPORARY: Final = tuple(map(Path, ("/tmp", "/var/tmp")))  # noqa: S108  # they are replaced, not written to
_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin", "shims"})
_OF_AN_INSTALLATION: Final = ("lib", "libexec", "versions", "installs", "pyvenv.cfg")
_GIT_PLACES: Final = ("worktrees/*", "modules/*", "modules/*/*")
"""The git folders of linked worktrees and of submodules inside a git folder; submodule names may have a slash."""


class Mount(Value):
    """One place inside, at the same path as outside, without a link in it. ``target`` is where a link leads."""

    path: Path
    kind: MountKind
    target: Path = Path("/")


class HostLayout(Value):
    """The layout that all sandboxes of this process share.

    ``user_home`` is the person's, ``own`` are Soong's folders and secrets, which stay out, and ``shown`` the parts of
    them that tools are made of. ``controls`` steer Soong and are never writable. ``readable`` and ``writable`` come
    from the configuration.
    """

    user_home: Path
    own: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()
    controls: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class SandboxView(Value):
    """The mounts of one sandbox, each after all that lie above it; ``links`` are those at the root."""

    mounts: tuple[Mount, ...]
    links: Mapping[str, str] = msgspec.field(default_factory=dict)

    def kind_at(self, path: Path) -> MountKind | None:
        """Return how a path is seen inside; None: it does not exist there."""
        first = path.parts[1] if len(path.parts) > 1 else ""
        if first in self.links:
            path = Path(os.path.normpath(Path("/", self.links[first], *path.parts[2:])))
        above = [mount for mount in self.mounts if is_below(path, mount.path)]
        deepest = max(above, key=lambda mount: len(mount.path.parts), default=None)
        if deepest is not None and deepest.kind == "link":
            return self.kind_at(deepest.target / path.relative_to(deepest.path))
        return deepest.kind if deepest else None

    @property
    def writable(self) -> tuple[Path, ...]:
        return tuple(mount.path for mount in self.mounts if mount.kind == "write")


def view_of(host: HostLayout, access: CommandAccess, program: Path, environment: Mapping[str, str]) -> SandboxView:
    """Return what a program sees. Looks at the file system and changes nothing."""
    links, system = _system()
    wanted = [
        *system,
        *_resolved((*_programs(host, program, environment), *host.readable), "read"),
        *_resolved(host.writable, "write"),
        *(Mount(path, "read") for path in access.readable),
        *(Mount(path, "write") for path in access.writable if path not in (*TEMPORARY, *_own_temporary(environment))),
    ]
    private = _private(host, environment, wanted)
    shown = [mount for mount in (*private, *wanted) if mount.kind == "private" or mount.path.exists()]
    shown += _withheld(host, access, shown)
    shown += _resolved((path for path in host.shown if path.exists()), "read")
    shown += _program(program, SandboxView(tuple(shown), links))
    shown += _protected(host, shown)
    return SandboxView(tuple(_in_order(shown)), links)


def _resolved(paths: Iterable[Path], kind: MountKind) -> Iterator[Mount]:
    """Yield mounts of what paths lead to now, and links by their own names: only one path shows a place."""
    for path in paths:
        real = Path(os.path.realpath(path))
        yield Mount(real, kind)
        if real != path:
            yield Mount(path, "link", real)


def _system() -> tuple[dict[str, str], list[Mount]]:
    links: dict[str, str] = {}
    found = [Mount(path, "read") for path in SYSTEM if path.is_dir()]
    for name in _LINKED:
        place = Path("/", name)
        if place.is_symlink():
            links[name] = str(place.readlink())
        elif place.is_dir():
            found.append(Mount(place, "read"))
    return links, [*found, *secrets_below(Path("/etc"))]


@lru_cache(maxsize=1)
def secrets_below(root: Path) -> tuple[Mount, ...]:
    """Return what hides the files that this user can read and not everybody can: passwords, keys of the machine.

    A folder that others cannot enter is hidden with all its files. Inside of a user namespace even root cannot enter it
    if its group does not exist there, so nothing could be mounted on a file in it.

    Looked for once: a sandbox does not change /etc, and a new secret of root's is none that we can read.
    """
    found = []
    for folder, inner, files in os.walk(root):
        for name in (*inner, *files):
            path = os.path.join(folder, name)  # noqa: PTH118  # thousands of files
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                inner.remove(name)
                found.append(Mount(Path(path), "private"))
            elif stat.S_ISREG(mode) and not mode & stat.S_IROTH and os.access(path, os.R_OK):
                found.append(Mount(Path(path), "empty"))
    return tuple(found)


def _programs(host: HostLayout, program: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the program and those on its PATH are installed, as far as that is not the system."""
    for folder in environment.get("PATH", "").split(os.pathsep):
        if folder.startswith("/"):
            yield from _installation(host, Path(os.path.realpath(folder)))
    for found in (program, Path(os.path.realpath(program))):
        place = Path(os.path.realpath(found.parent))
        if place.name in _PROGRAM_FOLDERS:
            yield from _installation(host, place)


def _program(program: Path, view: SandboxView) -> list[Mount]:
    """Return the program itself where nothing shows it: its name, and what that leads to."""
    return [each for each in _resolved((program,), "read") if view.kind_at(each.path) not in ("read", "write")]


def _installation(host: HostLayout, folder: Path) -> Iterator[Path]:
    """Yield the folder of an installation, or only its folder of programs where more than an installation lies there.
    ``~/.nvm/versions/node/v20`` is one. ``~/.local`` holds keys as well, ``~/.cargo`` a token.
    """
    prefix = folder.parent
    is_prefix = folder.name in _PROGRAM_FOLDERS and any((prefix / name).exists() for name in _OF_AN_INSTALLATION)
    for place in (prefix, folder) if is_prefix and prefix.name != ".local" else (folder,):
        if not is_below(host.user_home, place) and place != Path("/"):
            yield place
            return


def _private(host: HostLayout, environment: Mapping[str, str], wanted: Iterable[Mount]) -> Iterator[Mount]:
    """Yield the folders for temporary files, and the homes that no wanted place holds: empty and in memory."""
    yield from (Mount(path, "private") for path in dict.fromkeys((*TEMPORARY, *_own_temporary(environment))))
    for home in {host.user_home, Path(environment.get("HOME") or host.user_home)}:
        if home != Path("/") and not any(is_below(home, mount.path) for mount in wanted):
            yield Mount(home, "private")


def _own_temporary(environment: Mapping[str, str]) -> Iterator[Path]:
    named = environment.get("TMPDIR", "")
    if named.startswith("/") and Path(named) != Path("/"):
        yield Path(os.path.normpath(named))


def _withheld(host: HostLayout, access: CommandAccess, shown: Iterable[Mount]) -> Iterator[Mount]:
    """Yield what lies inside a shown place and is kept out: Soong's folders and secrets, the person's keys, by rule."""
    places = [mount.path for mount in shown if mount.kind in {"read", "write"}]
    keys = [host.user_home / pattern for pattern in SENSITIVE if not set(pattern) & set("*?")]
    for path in (
        *host.own,
        *access.hidden,
        *(key for key in keys if any(is_below(host.user_home, place) for place in places)),
    ):
        if any(is_below(path, place) for place in places) and path.exists():
            yield Mount(path, "private" if path.is_dir() else "empty")


def _protected(host: HostLayout, shown: Iterable[Mount]) -> Iterator[Mount]:
    """Yield the controls inside writable places: read-only, as far as they exist (FS-09).

    ``.git`` itself is mounted on itself, so that it cannot be moved away and replaced by another one. Hooks of a
    repository without a folder for them end with the program.
    """
    for root in [mount.path for mount in shown if mount.kind == "write" and mount.path.is_dir()]:
        git = root / ".git"
        if git.is_dir() and not git.is_symlink():
            yield Mount(git, "write")
            places = (git, *(place for pattern in _GIT_PLACES for place in git.glob(pattern)))
            controls = (place / name for place in places for name in GIT_CONTROLS)
            yield from (Mount(control, "read") for control in controls if _is_there(control))
            if not os.path.lexists(git / "hooks"):
                yield Mount(git / "hooks", "private")
        elif _is_there(git):
            yield Mount(git, "read")  # the file of a linked worktree or a submodule, which names its repository
        for path in (root / name for name in (*CONTROL_FILES, *CONTROL_FOLDERS) if _is_there(root / name)):
            yield Mount(path, "read")
            written = (path / name for name in CONTROL_FOLDERS.get(path.name, ()))
            yield from (Mount(folder, "write") for folder in written if folder.is_dir() and _is_there(folder))
        yield from (Mount(path, "read") for path in host.controls if is_below(path, root) and _is_there(path))


def _is_there(path: Path) -> bool:
    """Say whether there is something to be mounted at a path; the target of a link is protected at its own place."""
    return path.exists() and os.path.realpath(path) == str(path)


def _in_order(mounts: Iterable[Mount]) -> Iterator[Mount]:
    """Yield one mount a path, the last that was decided on, parents before what lies in them.

    Each writable folder above a place that is not writable is a mount too: nothing else keeps it from being moved away
    with that place, and replaced by another one.
    """
    chosen = {mount.path: mount for mount in mounts}
    view, kept = SandboxView(tuple(chosen.values())), [path for path, mount in chosen.items() if mount.kind != "write"]
    folders = {folder for path in kept for folder in path.parents if view.kind_at(folder) == "write"}
    pinned = set(filter(_is_there, folders))
    chosen = {folder: Mount(folder, "write") for folder in pinned} | chosen
    order = sorted(chosen.values(), key=lambda mount: len(mount.path.parts))
    for place, mount in enumerate(order):
        above = [each for each in order[:place] if is_below(mount.path, each.path)]
        is_same = bool(above) and above[-1].kind == mount.kind and mount.kind != "private"
        # A tree above that has the name has the link, too; nothing can be mounted on one.
        is_alias = mount.kind == "link" and bool(above) and above[-1].kind in ("read", "write", "link")
        if not is_alias and (not is_same or mount.path in pinned or mount.path.name == ".git"):
            yield mount
