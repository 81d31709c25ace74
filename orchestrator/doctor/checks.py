"""The checks of ``soong doctor`` on what runs and on what it reaches, and the table of all.

They change nothing, send nothing, and start no server. Those on the machine and its boundaries are in
:mod:`soong.orchestrator.doctor.machine`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from soong.orchestrator.client.program import program
from soong.orchestrator.doctor import machine
from soong.orchestrator.doctor.machine import Finding, Level, fail, more, ok, standing_here, warn
from soong.orchestrator.embedded.child import ServiceHealth, health_of
from soong.orchestrator.embedded.folders import has_no_rows
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.embedded.starter import state_of_home
from soong.shared.core import timing
from soong.shared.core.config import load_config
from soong.shared.core.errors import (
    InvalidConfigError,
    NotFoundError,
    SchemaVersionError,
    SoongError,
    UnsupportedPoolerError,
)
from soong.shared.core.installation import install_line
from soong.shared.core.log import load_telemetry
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.core.secret_values import resolved
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.event_feed import Notice, NoticeState
from soong.shared.engine.tasks.metrics import WorkerLoad
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_program
from soong.shared.storage.store import Store
from soong.shared.toolsets.mcp.connection import expanded
from soong.shared.toolsets.mcp.toolset import McpTools, servers_of

Check = Callable[[Settings], Awaitable[Finding]]
NAMED: Final = 3
_MANY: Final = 10_000


async def run_checks(settings: Settings) -> Mapping[str, Finding]:
    """Run every check, in an order in which the first failure explains the later ones."""
    return {name: await _checked(check, settings) for name, check in CHECKS.items()}


async def _checked(check: Check, settings: Settings) -> Finding:
    try:
        return await check(settings)
    except InvalidConfigError:
        return ok("not looked at: the configuration is wrong")
    except SoongError:
        return ok("not looked at: the database does not answer")


async def check_service(settings: Settings) -> Finding:
    """A service is named by the environment, lives, is gone, or is stuck."""
    if settings.database_url:
        return ok("SOONG_DATABASE_URL names a deployment; the home's own service is not used")
    state, record = await state_of_home(settings)
    if record is None:
        return ok("none is running; `soong run` starts one")
    match state:
        case "stuck":
            hint = f"look at {settings.home}/logs, then end it: kill {record.pid}"
            return fail(f"process {record.pid} holds the home and does not answer", hint)
        case "stopping":
            return ok(f"process {record.pid} is stopping")
        case "none":
            return ok(f"none is running; process {record.pid} has ended without saying so")
    kind = "ephemeral" if record.is_ephemeral else "staying"
    return ok(f"process {record.pid} answers ({kind}, version {record.version})")


async def check_database(settings: Settings) -> Finding:
    """The database answers and has this program's schema."""
    if has_no_rows(settings):
        return ok("none yet; it is made at the first start")
    from soong.orchestrator.client.bootstrap import opened_rows

    where = "the home's SQLite file" if settings.is_embedded else "SOONG_DATABASE_URL"
    try:
        async with opened_rows(settings) as store:
            workers = await store.sessions.workers()
    except SchemaVersionError as error:
        return fail(f"{where}: {error}", "run `soong migrate`, or install the version that made it")
    except UnsupportedPoolerError as error:
        return fail(f"{where}: {error.problem}", error.hint)
    except SoongError as error:
        return fail(f"{where}: {error}", "start the database server, or correct the URL")
    return ok(f"{where} answers; its schema fits; {len(workers)} workers")


async def check_workers(settings: Settings) -> Finding:
    """Workers that the service starts again and again, and workers whose heartbeat has stopped."""
    record = None if settings.database_url else read_record(settings.home)
    health = None
    if record is not None and record.is_process_alive:
        health = await health_of(record.control)
    if health is not None and (finding := _dying(settings, health)) is not None:
        return finding
    if has_no_rows(settings):
        return ok("no service has run in this home")
    silent, live = await _silent_workers(settings)
    if silent:
        says = f"no heartbeat within {2 * settings.beat_s:g} s: {_named(silent)}"
        hint = "its process is stopped, or a step keeps its interpreter busy; end it by its pid: its steps run again"
        return warn(says, hint)
    return ok(f"{live} live; none has ended by itself" if health else f"{live} live")


def _dying(settings: Settings, health: ServiceHealth) -> Finding | None:
    """Return what is wrong with the workers that an embedded service keeps, if anything is."""
    ended = [child for child in health.workers if child.ends]
    log, says = health.log or str(settings.home / "logs"), _named([child.words for child in ended])
    if health.is_hopeless:
        problem = health.problem or says or "each has failed again and again"
        return fail(f"no worker starts: {problem}", f"correct that, or read why in {log}")
    if not ended:
        return None
    level = Level.FAIL if any(child.is_dying for child in ended) else Level.WARN
    if any("SIGKILL" in child.last_exit for child in ended):
        hint = "give the machine more memory, or the service fewer slots (SOONG_WORKERS, SOONG_SLOTS)"
    else:
        hint = f"a step's function or library ends the process: {program()} tasks list shows which task lost its worker"
    return Finding(level, says, f"{hint}; the log is {log}")


