"""The checks of ``soong doctor`` on boundaries: who may write data and configuration, sandboxes (CMD-07), answers.

The operating system and the database decide what a process can do, never a setting.
"""

import asyncio
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from soong.orchestrator.approvals.approval import is_run_here
from soong.orchestrator.cli.checks import FULL_BYTES, MIN_FREE_BYTES, Finding, Level, existing
from soong.shared.core.config import CONFIG_FILE, load_config
from soong.shared.core.errors import InvalidConfigError, SoongError, UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.permissions.access.token import DatabaseRights
from soong.shared.sandbox.bubblewrap.wrapped import probe
from soong.shared.sandbox.family import HAS_MARK
from soong.shared.sandbox.subreaper import RLIMIT_LOCKS
from soong.shared.toolsets.declarative.folder import TOOLS_FOLDER

ROLES = "give each part a role of its own: soong migrate --grant-worker … (docs/operations.md)"

_NOT_KNOWN = "one that another service starts for it (at, systemd-run, tmux, ssh, a container) is not recognised"


async def check_artifacts(settings: Settings) -> Finding:
    """A bucket that is named exists, and answers with the credentials of this process."""
    if not settings.artifacts_url:
        return Finding("artifacts", Level.OK, "in the data folder")
    from soong.orchestrator.client.bootstrap import open_artifacts

    try:
        await asyncio.to_thread(open_artifacts(settings).probe)
    except InvalidConfigError as error:
        return Finding("artifacts", Level.FAIL, str(error), "correct SOONG_ARTIFACTS_URL, or install the extra s3")
    except UnavailableError as error:
        hint = "correct SOONG_ARTIFACTS_URL and the AWS_* variables of every process"
        return Finding("artifacts", Level.FAIL, str(error), hint)
    return Finding("artifacts", Level.OK, f"{settings.artifacts_url} answers")


async def check_data(settings: Settings) -> Finding:
    """Runs and artifacts need a folder that can be written."""
    place = existing(settings.data)
    if not place.is_dir():
        return Finding("data", Level.FAIL, f"{place} is a file", "set SOONG_DATA_DIR to a folder")
    if not _may(place, os.W_OK | os.X_OK):
        hint = f"correct the permissions of {place}, or set SOONG_DATA_DIR to a folder that can be written"
        return Finding("data", Level.FAIL, f"{settings.data} cannot be written", hint)
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        hint = "make room on its disk (soong gc)"
        level = Level.WARN if free >= FULL_BYTES else Level.FAIL
        return Finding("data", level, f"{settings.data} has {free // 1024 // 1024} MiB left", hint)
    where = "in the home" if settings.data == settings.home else "apart from the home"
    return Finding("data", Level.OK, f"{settings.data} ({where})")


async def check_configuration(settings: Settings) -> Finding:
    """A process that writes the configuration can grant itself anything, so a worker must not."""
    writable = [str(path) for path in _configuration(settings) if may_write(path)]
    user = f"user {os.geteuid()}"
    if not writable:
        return Finding("configuration", Level.OK, f"{settings.home} is read-only for {user} here")
    if settings.is_embedded:
        return Finding("configuration", Level.OK, f"{settings.home} is written by {user}, as whom workers run too")
    says = f"{user} can write {writable[0]}" + (f" (and {len(writable) - 1} more)" if writable[1:] else "")
    try:
        role = await standing_here(settings)
    except SoongError as error:
        hint = "see the check of the database"
        return Finding("configuration", Level.WARN, f"{says}; whether a worker runs here is unknown: {error}", hint)
    if role is not None and not role.decides:
        hint = "mount the home read-only where workers run, and set SOONG_DATA_DIR to another folder"
        return Finding("configuration", Level.FAIL, f"{says}, and {role.role} is a worker's or a client's role", hint)
    if settings.data.is_relative_to(settings.home):
        hint = "set SOONG_DATA_DIR to another folder, and let workers only read the home"
        return Finding("configuration", Level.WARN, f"{says}; workers write their data there, too", hint)
    return Finding("configuration", Level.OK, f"{says}; run no worker as that user")


