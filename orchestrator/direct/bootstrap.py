"""Builds direct sessions out of adapters: ``soong tools call``, and the same for programs. No service, no rows."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from soong.orchestrator.approvals.responders import answering
from soong.orchestrator.client.program import existing_folder, program_folder
from soong.orchestrator.client.tool_registry import registered, run_sources
from soong.orchestrator.direct.gate import DirectGate
from soong.orchestrator.direct.service_calls import ServiceCalls
from soong.orchestrator.direct.session import DirectSession, FolderLog
from soong.shared.core.config import Config, with_config
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.identity import Role, RunIdentity, new_id
from soong.shared.core.jsontext import Json
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import ARTIFACTS, RUNS, Settings, load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.permissions.configured import configured_write_roots, policy_of, run_dirs_of, surface_request
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import ElicitationCallback, PermissionCallback
from soong.shared.permissions.rules import allow_rules
from soong.shared.sandbox.programs import DEFAULT_NAMES
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.sandbox.rooted import RootedFolder, project_id
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.tools.deferred import DeferredTools, with_search
from soong.shared.tools.definition import ToolAdapter, ToolDefinition, shaped
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks, registered_hooks
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.pipeline import PipelineConfig, RunScope, ToolPipeline
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ToolResult
from soong.shared.tools.surface import TOOL_SEARCH, RunMode, Surface, compute_surface
from soong.shared.toolsets.controls import command_runner
from soong.shared.toolsets.modules import check_foreign, import_own

DEFINITION = "direct"
"""The agent definition in the identity of a run without an agent."""

_Word = TypeVar("_Word", bound=StrEnum)


class DirectRequest(Value):
    """The options of a session. ``timeout`` bounds every handler and is at most the setting's maximum."""

    project: Path = Path()
    role: Role = Role.MAIN
    mode: RunMode = RunMode.DEFAULT
    allowed_tools: tuple[str, ...] | None = None
    allow: tuple[str, ...] = ()
    callback: PermissionCallback | None = None
    channel: str = "sdk"
    hooks: Hooks = NO_HOOKS
    timeout: timedelta | None = None


@asynccontextmanager
async def open_direct(
    settings: Settings, request: DirectRequest, config: Config, registry: ToolRegistry
) -> AsyncIterator[DirectSession]:
    """Open a session of direct calls over tools that are registered; nothing is written before the first call.

    The registry is closed with it, and a service that was started for it ends.
    Raises: UsageError, the project, a rule, the configuration or a hook is wrong; says what to do.
    """
    session, service = build(settings, config, registry, request)
    try:
        yield session
    except BaseException:
        with suppress(UnavailableError):  # what went wrong first is what the caller must learn
            await session.end(EndReason.CANCELLED)
        raise
    else:
        await session.end()
    finally:
        await service.close()
        await registry.close()


@asynccontextmanager
async def open_tools(
    *,
    project: str | Path = ".",
    role: str = "main",
    mode: str = "default",
    allowed_tools: Sequence[str] | None = None,
    allow: Sequence[str] = (),
    permission_callback: PermissionCallback | None = None,
    elicitation_callback: ElicitationCallback | None = None,
    hooks: Hooks = NO_HOOKS,
    tools: Iterable[ToolAdapter] = (),
    **settings: object,
) -> AsyncIterator[DirectSession]:
    """Call tools from a program, without a model and without a service.

    Relative paths start at the current folder if it lies in the project, otherwise at the project.
    ``role``, ``mode`` and ``allowed_tools`` give the tool set as for a run; ``tools`` are more sources. The
    ``permission_callback`` answers every question of this session; without it only ``allow`` rules (``tool:scope``)
    do. ``elicitation_callback`` answers the questions of MCP servers during calls; without it the other callback
    does. ``settings`` are those of the environment without their prefix.

    Raises:
        UsageError: something of it is wrong; nothing was written.
    """
    request = DirectRequest(
        project=Path(project),
        role=_word(Role, role, "role"),
        mode=_word(RunMode, mode, "mode"),
        allowed_tools=None if allowed_tools is None else tuple(allowed_tools),
        allow=tuple(allow),
        callback=answering(permission_callback, elicitation_callback),
        hooks=hooks,
    )
    _check_names(settings)
    loaded = load_settings(**settings)
    config, registry = registered(loaded, is_callable=True)
    for definition in (each for source in tools for each in source.tools()):
        check_foreign(shaped(definition))
        registry.register(definition)
    async with open_direct(loaded, request, config, registry) as session:
        yield session


async def call_tool(tool: str, arguments: Mapping[str, Json] | None = None, **options: Any) -> ToolResult:
    """Call one tool; ``options`` are those of :func:`open_tools`.
    Raises: UsageError, an option is wrong. A failure of the call is its result.
    """
    async with open_tools(**options) as session:
        return await session.call(tool, arguments)


