"""Every tool as clients know it: described, whether or not the client can call it."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from soong.shared.agents.acp_agents import with_acp
from soong.shared.agents.definition_files import known_definitions
from soong.shared.core.config import Config, load_config
from soong.shared.core.identity import Role
from soong.shared.core.installation import OptionalPart
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.service import Ledger
from soong.shared.tools.definition import ToolAdapter
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.surface import RunMode, Surface, compute_surface
from soong.shared.toolsets.agents.looking import DefinitionsOf, LookingTools
from soong.shared.toolsets.agents.starting import StartingTools
from soong.shared.toolsets.sources import ToolEnvironment, make_registry, recall_tools
from soong.shared.toolsets.tasks.own import TaskTools
from soong.shared.toolsets.tasks.planning import PlanningTools, PlanTemplates

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import TaskService
    from soong.shared.toolsets.memory.provider import MemoryProvider

WORKER: Final = "default_worker_agent"
"""The agent definition of a worker for which none is named."""


def registry_of(environment: ToolEnvironment, memory: "MemoryProvider | None" = None) -> ToolRegistry:
    """Return a registry of every tool, for describing: those of :func:`run_sources` cannot be called from it.

    ``memory`` is where memories are recalled from; without it the tool is only described.

    Raises:
        InvalidToolError, InvalidConfigError: as :func:`make_registry`.
    """
    definitions = with_acp(known_definitions(environment.home), environment.config)
    known = PlanNames(definitions=definitions.ids)
    recall = recall_tools(environment, memory)
    return make_registry(environment, (PlanTemplates(known), *recall, *run_sources()))


def registered(settings: Settings, *, is_callable: bool = False) -> tuple[Config, ToolRegistry]:
    """Return the configuration of a home and its tools; memories are recalled from those that are ``is_callable``."""
    config = load_config(settings.home)
    memory = None
    if is_callable:
        with OptionalPart("soong.shared.storage.memory"):
            from soong.shared.storage.memory.files import open_memory

            memory = open_memory(settings, config)
    return config, registry_of(ToolEnvironment.of(settings, config), memory)


def tool_set(
    registry: ToolRegistry,
    config: Config,
    role: Role,
    *,
    home: Path,
    agent: str = "",
    mode: RunMode | None = None,
    allowed: tuple[str, ...] | None = None,
) -> Surface:
    """Compute the tool set as it is stored with a run of this role and agent."""
    from soong.shared.permissions.configured import surface_request  # psutil

    wanted = agent or (WORKER if role is Role.WORKER else "")
    definitions = with_acp(known_definitions(home), config)
    definition = definitions.get(wanted) if wanted else None
    request = surface_request(
        config,
        role,
        mode or (definition.mode if definition is not None else RunMode.DEFAULT),
        default_tools=None if definition is None else definition.suggested_tools,
        allowed_tools=allowed,
    )
    return compute_surface(registry.definitions(), request)


def run_sources() -> tuple[ToolAdapter, ...]:
    """Return the sources whose tools work on rows, only described here; workers and owners have them over a store."""
    return (
        TaskTools(cast("Ledger", None), lambda: "", SystemClock()),
        PlanningTools(cast("TaskService", None)),
        StartingTools(cast("TaskService", None)),
        LookingTools(cast("Ledger", None)),
    )


def owner_registry(
    environment: ToolEnvironment,
    service: "TaskService",
    clock: Clock,
    definitions_of: DefinitionsOf,
    *,
    memory: "MemoryProvider | None" = None,
    patience_s: float = 60.0,
) -> ToolRegistry:
    """Return the registry of an owner, in whose loop main and orchestrator agents run: they plan through the service.
    Raises: InvalidToolError, InvalidConfigError, as :func:`make_registry`.
    """
    own = TaskTools(service.store, lambda: "", clock)
    starting = StartingTools(service, patience_s)
    looking = LookingTools(service.store, definitions_of)
    recall = recall_tools(environment, memory)
    sources = (PlanTemplates(service.planner.known), *recall, own, PlanningTools(service), starting, looking)
    return make_registry(environment, sources)