async def check_boundary(settings: Settings) -> Finding:
    """Say which boundary holds between the parts, and whether something here undoes it."""
    if settings.is_embedded:
        says = f"none: embedded, everything runs as user {os.geteuid()}; consent is the only defence"
        return Finding("boundary", Level.OK, says)
    try:
        role = await standing_here(settings)
    except SoongError as error:
        return Finding("boundary", Level.WARN, f"unknown: {error}", "see the check of the database")
    if role is None:
        says = "none: SQLite has no roles, every process that opens the file can write decisions and keys"
        return Finding("boundary", Level.WARN, says, "use PostgreSQL for workers that you do not trust")
    if role.owns_tables:
        return Finding("boundary", Level.WARN, f"none: the role {role.role} owns the tables", ROLES)
    if role.decides:
        return Finding("boundary", Level.OK, f"database roles; {role.role} decides, so no worker may run here")
    if settings.key_file.exists() and _may(settings.key_file, os.R_OK):
        hint = "keep the key where orchestrators run, and nowhere else"
        says = f"undone: the role {role.role} decides nothing, but the signing key {settings.key_file} is readable here"
        return Finding("boundary", Level.FAIL, says, hint)
    return Finding("boundary", Level.OK, f"database roles; {role.role} decides nothing, and no signing key is here")


def may_write(path: Path) -> bool:
    """Say whether this process can change what is at a path, also by first giving itself the right to."""
    if _may(path, os.W_OK):
        return True
    try:
        is_mounted_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        return path.stat().st_uid == os.geteuid() and not is_mounted_read_only
    except OSError:
        return False


def _configuration(settings: Settings) -> Iterator[Path]:
    """Yield what decides: the home, or the folder it would be made in, the files in it, the programs of hooks."""
    home = settings.home
    yield existing(home)
    for name in (CONFIG_FILE, TOOLS_FOLDER, "skills"):
        yield from (path for path in (home / name, *sorted((home / name).glob("**/*"))) if path.exists())
    try:
        hooks = load_config(home).hooks
    except InvalidConfigError:
        return  # another check says so
    for hook in hooks.all:
        yield from (Path(word) for word in hook.command if word.startswith("/") and Path(word).is_file())


async def standing_here(settings: Settings) -> DatabaseRights | None:
    """Return the rights of this process in the database; None where a database has no roles. Raises: SoongError."""
    from soong.orchestrator.client.bootstrap import standing_of

    return await asyncio.to_thread(standing_of, settings)


def _may(path: Path, how: int) -> bool:
    """Ask for the user that this process acts as."""
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)


async def check_answers(settings: Settings) -> Finding:
    """Programs of runs are recognised, and this process is not one."""
    if is_run_here():
        limit = resource.getrlimit(RLIMIT_LOCKS)[1] if HAS_MARK else resource.RLIM_INFINITY
        why = "a run started this process" if limit == resource.RLIM_INFINITY else f"`ulimit -H -x` is {limit} here"
        hint = "answer from a terminal that no run started; if a login sets that limit, remove it"
        return Finding("answers", Level.FAIL, f"{why}: answers from here are refused", hint)
    if not HAS_MARK:
        says = (
            "a program of a run is recognised only while its worker lives above it: this system has no limit to mark it"
        )
        return Finding("answers", Level.WARN, says, "run workers on Linux, or as a user of their own")
    if os.geteuid() == 0:
        says = "you are root: a program of a run that is root too can remove the mark by which it is recognised"
        return Finding("answers", Level.WARN, says, "run the service as a user without privileges")
    whose = "of your own user" if settings.is_embedded else "of the workers' user"
    return Finding("answers", Level.OK, f"a program of a run {whose} is recognised and answers nothing; {_NOT_KNOWN}")


async def check_sandbox(settings: Settings) -> Finding:
    """What ``commands.sandbox`` asks for is there."""
    try:
        wanted = load_config(settings.home).commands.sandbox
    except InvalidConfigError as error:
        return Finding("sandbox", Level.FAIL, str(error), "fix config.toml")
    found = await asyncio.to_thread(probe)
    if wanted == "off":
        offer = f'{found.program} works: commands.sandbox = "auto" uses it' if found.works else found.problem
        return Finding("sandbox", Level.OK, f"off: programs of tools have the rights of their worker's user; {offer}")
    if found.works:
        return Finding("sandbox", Level.OK, f"{wanted}: programs of tools and hooks run in {found.program}")
    if wanted == "required":
        return Finding("sandbox", Level.FAIL, f"required, so no program of a tool runs: {found.problem}", found.hint)
    return Finding("sandbox", Level.WARN, f"auto, and programs run without one: {found.problem}", found.hint)