async def _silent_workers(settings: Settings) -> tuple[list[str], int]:
    """Watch those that hold steps; return the ones whose beat has not grown, and how many workers live."""
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        live = await _live(store)
        silent = {worker.id: worker for worker in live if worker.busy}
        deadline_s = time.monotonic() + 2 * settings.beat_s
        while silent and time.monotonic() < deadline_s:
            await asyncio.sleep(timing.LEAST_PAUSE_S)
            now = {worker.id: worker.beat for worker in await _live(store)}
            silent = {key: one for key, one in silent.items() if now.get(key) == one.beat}
    words = [f"{one.node_name} (pid {one.pid} on {one.host}, {one.busy} steps)" for one in silent.values()]
    return words, len(live)


async def _live(store: Store) -> list[Worker]:
    return [worker for worker in await store.sessions.workers() if worker.state is not ProcessState.GONE]


async def check_steps(settings: Settings) -> Finding:
    """Steps that still run although their time limit has passed."""
    if has_no_rows(settings):
        return ok("nothing has run in this home")
    from soong.orchestrator.client.bootstrap import opened_metrics, opened_rows

    async with opened_rows(settings) as store, opened_metrics(settings) as metrics:
        holdings = await metrics.holdings()
        late = {one.step_key: words for one in holdings if (words := await _late(store, one))}
    if unended := [one.words for one in holdings if one.asked_to_end]:
        hint = (
            f"a thread cannot be ended; its slot is free when it ends, or after `{program()} down`; "
            "give its step `isolation: process`"
        )
        return warn(_named(unended), hint)
    if late:
        hint = (
            f"its function or tool does not end when it is cancelled: {program()} tasks cancel "
            f"{min(late).partition('/')[0]}; {program()} workers list names the worker, whose process can be ended"
        )
        return warn(_named([*late.values()]), hint)
    return ok(f"{len(holdings)} run, none beyond its time limit")


async def _late(store: Store, holding: WorkerLoad) -> str:
    """Return for how long a step runs beyond its limit, in words. The time of waiting for answers does not count."""
    try:
        step = await store.tasks.step(holding.step_key)
    except NotFoundError:
        return ""  # removed since
    limit_s, now_us = step.spec.timeout_s, SystemClock().now_us()
    if limit_s is None or holding.started_us is None:
        return ""
    ran_us, most_us = now_us - holding.started_us, (limit_s + timing.RELEASE_LIMIT_S) * 1_000_000
    if ran_us > most_us:
        ran_us -= await _asking_us(store, holding, now_us)
    return f"{step.key} runs for {ran_us / 1_000_000:.0f} s; its limit is {limit_s:g} s" if ran_us > most_us else ""


async def _asking_us(store: Store, holding: WorkerLoad, now_us: int) -> int:
    """Return for how long the run has waited for people."""
    asked = await store.consent.questions(session_id=holding.session_id, include_closed=True, limit=_MANY)
    waited_us = 0
    for one in asked:
        if one.request.identity.run_id == holding.run_id:
            answered_us = now_us if one.answer is None else one.answer.answered_us
            ended_us = answered_us if one.decision is None else one.decision.decided_us
            waited_us += ended_us - one.request.created_us
    return waited_us


def _named(words: Sequence[str]) -> str:
    """Return some of them and how many there are besides."""
    return "; ".join(words[:NAMED]) + more(len(words) - NAMED)


async def check_servers(settings: Settings) -> Finding:
    """Each server that is enabled has a program, its secrets, and a snapshot without a problem."""
    config = load_config(settings.home)
    tools = McpTools(servers_of(settings.home, config, may_start=False), timedelta(minutes=10))
    names = list(tools.servers.enabled)
    if not names:
        return ok("none is configured")
    env = child_environment(config.commands.env, config.commands.secret_env)
    if problems := [problem for name in names if (problem := _problem(tools, name, env))]:
        return warn("; ".join(problems), "soong mcp refresh asks servers again")
    found = [tools.tools_of(name) for name in names]
    excluded = sum(len(one.excluded) for one in found)
    left = f", {excluded} left out (soong mcp show NAME says why)" if excluded else ""
    states = {name: tools.servers.login_state(name) for name in names}
    shown = [name if state in ("", "none") else f"{name} ({state})" for name, state in states.items()]
    return ok(f"{', '.join(shown)}: {sum(len(one.definitions) for one in found)} tools{left}")


