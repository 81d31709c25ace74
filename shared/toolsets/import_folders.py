"""Modules of the user's own in folders that are not on Python's path: what ``SOONG_IMPORT_PATH`` names.

A folder on ``sys.path`` serves every import of the process: a file called ``brotli.py`` that an agent was allowed to
write there would be loaded by the next library that tries whether it has ``brotli``. So these folders serve two kinds
of imports alone: the modules that ``SOONG_FUNCTIONS`` and ``SOONG_TOOLS`` name, and what those modules import in turn.
What is installed comes first, so nothing in such a folder takes the place of anything.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

from soong.shared.core import foreign

OWN: Final = frozenset({"soong"})

_IMPORT_FILES: Final = (importlib.__file__, foreign.__file__, __file__)


class FolderFinder(MetaPathFinder):
    """Finds the modules of some folders for those who may have them. There is one a process, the last to be asked."""

    def __init__(self) -> None:
        self._folders: tuple[str, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._served: dict[str, Path] = {}

    def serve(self, names: Iterable[str], folders: Iterable[str]) -> None:
        """Serve these modules too, and look in these folders first: a plan's own before those of its command."""
        self._names |= {name.partition(".")[0] for name in names}
        self._folders = tuple(dict.fromkeys((*folders, *self._folders)))
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Find a top-level module; those of a package are found by its own path."""
        if path is not None or not self._folders:
            return None
        if fullname not in self._names and not self._asks_for_itself(sys._getframe(1)):  # noqa: SLF001  # its only way
            return None
        spec = PathFinder.find_spec(fullname, self._folders)
        if spec is not None:
            folders = spec.submodule_search_locations
            self._served[fullname] = Path(next(iter(folders))) if folders else Path(spec.origin or "")
        return spec

    def has(self, name: str) -> Path | None:
        """Return the file or folder of a top-level module in these folders, whatever other folder has it first."""
        spec = PathFinder.find_spec(name, self._folders) if self._folders else None
        if spec is None or spec.origin is None:
            return None
        return Path(spec.origin)

    @property
    def served(self) -> tuple[Path, ...]:
        """The files and package folders that were found here: their content decides what this process does."""
        return tuple(self._served.values())

    def _asks_for_itself(self, frame: FrameType | None) -> bool:
        """Say whether the code that imports was found here itself."""
        while frame is not None and _is_import_machinery(frame):
            frame = frame.f_back
        importer = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        return importer.partition(".")[0] in self._served


_FINDER: Final = FolderFinder()


def look_in(folders: Iterable[str], names: Iterable[str]) -> FolderFinder:
    """Let the modules of that name be found in these folders, where nothing that is installed has it."""
    _FINDER.serve(names, folders)
    return _FINDER


def shadowed(name: str) -> str:
    """Say that a module in one of the folders cannot be had for its name; empty when it can."""
    top = name.partition(".")[0]
    if top not in OWN and top not in sys.stdlib_module_names:
        return ""
    whose = "Soong" if top in OWN else "Python"
    own = _FINDER.has(top)
    return "" if own is None else f"{top!r} is the name of a module of {whose}; rename {own}"


def _is_import_machinery(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<frozen importlib") or file in _IMPORT_FILES
