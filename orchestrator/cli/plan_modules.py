"""The modules of a plan: Python files next to a local plan that register its scripted agents (DIS-13).

A user who runs their own file on their own service may load code from its folder. A plan that comes over HTTP, from
a program, over standard input or to a deployment names no modules. The service that a command starts imports them as if
``SOONG_FUNCTIONS`` and ``SOONG_IMPORT_PATH`` named them. Which task needs which is kept in the home, where no run
writes, and never read from a task's rows.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from soong.orchestrator.client.catalog import Catalogue, deployed_modules
from soong.orchestrator.embedded.folders import prepare_home
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames
from soong.shared.engine.tasks.step import NewTask
from soong.shared.permissions.configured import configured_write_roots
from soong.shared.permissions.writable import writable_by_rule
from soong.shared.sandbox.paths import is_below
from soong.shared.toolsets.controls import module_files
from soong.shared.toolsets.import_folders import look_in
from soong.shared.toolsets.modules import import_own

FIELD: Final = "the plan's `modules`"
FILE: Final = "plan-modules.json"
MAX_TASKS: Final = 200
"""Tasks whose modules are kept; of older ones they are named again by ``SOONG_FUNCTIONS``."""


@dataclass(frozen=True, slots=True)
class PlanModules:
    """Loads the modules of one plan file; with ``is_imported`` False it only looks where they lie."""

    settings: Settings
    catalogue: Catalogue
    file: Path
    is_imported: bool = True

    @property
    def folders(self) -> tuple[str, ...]:
        """The search path: the folder of the file first."""
        return tuple(dict.fromkeys((os.path.realpath(self.file.parent), *self.settings.import_folders)))

    def names(self) -> PlanNames:
        """Return what the plan may name; modules only where its user runs a file on a service of their own."""
        known = self.catalogue.known()
        return replace(known, load_module=self.load if self._is_local else deployed_modules(self.settings))

    def load(self, name: str) -> bool:
        """Make a module known, and import it to know its scripted agents.

        Raises:
            InvalidConfigError: it lies where runs write, or cannot be imported.
        """
        look_in(self.folders, (name,))
        places = [place for place in module_files((name,)) if place.exists()]
        if not places and not self.is_imported:
            raise InvalidConfigError(f"the module {name!r} is neither in {', '.join(self.folders)} nor installed")
        for place in places:
            for folder in self._written_by_runs():
                if is_below(place, folder):
                    raise InvalidConfigError(f"{place} lies in {folder}, where runs write")
        if not self.is_imported:
            return False
        import_own(name, FIELD, self.folders)
        for other in self.settings.functions:
            import_own(other, "SOONG_FUNCTIONS", self.folders)
        return True

    def added_to_settings(self, plan: Plan) -> Settings:
        """Return the settings with which a service imports the plan's modules."""
        return _with_modules(self.settings, plan.modules, self.folders)

    @property
    def _is_local(self) -> bool:
        return self.settings.is_embedded and str(self.file) != "-"

    def _written_by_runs(self) -> tuple[Path, ...]:
        by_rule = writable_by_rule(self.catalogue.policy, self.catalogue.tools)
        return (self.settings.runs, *configured_write_roots(self.catalogue.config), *by_rule)


def keep_modules(settings: Settings, task: NewTask) -> None:
    """Keep which modules a task needs, so that ``soong resume`` starts a service that has them."""
    if "modules" not in task.plan or not settings.is_embedded:
        return  # workers of a deployment have their modules already
    kept = dict(list(_read(settings).items())[1 - MAX_TASKS :])
    kept[task.id] = {"modules": list(settings.functions), "folders": list(settings.import_folders)}
    file = prepare_home(settings) / FILE
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(kept), encoding="utf-8")
    temporary.replace(file)


def with_kept_modules(settings: Settings, task_id: str) -> Settings:
    """Return the settings with the modules that were kept for a task."""
    kept = _read(settings).get(task_id)
    if not kept or not settings.is_embedded:
        return settings
    return _with_modules(settings, tuple(kept["modules"]), (*kept["folders"], *settings.import_folders))


def _with_modules(settings: Settings, modules: tuple[str, ...], folders: tuple[str, ...]) -> Settings:
    if not modules:
        return settings
    functions = tuple(dict.fromkeys((*settings.functions, *modules)))
    path = os.pathsep.join(dict.fromkeys(folders))
    return settings.model_copy(update={"functions": functions, "import_path": path})


def _read(settings: Settings) -> Mapping[str, Mapping[str, list[str]]]:
    try:
        kept = json.loads((settings.home / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}
