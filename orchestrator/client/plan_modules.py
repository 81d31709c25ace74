"""The modules of a plan: Python files next to it that register its scripted agents (DIS-13).

A user who runs their own file on their own service may load code from its folder. A plan that comes over HTTP, from
a program, over standard input or to a deployment names no modules. The service that a command starts imports them as if
``SOONG_FUNCTIONS`` and ``SOONG_IMPORT_PATH`` named them. Which task needs which is kept in the home
(:mod:`soong.orchestrator.embedded.own_modules`).
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.embedded.module_import import import_apart, import_here
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames, Registered
from soong.shared.engine.tasks.python_plan.signature import refused
from soong.shared.permissions.configured import configured_write_roots, writable_by_rule
from soong.shared.sandbox.paths import is_below
from soong.shared.toolsets.controls import module_files
from soong.shared.toolsets.modules import look_in

Importer: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[str], Sequence[str]], Registered]
"""Imports the modules of a plan and of ``SOONG_FUNCTIONS`` from folders; returns the plan of a module and a name."""
_PYTHON: Final = re.compile(r"(?P<file>.+\.py)(?::(?P<name>[A-Za-z_]\w*))?")


class PlanModules(Value):
    """Loads the modules of one plan file by ``importer``; without one it only looks where they lie."""

    settings: Settings
    catalogue: Catalogue
    file: Path
    importer: Importer | None = import_here

    _loaded: dict[str, Registered | None] = msgspec.field(default_factory=dict)

    @property
    def is_python(self) -> bool:
        """Whether the plan is a function: ``words.py``, or ``words.py:words`` by its name."""
        return _PYTHON.fullmatch(str(self.file)) is not None

    @property
    def folders(self) -> tuple[str, ...]:
        """The search path: the folder of the file first; of a module in a package the folder around it."""
        return tuple(dict.fromkeys((os.path.realpath(self._module[0]), *self.settings.import_folders)))

    @property
    def _module(self) -> tuple[Path, str]:
        """The folder to search, and the module of a plan in Python."""
        python = _PYTHON.fullmatch(str(self.file))
        file = self.file if python is None else Path(python["file"])
        folder, names = file.parent, [file.stem]
        while python is not None and (folder / "__init__.py").exists():
            names.insert(0, folder.name)
            folder = folder.parent
        return folder, ".".join(names)

    def document(self) -> JsonObject:
        """Return the document of a plan in Python, whose module is imported.

        Raises: InvalidConfigError, it cannot be imported, or lies where runs write; InvalidPlanError.
        """
        python, module = _PYTHON.fullmatch(str(self.file)), self._module[1]
        if python is None or not Path(python["file"]).is_file():
            raise refused(str(self.file), "there is no such file", "check the path")
        self._check_place(module)
        importer = self.importer or import_apart
        self._loaded[module] = found = importer(
            [module], self.settings.functions, self.folders, (module, python["name"] or "")
        )
        assert found.document is not None
        return found.document

    def known(self) -> Catalogue:
        """Return what the plan may name; modules only where its user runs a file on a service of their own."""
        if not self.settings.is_embedded or str(self.file) == "-":
            return self.catalogue.with_deployed_modules(self.settings)
        base = replace(self.catalogue.base, load_module=self.load, imports_apps=True)
        return replace(self.catalogue, base=base)

    def names(self) -> PlanNames:
        """Return what the plan may name, with the functions that the settings name where modules are imported apart."""
        names = self.known().known()
        if names.load_module == self.load and self.importer is import_apart and self.settings.functions:
            names = replace(
                names, functions=frozenset(import_apart((), self.settings.functions, self.folders).functions)
            )
        return names

    def load(self, name: str) -> Registered | None:
        """Make a module known, and import it to know its functions.
        Raises: InvalidConfigError, it lies where runs write, or cannot be imported.
        """
        if name not in self._loaded:
            self._check_place(name)
            importer = self.importer
            self._loaded[name] = importer and importer(
                [*self._loaded, name], self.settings.functions, self.folders, ("", "")
            )
        return self._loaded[name]

    def _check_place(self, name: str) -> None:
        look_in(self.folders, (name,))
        places = [place for place in module_files((name,)) if place.exists()]
        if not places and self.importer is None:
            raise InvalidConfigError(f"the module {name!r} is neither in {', '.join(self.folders)} nor installed")
        by_rule = writable_by_rule(self.catalogue.policy, self.catalogue.tools)
        for place in places:
            for folder in (self.settings.runs, *configured_write_roots(self.catalogue.config), *by_rule):
                if is_below(place, folder):
                    raise InvalidConfigError(f"{place} lies in {folder}, where runs write")

    def added_to_settings(self, plan: Plan) -> Settings:
        """Return the settings with which a service imports the plan's modules."""
        if not plan.modules:
            return self.settings
        functions = tuple(dict.fromkeys((*self.settings.functions, *plan.modules)))
        return self.settings.model_copy(update={"functions": functions, "import_path": os.pathsep.join(self.folders)})
