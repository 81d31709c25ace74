"""Every tool as clients know it: described, whether or not the client can call it."""

from typing import TYPE_CHECKING, cast

from soong.shared.agents.acp_agents import with_acp
from soong.shared.agents.definition_files import known_definitions
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.service import Ledger
from soong.shared.tools.definition import ToolAdapter
from soong.shared.tools.registry import ToolRegistry
from soong.shared.toolsets.agents import DefinitionsOf, LookingTools, StartingTools
from soong.shared.toolsets.sources import ToolEnvironment, make_registry, recall_tools
from soong.shared.toolsets.tasks import PlanningTools, PlanTemplates, TaskTools

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import Ledger, TaskService
    from soong.shared.toolsets.memory.provider import MemoryProvider


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

    Raises:
        InvalidToolError, InvalidConfigError: as :func:`make_registry`.
    """
    own = TaskTools(service.store, lambda: "", clock)
    starting = StartingTools(service, patience_s)
    looking = LookingTools(service.store, definitions_of)
    recall = recall_tools(environment, memory)
    sources = (PlanTemplates(service.planner.known), *recall, own, PlanningTools(service), starting, looking)
    return make_registry(environment, sources)
