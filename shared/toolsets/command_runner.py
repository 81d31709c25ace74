"""How a process runs the programs of tools and hooks, by the user's configuration: in a sandbox, or without one."""

import os
from pathlib import Path

from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import Settings, secret_files
from soong.shared.sandbox.bubblewrap.mounts import HostLayout
from soong.shared.sandbox.bubblewrap.runner import BubblewrapLauncher, BubblewrapRunner
from soong.shared.sandbox.duplex import FamilyLauncher, ProcessLauncher
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.toolsets.controls import controls_of

SHOWN_FOLDERS = ("skills", "tools", "hooks")
"""What of the home the programs themselves are made of: they are shown, everything else of it is not."""


def command_runner(settings: Settings, config: Config) -> ProcessRunner | BubblewrapRunner:
    """Return the runner that ``commands.sandbox`` asks for. Nothing is started, nothing is tried.

    Raises:
        InvalidConfigError: a folder of the sandbox is not an absolute path.
    """
    commands = config.commands
    readable, writable = (
        tuple(_absolute(path, f"commands.{name}") for path in paths)
        for name, paths in (("sandbox_read", commands.sandbox_read), ("sandbox_write", commands.sandbox_write))
    )
    if commands.sandbox == "off":
        return ProcessRunner()
    own = (settings.home, settings.data, settings.runtime_dir, *secret_files(settings))
    host = HostLayout(
        user_home=_resolved(Path.home()),
        own=tuple(dict.fromkeys(map(_resolved, own))),
        shown=tuple(settings.home / name for name in SHOWN_FOLDERS),
        controls=controls_of(config, (*settings.tools, *settings.functions)),
        readable=readable,
        writable=writable,
    )
    return BubblewrapRunner(host, is_required=commands.sandbox == "required")


def process_launcher(settings: Settings, config: Config) -> ProcessLauncher:
    """Return the launcher of programs that are talked to, as ``commands.sandbox`` asks for. Nothing is started.

    Raises:
        InvalidConfigError: a folder of the sandbox is not an absolute path.
    """
    runner = command_runner(settings, config)
    return BubblewrapLauncher(runner) if isinstance(runner, BubblewrapRunner) else FamilyLauncher()


def _resolved(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _absolute(path: str, place: str) -> Path:
    if not path.startswith("/"):
        raise InvalidConfigError(
            f"{place}: {path!r} is not an absolute path; write it in full, such as /home/you/.cache"
        )
    return Path(path)
