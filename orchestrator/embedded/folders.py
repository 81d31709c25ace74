"""The folders of an embedded service, the home and the runtime folder of sockets, and what its children are given."""

import asyncio
import fcntl
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.installation import IMPORT_FOLDERS
from soong.shared.core.settings import Settings
from soong.shared.sandbox import subreaper
from soong.shared.sandbox.command import HAS_SUBREAPER

SOCKET_PATH_LIMIT = 107
"""Longest path of a unix socket on Linux: ``sun_path`` has 108 bytes, the last of which is zero."""

CONTROL_SOCKET = "control.sock"
REDIS_SOCKET = "redis.sock"

PARENT_FD: Final = "SOONG_PARENT_FD"
STATUS_FD: Final = "SOONG_STATUS_FD"


def prepare_home(settings: Settings) -> Path:
    """Make the home (0700) if there is none and return it. Raises: InvalidConfigError, it cannot be made or written."""
    home = settings.home
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(f"SOONG_AGENT_HOME={str(home)!r} cannot be made: {error.strerror}") from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise InvalidConfigError(
            f"SOONG_AGENT_HOME={str(home)!r} cannot be written; choose another folder or fix its permissions"
        )
    return home


def prepare_runtime_folder(settings: Settings) -> Path:
    """Make the folder of the sockets (0700) if there is none and return it.

    Everybody may make folders where it lies, so one that was there before is taken only when it is ours alone.
    Raises: InvalidConfigError, it is another's, open to others, a link, or too long for a socket.
    """
    folder = settings.runtime_dir
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(f"the runtime folder {str(folder)!r} cannot be made: {error.strerror}") from error
    problem = runtime_folder_problem(folder)
    if problem:
        raise InvalidConfigError(problem)
    return folder


async def take_runtime_folder(settings: Settings) -> int:
    """Make the runtime folder and lock it; return the lock's descriptor. The service of a home that was deleted holds
    it until it has ended and removed it. Raises: InvalidConfigError, as above, or it is held for too long.
    """
    for _ in range(round((settings.drain_s + timing.START_LIMIT_S) / timing.POLL_PROCESS_S)):
        with suppress(OSError):  # held, or removed since
            folder = prepare_runtime_folder(settings)
            descriptor = os.open(folder, os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(folder.stat(), os.fstat(descriptor)):
                    return os.dup(descriptor)
            finally:
                os.close(descriptor)
        await asyncio.sleep(timing.POLL_PROCESS_S)
    raise InvalidConfigError(f"the runtime folder {str(settings.runtime_dir)!r} is held by a service without a home")


def redis_url(folder: Path) -> str:
    return f"unix://{folder / REDIS_SOCKET}"


def runtime_folder_problem(folder: Path) -> str:
    """Return what is wrong with an existing runtime folder and a fix, or nothing."""
    state = folder.lstat()
    own = "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
    if not stat.S_ISDIR(state.st_mode):
        return f"the runtime folder {str(folder)!r} is a link or a file; {own}"
    if state.st_uid != os.getuid():
        return f"the runtime folder {str(folder)!r} belongs to user {state.st_uid} and not to {os.getuid()}; {own}"
    if stat.S_IMODE(state.st_mode) & 0o077:
        return f"the runtime folder {str(folder)!r} is open to others; run: chmod 700 {str(folder)!r}"
    if len(os.fsencode(folder / CONTROL_SOCKET)) > SOCKET_PATH_LIMIT:
        return (
            f"the runtime folder {str(folder)!r} is too long for a socket; "
            "set XDG_RUNTIME_DIR or TMPDIR to a short folder"
        )
    return ""


def child_environment(settings: Settings, **more: str) -> dict[str, str]:
    """Return the environment of a child: this process's own, with our settings as this process has them."""
    environment = dict(os.environ)
    for name in settings.model_fields_set:
        environment.pop(f"SOONG_{name.upper()}_FILE", None)
        value: object = getattr(settings, name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
        environment[f"SOONG_{name.upper()}"] = text
    environment["SOONG_AGENT_HOME"] = str(settings.home)
    if settings.data_dir is not None:
        environment["SOONG_DATA_DIR"] = str(settings.data)
    environment["SOONG_IMPORT_PATH"] = os.pathsep.join(settings.import_folders)
    path = environment.get("PYTHONPATH", "")
    if path:
        here = Path.cwd()  # a child's own folder is another: what is relative here would name something else there
        folders = (str(here / folder) for folder in path.split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join((*IMPORT_FOLDERS, *folders))
    return {**environment, **more}


def kept_command(argv: Sequence[str], *, control: int = -1, status: int = -1) -> list[str]:
    """Return the argv that runs a worker so that all its descendants end with it
    (:mod:`soong.shared.sandbox.subreaper`).

    ``control`` is a pipe whose end means that this process has ended, ``status`` one that gets the worker's own id.
    On a system without subreapers, the argv stays as it is.
    """
    if not HAS_SUBREAPER:
        return list(argv)
    own = [subreaper.STAND_IN, str(control), str(status), str(timing.GRACE_S + timing.SHORT_LIMIT_S)]
    return [sys.executable, "-I", "-S", subreaper.__file__, *own, *argv]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the argv that runs a module of ours in this environment's interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def has_no_rows(settings: Settings) -> bool:
    """Return whether nothing has run in this home yet."""
    return settings.is_embedded and not (settings.home / "soong.db").exists()


def require_rows(settings: Settings) -> None:
    """Raises: UsageError, when nothing has run in this home yet."""
    if has_no_rows(settings):
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