def build(
    settings: Settings, config: Config, registry: ToolRegistry, request: DirectRequest
) -> tuple[DirectSession, ServiceCalls]:
    """Build a session, and the object that makes its calls of a service's tools. Raises: UsageError."""
    settings = with_config(settings, config)
    surface = surface_of(registry, config, request)
    of_service = frozenset(tool.name for source in run_sources() for tool in source.tools())
    clock, secrets = SystemClock(), redactor(secret_values(settings, config.secret_env, config.secret_files))
    sitting = _session(settings, registry, config, request)
    scope = _scope(settings, config, sitting, request.role, registry)
    artifacts = FolderArtifacts(RootedFolder(settings.data, ARTIFACTS))
    folder = RootedFolder(settings.data, RUNS) / scope.identity.run_id
    log = FolderLog(folder, scope.identity.run_id, artifacts, clock, secrets)
    service = ServiceCalls(
        settings, sitting, surface, request.role, request.callback, request.channel, has_rules=bool(request.allow)
    )
    tools = [service.bound(tool) if tool.name in of_service else tool for tool in registry.select(surface.tools)]
    pipeline = ToolPipeline(
        searchable(tools),
        scope,
        _gate(settings, config, sitting, request, log),
        log,
        hooks=_hooks(settings, config, request, secrets),
        artifacts=artifacts,
        redactor=secrets,
        clock=clock,
        config=_limits(settings, request.timeout),
    )
    return DirectSession(registry, surface, scope, clock, of_service, artifacts.path_of, pipeline, log), service


def searchable(tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """Return tools whose search, if it is among them, finds all the others."""
    return with_search(tools, DeferredTools(frozenset(tool.name for tool in tools if tool.name != TOOL_SEARCH)))


def surface_of(registry: ToolRegistry, config: Config, request: DirectRequest) -> Surface:
    """Compute the tool set as for a run of this role: the same rules, the same configuration."""
    wanted = surface_request(config, request.role, request.mode, allowed_tools=request.allowed_tools)
    return compute_surface(registry.definitions(), wanted)


def _session(settings: Settings, registry: ToolRegistry, config: Config, request: DirectRequest) -> Session:
    project = existing_folder(request.project)
    definitions = registry.definitions()
    return Session(
        id=new_id("sess"),
        project=str(project),
        cwd=str(program_folder(project)),
        principal=settings.principal,
        project_id="" if settings.is_embedded else project_id(project),
        approval_mode=ApprovalMode.DENY if request.callback is None else ApprovalMode.PROMPT,
        created_us=SystemClock().now_us(),
        policy=policy_of(config).with_rules(allow_rules(request.allow, definitions)).as_json(),
    )


def _scope(settings: Settings, config: Config, session: Session, role: Role, registry: ToolRegistry) -> RunScope:
    identity = RunIdentity(session.id, new_id("run"), new_id("agent"), role, DEFINITION)
    run_dirs = run_dirs_of(
        Path(session.project),
        Path(session.cwd),
        settings.runs / identity.run_id,
        Policy.from_json(session.policy),
        registry.definitions(),
        write_roots=configured_write_roots(config),
        home=str(Path.home()),
    )
    return RunScope(identity, 0, run_dirs)


def _gate(settings: Settings, config: Config, session: Session, request: DirectRequest, log: FolderLog) -> DirectGate:
    return DirectGate(
        session=session,
        policy=Policy.from_json(session.policy),
        callback=request.callback,
        channel=request.channel,
        record=log.append,
        clock=SystemClock(),
        timeout=timedelta(seconds=settings.permission_timeout_s),
        decision_ttl=timedelta(seconds=settings.decision_ttl_s),
        home=str(Path.home()),
        env=(*DEFAULT_NAMES, *config.commands.env),
        is_tainted=lambda: log.is_tainted,
        redactor=log.redactor,
    )


def _hooks(settings: Settings, config: Config, request: DirectRequest, redactor: Redactor) -> Hooks:
    """Return the hooks that a worker has under these settings, together with the caller's own."""
    for module in settings.functions:  # where hooks in Python are registered
        import_own(module, "SOONG_FUNCTIONS", settings.import_folders)
    runner = command_runner(settings, config)
    programs = hooks_of(config.hooks, runner, home=settings.home, commands=config.commands, redactor=redactor)
    return registered_hooks() + request.hooks + programs


def _limits(settings: Settings, timeout: timedelta | None) -> PipelineConfig:
    most = timedelta(milliseconds=settings.tool_max_timeout_ms)
    if timeout is not None and not timedelta(0) < timeout <= most:
        known = f"{settings.tool_max_timeout_ms} ms (tools.max_timeout_ms, SOONG_TOOL_MAX_TIMEOUT_MS)"
        raise UsageError(f"a call's time must be above 0 and at most {known}")
    return PipelineConfig(
        default_timeout=timeout or timedelta(milliseconds=settings.tool_timeout_ms),
        max_timeout=timeout or most,
        max_result_chars=settings.max_result_chars,
    )


def _check_names(settings: Mapping[str, object]) -> None:
    """Refuse an option that is none: a misspelt callback must not be a session without one."""
    known = {*signature(open_tools).parameters, *Settings.model_fields}
    for name in settings:
        if name not in Settings.model_fields:
            raise UsageError(f"there is no option or setting {name!r}; {suggestion(name, known)}")


def _word(kind: type[_Word], given: str, what: str) -> _Word:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise UsageError(f"there is no {what} {given!r}; it is one of {known}") from None
