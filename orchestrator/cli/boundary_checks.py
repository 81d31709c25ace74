"""The checks of ``soong doctor`` on who may write what: the data, the configuration, and which boundary holds here.

The operating system and the database decide what a process can do, never a setting.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from soong.orchestrator.cli.finding import Finding, Level
from soong.shared.core.config import CONFIG_FILE, load_config
from soong.shared.core.errors import InvalidConfigError, SoongError, UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.permissions.access.store import DatabaseRights
from soong.shared.toolsets.declarative.folder import TOOLS_FOLDER

MIN_FREE_BYTES = 200 * 1024 * 1024
FULL_BYTES = 1024 * 1024
"""With less a disk is full: a database cannot write its next page."""
ROLES = "give each part a role of its own: soong migrate --grant-worker … (docs/operations.md)"


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
    if _reads_key(settings.key_file):
        hint = "keep the key where orchestrators run, and nowhere else"
        says = f"undone: the role {role.role} decides nothing, but the signing key {settings.key_file} is readable here"
        return Finding("boundary", Level.FAIL, says, hint)
    return Finding("boundary", Level.OK, f"database roles; {role.role} decides nothing, and no signing key is here")


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that there is."""
    return next(place for place in (path, *path.parents) if place.exists())


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


def _reads_key(path: Path) -> bool:
    return path.exists() and _may(path, os.R_OK)


def _may(path: Path, how: int) -> bool:
    """Ask for the user that this process acts as."""
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)
