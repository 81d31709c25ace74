"""Names on the import path that stand for modules of the program: a file of that name would be imported in its place.

``PYTHONPATH=.`` puts the project before everything else. A ``sitecustomize.py`` there runs when the next process
starts, a ``json.py`` with the next import. Modules of other names stay free to be written.
"""

from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Final

from soong.shared.core.value import Value
from soong.shared.sandbox.names import plain

_SUFFIXES: Final = frozenset(map(plain, all_suffixes()))


class ImportGuard(Value):
    """``folders`` of the import path but the program's own, and the top-level ``names`` that the program imports."""

    folders: tuple[Path, ...] = ()
    names: frozenset[str] = frozenset()

    def covers(self, inner: tuple[str, ...]) -> bool:
        """Say whether a path below such a folder, given by its plain parts, is a module or package of such a name.

        A folder alone is none: Python takes one without ``__init__`` only when it finds nothing else of that name.
        """
        if not inner or len(inner) > 2:
            return False
        name, _, suffix = inner[-1].partition(".")
        is_module = f".{suffix}" in _SUFFIXES
        if len(inner) == 1:
            return is_module and name in self.names
        return is_module and name == "__init__" and inner[0] in self.names
