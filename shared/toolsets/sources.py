"""Every source of tools, in one place: a process registers them when it starts (REG-07).

A new built-in tool goes into the toolset of its namespace (``shared/toolsets/code/toolset.py`` reads as an example); a
new source goes into :func:`builtin_sources`; a user's own tools come from the modules that ``SOONG_TOOLS`` names.
Workers, clients and ``soong tools`` all build their registry here, so that a plan is checked against the same tools
that a worker runs.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from soong.shared.core.config import Config, load_config, with_config
from soong.shared.core.installation import OptionalPart
from soong.shared.core.secret_values import secret_files, secret_values
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.names import SENSITIVE, STEERING
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.tools.deferred import ToolSearch
from soong.shared.tools.definition import ToolAdapter
from soong.shared.tools.hooks.chain import Hooks, registered_hooks
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry
from soong.shared.toolsets.code.read_file import MAX_PAGE_CHARS
from soong.shared.toolsets.code.toolset import CodeTools
from soong.shared.toolsets.controls import command_runner, controls_of, import_guard
from soong.shared.toolsets.modules import look_in, register_modules

if TYPE_CHECKING:
    from soong.shared.toolsets.mcp.pool import McpServers
    from soong.shared.toolsets.memory.provider import MemoryProvider
    from soong.shared.toolsets.skills.toolset import SkillEntry


class ToolEnvironment(Value):
    """The parts of a process that its tools need. ``home`` is Soong's own folder; None: there is none. ``modules`` are
    those of ``SOONG_TOOLS``. ``redactor`` has the secrets of the process.
    """

    home: Path | None = None
    config: Config = msgspec.field(default_factory=Config)
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)
    modules: tuple[str, ...] = ()
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    max_timeout: timedelta = MAX_TIMEOUT
    """``tools.max_timeout_ms``: the longest time that a tool may ask for (EXE-08)."""
    max_result_chars: int = MAX_PAGE_CHARS
    """The size at which a page of a file ends (FS-01)."""
    data: Path | None = None
    """The folder of runs and artifacts; None: it is the home."""
    import_folders: tuple[str, ...] = ()
    """Folders that ``modules`` are looked for in, after what is installed."""
    secret_files: tuple[Path, ...] = ()
    """Files that hold a key or a password of the deployment, wherever they are."""
    functions: tuple[str, ...] = ()
    """The modules of ``SOONG_FUNCTIONS``: workers import them."""
    mcp: "McpServers | None" = None
    """The MCP servers of the process, which closes them."""

    @classmethod
    def of(cls, settings: Settings, config: Config | None = None, *, starts_servers: bool = True) -> "ToolEnvironment":
        """Return the surroundings of a process; ``config`` is what it has read already. ``starts_servers``: whether it
        may start MCP servers, to use them or to ask what they offer.
        Raises: InvalidConfigError, the configuration of the home cannot be used.
        """
        wanted = load_config(settings.home) if config is None else config
        settings = with_config(settings, wanted)
        secrets = redactor(secret_values(settings, wanted.secret_env, wanted.secret_files))
        limit = timedelta(milliseconds=settings.tool_max_timeout_ms)
        return cls(
            settings.home,
            wanted,
            runner=command_runner(settings, wanted),
            modules=settings.tools,
            redactor=secrets,
            max_timeout=limit,
            max_result_chars=settings.max_result_chars,
            data=settings.data,
            import_folders=settings.import_folders,
            secret_files=(*secret_files(settings), *wanted.secret_files),
            functions=settings.functions,
            mcp=_servers(settings.home, wanted, may_start=starts_servers),
        )

    @property
    def paths(self) -> PathPolicy:
        modules = (*self.modules, *self.functions)
        with OptionalPart("soong.shared.toolsets.memory"):
            from soong.shared.toolsets.memory.provider import memory_modules

            modules += memory_modules(self.config.memory)
        found = look_in(self.import_folders, modules)
        controls = (*controls_of(self.config, modules), *found.served)
        sensitive = (*SENSITIVE, *self.config.paths.sensitive)
        steering = (*STEERING, *self.config.instructions.files)
        return PathPolicy(self.home, sensitive, controls, self.data, self.secret_files, import_guard(), steering)


def builtin_sources(environment: ToolEnvironment) -> Iterable[ToolAdapter]:
    config, known = environment.config, environment.redactor
    limits = (environment.max_timeout, environment.max_result_chars)
    yield CodeTools(environment.paths, config, environment.runner, known, *limits)
    with OptionalPart("soong.shared.toolsets.skills"):
        from soong.shared.toolsets.skills.toolset import SkillTools

        yield SkillTools(environment.home, config)
    yield ToolSearch(config.tools)
    with OptionalPart("soong.shared.toolsets.web"):
        from soong.shared.toolsets.web.fetch import WebTools

        yield WebTools(heeds_robots=config.network.robots)


def project_skills(home: Path | None, config: Config, project: Path) -> "Sequence[SkillEntry]":
    """Return every skill that a run of a project may load, also those that are broken."""
    with OptionalPart("soong.shared.toolsets.skills"):
        from soong.shared.toolsets.skills.toolset import all_skills, places

        return all_skills(places(home, config, project))
    return ()


def recall_tools(environment: ToolEnvironment, memory: "MemoryProvider | None") -> Sequence[ToolAdapter]:
    """Return the tool that recalls memories; without ``memory`` it is only described."""
    with OptionalPart("soong.shared.toolsets.memory"):
        from soong.shared.toolsets.memory.provider import RecallTools

        return (RecallTools(environment.config.memory, memory, environment.redactor),)
    return ()


def make_registry(environment: ToolEnvironment, more: Iterable[ToolAdapter] = ()) -> ToolRegistry:
    """Return a registry of all tools; ``more`` are built-in sources that need what only the caller has (a store).
    Raises: InvalidToolError, a tool is refused; names the tool and why; InvalidConfigError, a module of ``SOONG_TOOLS``
    or a file in ``tools/`` of the home cannot be used; names it.
    """
    registry = ToolRegistry(max_timeout=environment.max_timeout)
    for source in (*builtin_sources(environment), *more):
        registry.add(source, is_builtin=True)
    register_modules(registry, environment.modules, environment.import_folders)
    with OptionalPart("soong.shared.toolsets.declarative"):
        from soong.shared.toolsets.declarative.running import DeclarativeTools

        if environment.home is not None:
            parts = (environment.home, environment.runner, environment.config, environment.paths)
            DeclarativeTools(*parts, environment.redactor, environment.max_timeout).register(registry)
    if environment.mcp is not None:
        from soong.shared.toolsets.mcp.toolset import McpTools

        McpTools(environment.mcp, environment.max_timeout).register(registry)
    return registry


def _servers(home: Path | None, config: Config, *, may_start: bool) -> "McpServers | None":
    with OptionalPart("soong.shared.toolsets.mcp"):
        from soong.shared.toolsets.mcp.toolset import servers_of

        return servers_of(home, config, may_start=may_start)
    return None


def all_hooks(environment: ToolEnvironment) -> Hooks:
    """Return them in their order; configured ones start in the home.
    Raises: InvalidConfigError when a configured one cannot be used.
    """
    config, home, known = environment.config, environment.home, environment.redactor
    assert home is not None  # as of every process that runs agents
    return registered_hooks() + hooks_of(
        config.hooks, environment.runner, home=home, commands=config.commands, redactor=known
    )
