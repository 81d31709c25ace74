"""Which files the modules of ``SOONG_FUNCTIONS`` are, by which a command sees whether a running service has its own.

A service imports its modules once. A command that joins one whose module of that name is another file, or was loaded
before the file changed, would run other code than its user sees.
"""

import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Final

from soong.shared.core.value import Value

_INSTALLED: Final = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
_MOST_FILES: Final = 1_000
"""So many files of a package are looked at for their time."""


class ModuleFile(Value):
    """A module's file, or its package's folder, and when it was last changed. No path: it is found nowhere."""

    path: str = ""
    changed_ns: int = 0


def module_files_of(names: Sequence[str], folders: Sequence[str]) -> dict[str, ModuleFile]:
    """Return where each module lies: what is installed comes first, as for the import itself."""
    return {name: _file_of(name.partition(".")[0], folders) for name in names}


def read_module_files(value: object) -> dict[str, ModuleFile]:
    """Return what a service says of its modules; nothing where it says nothing, as an older one does."""
    found: dict[str, ModuleFile] = {}
    for name, said in value.items() if isinstance(value, Mapping) else ():
        match said:
            case [str(path), int(changed_ns)]:
                found[name] = ModuleFile(path, changed_ns)
    return found


class ModuleDifference(Value):
    """What a running service lacks of a command's modules, by name. Without any it has the same."""

    missing: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    """Those that it has from another file."""
    older: tuple[str, ...] = ()
    """Those that it has loaded before their file changed."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.other or self.older)


def difference(own: Mapping[str, ModuleFile], running: Mapping[str, ModuleFile]) -> ModuleDifference:
    """Compare a command's modules with a service's."""
    known = {name: running[name] for name in own if name in running}
    other = tuple(name for name, file in known.items() if file.path and own[name].path not in ("", file.path))
    return ModuleDifference(
        missing=tuple(name for name in own if name not in running),
        other=other,
        older=tuple(name for name, file in known.items() if file.path == own[name].path and file != own[name]),
    )


def _file_of(name: str, folders: Sequence[str]) -> ModuleFile:
    # Not all of sys.path: a program that uses the SDK has its own folder there, in which no service looks.
    spec = PathFinder.find_spec(name, list(_INSTALLED)) or PathFinder.find_spec(name, list(folders))
    if spec is None:
        return ModuleFile()
    package = next(iter(spec.submodule_search_locations or ()), "")
    path = os.path.realpath(package or spec.origin or "")
    return ModuleFile(path, max(_times(_sources(Path(path))), default=0))


def _sources(path: Path) -> Iterator[Path]:
    return islice(path.rglob("*.py"), _MOST_FILES) if path.is_dir() else iter((path,))


def _times(paths: Iterable[Path]) -> Iterator[int]:
    for path in paths:
        try:
            yield path.stat().st_mtime_ns
        except OSError:  # it went while we looked
            continue
