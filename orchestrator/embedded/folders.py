"""The two folders of an embedded service: the home, which lasts, and the runtime folder, which holds sockets."""

import os
import stat
from pathlib import Path

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import Settings

SOCKET_PATH_LIMIT = 107
"""Longest path of a unix socket on Linux: ``sun_path`` has 108 bytes, the last of which is zero."""

CONTROL_SOCKET = "control.sock"
REDIS_SOCKET = "redis.sock"


def prepare_home(settings: Settings) -> Path:
    """Make the home (0700) if there is none and return it.

    Raises:
        InvalidConfigError: it cannot be made or written.
    """
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

    Raises:
        InvalidConfigError: it is another's, open to others, a link, or too long for a socket.
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


def runtime_folder_problem(folder: Path) -> str:
    """Return what is wrong with an existing runtime folder and a fix, or nothing."""
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode):
        return (
            f"the runtime folder {str(folder)!r} is a link or a file; "
            "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    if state.st_uid != os.getuid():
        return (
            f"the runtime folder {str(folder)!r} belongs to user {state.st_uid} and not to {os.getuid()}; "
            "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    if stat.S_IMODE(state.st_mode) & 0o077:
        return f"the runtime folder {str(folder)!r} is open to others; run: chmod 700 {str(folder)!r}"
    if len(os.fsencode(folder / CONTROL_SOCKET)) > SOCKET_PATH_LIMIT:
        return (
            f"the runtime folder {str(folder)!r} is too long for a socket; "
            "set XDG_RUNTIME_DIR or TMPDIR to a short folder"
        )
    return ""
