"""The checks of ``soong doctor`` on what runs, and on what it reaches: notifications, telemetry, MCP servers.

They send nothing, and start no server.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from soong.orchestrator.cli.boundary_checks import standing_here
from soong.orchestrator.cli.checks import Finding, Level
from soong.orchestrator.cli.ids import has_no_rows
from soong.orchestrator.cli.mcp_servers import login_state
from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.child import ChildHealth, ServiceHealth, health_of
from soong.orchestrator.embedded.service_file import read_record
from soong.shared.core import timing
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import load_config
from soong.shared.core.errors import InvalidConfigError, NotFoundError, SoongError
from soong.shared.core.installation import install_line
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.core.references import resolved
from soong.shared.core.settings import Settings
from soong.shared.core.telemetry import load_telemetry
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.event_feed import Notice, NoticeState
from soong.shared.engine.tasks.metrics import WorkerLoad
from soong.shared.permissions.request import Question
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_program
from soong.shared.storage.store import Store
from soong.shared.toolsets.mcp.connection import expanded
from soong.shared.toolsets.mcp.toolset import McpTools, servers_of

NAMED: Final = 3
_MOST_QUESTIONS: Final = 10_000

_CHECK: Final = "notifications"
_MANY: Final = 10_000
_TELEMETRY = "telemetry"
_SERVERS = "mcp servers"


async def check_workers(settings: Settings) -> Finding:
    """Workers that the service starts again and again, and workers whose heartbeat has stopped."""
    record = None if settings.database_url else read_record(settings.home)
    health = None
    if record is not None and record.is_process_alive:
        health = await health_of(record.control)
    if health is not None and (finding := _dying(settings, health)) is not None:
        return finding
    if not _has_rows(settings):
        return Finding("workers", Level.OK, "no service has run in this home")
    try:
        silent, live = await _silent_workers(settings)
    except SoongError:
        return Finding("workers", Level.OK, "not looked at: the database does not answer")
    if silent:
        says = f"no heartbeat within {_patience_s(settings):g} s: {_named(silent)}"
        hint = "its process is stopped, or a step keeps its interpreter busy; end it by its pid: its steps run again"
        return Finding("workers", Level.WARN, says, hint)
    return Finding("workers", Level.OK, f"{live} live; none has ended by itself" if health else f"{live} live")


async def check_steps(settings: Settings) -> Finding:
    """Steps that still run although their time limit has passed."""
    if not _has_rows(settings):
        return Finding("steps", Level.OK, "nothing has run in this home")
    try:
        held, late, unended = await _late_steps(settings)
    except SoongError:
        return Finding("steps", Level.OK, "not looked at: the database does not answer")
    if unended:
        hint = (
            f"a thread cannot be ended; its slot is free when it ends, or after `{program()} down`; "
            "give its step `isolation: process`"
        )
        return Finding("steps", Level.WARN, _named([one.words for one in unended]), hint)
    if late:
        ids = sorted({step.holding.step_key.partition("/")[0] for step in late})
        hint = (
            f"its function or tool does not end when it is cancelled: {program()} tasks cancel {ids[0]}; "
            f"{program()} workers list names the worker, whose process can be ended"
        )
        return Finding("steps", Level.WARN, _named([step.words for step in late]), hint)
    return Finding("steps", Level.OK, f"{held} run, none beyond its time limit")


def _dying(settings: Settings, health: ServiceHealth) -> Finding | None:
    """Return what is wrong with the workers that an embedded service keeps, if anything is."""
    ended = [child for child in health.workers if child.ends]
    if not ended and not health.is_hopeless:
        return None
    log = health.log or str(settings.home / "logs")
    says = _named([child.words for child in ended])
    if health.is_hopeless:
        problem = health.problem or says or "each has failed again and again"
        return Finding("workers", Level.FAIL, f"no worker starts: {problem}", f"correct that, or read why in {log}")
    level = Level.FAIL if any(child.is_dying for child in ended) else Level.WARN
    return Finding("workers", level, says, f"{_hint(ended)}; the log is {log}")


def _hint(ended: Sequence[ChildHealth]) -> str:
    if any("SIGKILL" in child.last_exit for child in ended):
        return "give the machine more memory, or the service fewer slots (SOONG_WORKERS, SOONG_SLOTS)"
    return f"a step's function or library ends the process: {program()} tasks list shows which task lost its worker"


async def _silent_workers(settings: Settings) -> tuple[list[str], int]:
    """Watch those that hold steps; return the ones whose beat has not grown, and how many workers live."""
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        live = await _live(store)
        silent = {worker.id: worker for worker in live if worker.busy}
        deadline_s = asyncio.get_running_loop().time() + _patience_s(settings)
        while silent and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(timing.LEAST_PAUSE_S)
            now = {worker.id: worker.beat for worker in await _live(store)}
            silent = {key: one for key, one in silent.items() if now.get(key) == one.beat}
        return [f"{one.node_name} (pid {one.pid} on {one.host}, {one.busy} steps)" for one in silent.values()], len(
            live
        )


async def _live(store: Store) -> list[Worker]:
    return [worker for worker in await store.sessions.workers() if worker.state is not ProcessState.GONE]


class _LateStep(Value):
    """A step that is held beyond its time limit."""

    holding: WorkerLoad
    ran_s: float
    limit_s: float

    @property
    def words(self) -> str:
        return f"{self.holding.step_key} runs for {self.ran_s:.0f} s; its limit is {self.limit_s:g} s"


async def _late_steps(settings: Settings) -> tuple[int, list[_LateStep], list[WorkerLoad]]:
    """Return how many steps are held, those beyond their limit, and those that were asked to end.

    The time of waiting for answers does not count.
    """
    from soong.orchestrator.client.bootstrap import opened_metrics, opened_rows

    async with opened_rows(settings) as store, opened_metrics(settings) as metrics:
        holdings, now_us = await metrics.holdings(), SystemClock().now_us()
        late = [one for one in [await _late(store, holding, now_us) for holding in holdings] if one is not None]
        return len(holdings), late, [one for one in holdings if one.asked_to_end]


async def _late(store: Store, holding: WorkerLoad, now_us: int) -> _LateStep | None:
    try:
        step = await store.tasks.step(holding.step_key)
    except NotFoundError:
        return None  # removed since
    limit_s = step.spec.timeout_s
    if limit_s is None or holding.started_us is None:
        return None
    ran_s = (now_us - holding.started_us) / 1_000_000
    if ran_s <= limit_s + timing.RELEASE_LIMIT_S:
        return None
    ran_s -= await _asking_s(store, holding, now_us)
    return _LateStep(holding, ran_s, limit_s) if ran_s > limit_s + timing.RELEASE_LIMIT_S else None


async def _asking_s(store: Store, holding: WorkerLoad, now_us: int) -> float:
    """Return for how long the run has waited for people."""
    asked = await store.consent.questions(session_id=holding.session_id, include_closed=True, limit=_MOST_QUESTIONS)
    own = [one for one in asked if one.request.identity.run_id == holding.run_id]
    return sum(_end_us(one, now_us) - one.request.created_us for one in own) / 1_000_000


def _end_us(question: Question, now_us: int) -> int:
    if question.decision is not None:
        return question.decision.decided_us
    return now_us if question.answer is None else question.answer.answered_us


def _patience_s(settings: Settings) -> float:
    return 2 * settings.beat_s


def _has_rows(settings: Settings) -> bool:
    return not settings.is_embedded or (settings.home / "soong.db").exists()


def _named(words: Sequence[str]) -> str:
    """Return some of them and how many there are besides."""
    more = f" (and {len(words) - NAMED} more)" if len(words) > NAMED else ""
    return "; ".join(words[:NAMED]) + more


async def check_notifications(settings: Settings) -> Finding:
    """Each channel has its secrets and a rule, and its messages arrive."""
    try:
        config = load_config(settings.home).notifications
    except InvalidConfigError:
        return Finding(_CHECK, Level.OK, "not looked at: the configuration is wrong")
    try:
        role = None if has_no_rows(settings) else await standing_here(settings)
        if role is not None and not role.decides:
            return Finding(_CHECK, Level.OK, f"not looked at: {role.role} reads none; an orchestrator's role does")
        unsent = await _unsent(settings)
    except SoongError:
        unsent = ()  # the check of the database reports that
    if problems := [*_of_rows(config, unsent)]:
        hint = "`soong notifications list` has the errors, `soong notifications retry` sends again"
        return Finding(_CHECK, Level.WARN, "; ".join(problems), hint)
    if problems := [*_of_config(config)]:
        hint = "correct config.toml; the orchestrator's process needs the variable or file (`soong notifications test`)"
        return Finding(_CHECK, Level.WARN, "; ".join(problems), hint)
    if not config.rules:
        return Finding(_CHECK, Level.OK, "no rule asks for any")
    return Finding(
        _CHECK, Level.OK, f"{', '.join(sorted(config.channels))}: {len(config.rules)} rules; nothing is stuck"
    )


async def _unsent(settings: Settings) -> Sequence[Notice]:
    if has_no_rows(settings):
        return ()
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        return await store.outbox.notices(include_ended=False, limit=_MANY)


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
        return Finding(_TELEMETRY, Level.WARN, f"off: {wanted.problem}", "correct the variable where orchestrators run")
    if not wanted.traces:
        return Finding(_TELEMETRY, Level.OK, "off: no OTEL_* variable asks for traces")
    if not _is_installed():
        hint = install_line("otel")
        return Finding(_TELEMETRY, Level.WARN, "off: OpenTelemetry is not installed", hint)
    try:
        parts = urlsplit(wanted.endpoint)
        host, port = parts.hostname, parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or not port:  # not shown: it may hold a password
        return Finding(
            _TELEMETRY, Level.WARN, "the endpoint is not a URL", "set OTEL_EXPORTER_OTLP_ENDPOINT to http://HOST:4318"
        )
    if problem := await _unreachable(host, port):
        hint = "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; spans are kept for 24 hours meanwhile"
        return Finding(_TELEMETRY, Level.WARN, f"the collector at {host}:{port} does not answer: {problem}", hint)
    return Finding(_TELEMETRY, Level.OK, f"traces go to {host}:{port}")


def _is_installed() -> bool:
    try:
        return (
            find_spec("opentelemetry.sdk.trace") is not None and find_spec("opentelemetry.proto.trace.v1") is not None
        )
    except ModuleNotFoundError:
        return False


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


async def check_servers(settings: Settings) -> Finding:
    """Each server that is enabled has a program, its secrets, and a snapshot without a problem."""
    try:
        config = load_config(settings.home)
    except InvalidConfigError:
        return Finding(_SERVERS, Level.OK, "not looked at: the configuration is wrong")
    tools = McpTools(servers_of(settings.home, config, may_start=False), timedelta(minutes=10))
    names = list(tools.servers.enabled)
    if not names:
        return Finding(_SERVERS, Level.OK, "none is configured")
    env = child_environment(config.commands.env, config.commands.secret_env)
    problems = [problem for name in names if (problem := _problem(tools, name, env))]
    if problems:
        return Finding(_SERVERS, Level.WARN, "; ".join(problems), "soong mcp refresh asks servers again")
    count = sum(len(tools.tools_of(name).definitions) for name in names)
    excluded = sum(len(tools.tools_of(name).excluded) for name in names)
    left = f", {excluded} left out (soong mcp show NAME says why)" if excluded else ""
    logins = {name: login_state(tools.servers, name) for name in names}
    shown = [f"{name} ({state})" if (state := logins[name]) not in ("", "none") else name for name in names]
    return Finding(_SERVERS, Level.OK, f"{', '.join(shown)}: {count} tools{left}")


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
    if login_state(tools.servers, name) == "login ended":
        return f"the login at {name} has ended: soong mcp login {name}"
    snapshot = tools.servers.snapshot(name)
    if snapshot is None:
        return f"{name} has not been asked what it offers"
    return snapshot.problem
