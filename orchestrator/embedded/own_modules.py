"""The files of the modules of ``SOONG_FUNCTIONS``; a command compares its own with those of a running service.

A service imports its modules once. A command that joins one whose module of that name is another file, or was loaded
before the file changed, would run other code than its user sees: it waits for an idle ephemeral service to end.

Which task needs which modules is kept in the home, where no run writes, and never read from a task's rows: a service
that meets the task and does not have them starts a worker with them.
"""

import asyncio
import fcntl
import os
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from soong.orchestrator.embedded.child import ModuleFile, health_of
from soong.orchestrator.embedded.control import MAKE_WAY, ask_once
from soong.orchestrator.embedded.folders import prepare_home
from soong.orchestrator.embedded.service_file import read_record
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value

_INSTALLED: Final = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
FILE: Final = "plan-modules.json"
MAX_TASKS: Final = 200
"""Tasks whose modules are kept; of older ones they are named again by ``SOONG_FUNCTIONS``."""
_MOST_FILES: Final = 1_000
"""So many files of a package are read for their time."""


class KeptModules(Value):
    """The modules of one task and the folders that they are looked for in."""

    modules: tuple[str, ...]
    folders: tuple[str, ...]


def keep_modules(settings: Settings, task_id: str) -> None:
    """Keep which modules a task needs, before it is written."""
    if not settings.is_embedded or not settings.functions:
        return  # workers of a deployment have their modules already
    file = prepare_home(settings) / FILE
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # programs start tasks at the same time
        kept = dict(list(kept_modules(settings).items())[1 - MAX_TASKS :])
        kept[task_id] = KeptModules(settings.functions, settings.import_folders)
        temporary = file.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(kept))
        temporary.replace(file)


def kept_modules(settings: Settings) -> dict[str, KeptModules]:
    """Return the modules of tasks by their ids, oldest first."""
    try:
        return msgspec.json.decode((settings.home / FILE).read_bytes(), type=dict[str, KeptModules])
    except (OSError, ValueError):
        return {}


def module_files_of(names: Sequence[str], folders: Sequence[str]) -> dict[str, ModuleFile]:
    """Return where each module lies: what is installed comes first, as for the import itself."""
    return {name: _file_of(name.partition(".")[0], folders) for name in names}


class ModuleDifference(Value):
    """The modules of a command that a running service does not have, by name. Empty: it has the same."""

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
    return ModuleDifference(
        missing=tuple(name for name in own if name not in running),
        other=tuple(name for name, file in known.items() if file.path and own[name].path not in ("", file.path)),
        older=tuple(name for name, file in known.items() if file.path == own[name].path and file != own[name]),
    )


def _file_of(name: str, folders: Sequence[str]) -> ModuleFile:
    # Not all of sys.path: a program that uses the SDK has its own folder there, which no service searches.
    spec = PathFinder.find_spec(name, list(_INSTALLED)) or PathFinder.find_spec(name, list(folders))
    if spec is None:
        return ModuleFile()
    package = next(iter(spec.submodule_search_locations or ()), "")
    path = os.path.realpath(package or spec.origin or "")
    file = Path(path)
    changed_ns = 0
    for source in islice(file.rglob("*.py"), _MOST_FILES) if file.is_dir() else (file,):
        with suppress(OSError):  # it went while we looked
            changed_ns = max(changed_ns, source.stat().st_mtime_ns)
    return ModuleFile(path, changed_ns)


class RunningModules:
    """Compares the modules of one command with those of the home's service, before the command joins it."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._own = module_files_of(settings.functions, settings.import_folders)
        self._until_s = asyncio.get_running_loop().time() + timing.GRACE_S

    async def settle(self) -> None:
        """Have an ephemeral service with other modules end, if nobody needs it: the command then starts its own.
        Raises: UnavailableError, a service stays, and has a module of this name from another file.
        """
        while await self._makes_way():  # noqa: ASYNC110  # another process, which tells nobody of its end
            await asyncio.sleep(timing.POLL_PROCESS_S)

    async def _makes_way(self) -> bool:
        """Say whether the service of the home is about to end for this command."""
        record = read_record(self._settings.home)
        if not self._own or record is None or not record.is_process_alive:
            return False
        is_in_time = asyncio.get_running_loop().time() < self._until_s
        health = await health_of(record.control)
        if health is None:
            return record.is_stopping and is_in_time
        found = difference(self._own, health.files)
        if (found.other or found.older) and is_in_time and record.is_ephemeral:
            try:
                if (await ask_once(record.control, MAKE_WAY)).get("attached") == 0:
                    return True
            except UnavailableError:
                return record.is_stopping
        self._judge(found, health.files)
        return False

    def _judge(self, found: ModuleDifference, running: Mapping[str, ModuleFile]) -> None:
        """Refuse a service that stays if it has another module, and report an older one."""
        if found.other:
            name = found.other[0]
            raise UnavailableError(
                f"the running service has {running[name].path} as the module {name!r}, this command "
                f"{self._own[name].path}; end the service with `soong down` and run again"
            )
        if found.older:
            self._tell(
                f"the running service loaded {', '.join(found.older)} before the last change; to use that, end the "
                "service with `soong down` and run again"
            )
