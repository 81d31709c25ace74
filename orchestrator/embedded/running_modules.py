"""Keeps a command from joining a service that would run other code than its user sees."""

import asyncio
from collections.abc import Callable, Mapping

from soong.orchestrator.embedded.control import MAKE_WAY, ask_once
from soong.orchestrator.embedded.own_modules import (
    ModuleDifference,
    ModuleFile,
    difference,
    module_files_of,
    read_module_files,
)
from soong.orchestrator.embedded.service_file import read_record
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings


class RunningModules:
    """Compares the modules of one command with those of the home's service, before the command joins it."""

    def __init__(self, settings: Settings, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._own = module_files_of(settings.functions, settings.import_folders)
        self._until_s = asyncio.get_running_loop().time() + timing.GRACE_S

    async def settle(self) -> None:
        """Have an ephemeral service with other modules end, if nobody needs it: the command then starts its own.

        Raises:
            UnavailableError: a service stays, and has a module of this name from another file.
        """
        while await self._makes_way():  # noqa: ASYNC110  # another process, which tells nobody of its end
            await asyncio.sleep(timing.POLL_PROCESS_S)

    async def _makes_way(self) -> bool:
        """Say whether the service of the home is about to end for this command."""
        record = read_record(self._settings.home)
        if not self._own or record is None or not record.is_process_alive:
            return False
        is_in_time = asyncio.get_running_loop().time() < self._until_s
        try:
            said = await ask_once(record.control, "status")
            running = read_module_files(said.get("modules"))
            found = difference(self._own, running)
            if found and is_in_time and record.is_ephemeral:
                asked = await ask_once(record.control, MAKE_WAY)
                if asked.get("attached") == 0:
                    return True
        except UnavailableError:
            return record.is_stopping and is_in_time
        self._judge(found, running)
        return False

    def _judge(self, found: ModuleDifference, running: Mapping[str, ModuleFile]) -> None:
        """Refuse a service that stays if it has another module, and tell of an older one."""
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