def _problem(tools: McpTools, name: str, env: dict[str, str]) -> str:
    server = tools.servers.config.servers[name]
    place = f"mcp.servers.{name}"
    try:
        resolved(server.env, f"{place}.env")
        resolved(server.headers, f"{place}.headers")
        if server.command:
            find_program(expanded(server.command), env, cwd=Path("/"))
    except (InvalidConfigError, PathRefusedError) as error:
        return f"{name}: {error}"
    if tools.servers.login_state(name) == "login ended":
        return f"the login at {name} has ended: soong mcp login {name}"
    snapshot = tools.servers.snapshot(name)
    if snapshot is None:
        return f"{name} has not been asked what it offers"
    return snapshot.problem


async def check_notifications(settings: Settings) -> Finding:
    """Each channel has its secrets and a rule, and its messages arrive."""
    config = load_config(settings.home).notifications
    if not has_no_rows(settings):
        from soong.orchestrator.client.bootstrap import opened_rows

        role = await standing_here(settings)
        if role is not None and not role.decides:
            return ok(f"not looked at: {role.role} reads none; an orchestrator's role does")
        async with opened_rows(settings) as store:
            unsent = await store.outbox.notices(include_ended=False, limit=_MANY)
        if problems := [*_of_rows(config, unsent)]:
            hint = "`soong notifications list` has the errors, `soong notifications retry` sends again"
            return warn("; ".join(problems), hint)
    if problems := [*_of_config(config)]:
        hint = "correct config.toml; the orchestrator's process needs the variable or file (`soong notifications test`)"
        return warn("; ".join(problems), hint)
    if not config.rules:
        return ok("no rule asks for any")
    return ok(f"{', '.join(sorted(config.channels))}: {len(config.rules)} rules; nothing is stuck")


def _of_rows(config: NotificationsConfig, unsent: Sequence[Notice]) -> Iterator[str]:
    for channel in sorted({notice.channel for notice in unsent}):
        ours = [notice for notice in unsent if notice.channel == channel]
        if any(notice.state is NoticeState.GONE for notice in ours):
            yield f"{channel}: the receiver answered that it takes no more messages"
        elif dead := [notice for notice in ours if notice.state is NoticeState.DEAD]:
            yield f"{channel}: {len(dead)} events were given up ({dead[-1].error})"
        elif tried := [notice for notice in ours if notice.attempts]:
            yield f"{channel}: {len(tried)} events wait for another attempt ({tried[-1].error})"
        elif channel not in config.channels:
            yield f"{channel}: {len(ours)} events wait for a channel that is not in config.toml any more"


def _of_config(config: NotificationsConfig) -> Iterator[str]:
    used = {rule.channel for rule in config.rules}
    for name, channel in sorted(config.channels.items()):
        if name not in used:
            yield f"{name}: no rule sends anything to this channel"
        for reference in channel.secrets:
            try:
                resolved({"value": reference}, name)
            except InvalidConfigError as error:
                yield str(error)


async def check_telemetry(_settings: Settings) -> Finding:
    """Nothing is sent: whether the collector takes spans is seen in its log and in that of the orchestrator."""
    wanted = load_telemetry()
    if wanted.problem:
        return warn(f"off: {wanted.problem}", "correct the variable where orchestrators run")
    if not wanted.traces:
        return ok("off: no OTEL_* variable asks for traces")
    try:
        import opentelemetry.proto.trace.v1
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        return warn("off: OpenTelemetry is not installed", install_line("otel"))
    try:
        parts = urlsplit(wanted.endpoint)
        host, port = parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:  # not shown: it may hold a password
        return warn("the endpoint is not a URL", "set OTEL_EXPORTER_OTLP_ENDPOINT to http://HOST:4318")
    if problem := await _unreachable(host, port):
        hint = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; spans are kept for 24 hours meanwhile"
        return warn(f"the collector at {host}:{port} does not answer: {problem}", hint)
    return ok(f"traces go to {host}:{port}")


async def _unreachable(host: str, port: int) -> str:
    """Say why there is no connection; empty when there is one."""
    try:
        async with asyncio.timeout(timing.COMMAND_LIMIT_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection within {timing.COMMAND_LIMIT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""


CHECKS: Final[Mapping[str, Check]] = {
    "python": machine.check_python,
    "home": machine.check_home,
    "data": machine.check_data,
    "artifacts": machine.check_artifacts,
    "configuration": machine.check_configuration,
    "boundary": machine.check_boundary,
    "sockets": machine.check_runtime_folder,
    "service": check_service,
    "database": check_database,
    "workers": check_workers,
    "steps": check_steps,
    "redis": machine.check_redis,
    "ripgrep": machine.check_ripgrep,
    "sandbox": machine.check_sandbox,
    "folders": machine.check_function_folders,
    "tools": machine.check_tool_files,
    "agents": machine.check_agent_files,
    "mcp servers": check_servers,
    "notifications": check_notifications,
    "telemetry": check_telemetry,
    "modules": machine.check_modules,
    "clock": machine.check_clock,
    "answers": machine.check_answers,
}
