"""What a plan may name, as clients know it: tools, agent definitions, scripts; and the surface of a step's run.

The tools are those that workers with the same settings register. A step's functions are known where they run.
"""

from dataclasses import dataclass, field
from typing import cast

from shared.agents.definition import AgentDefinitionRegistry, builtin_definitions
from shared.agents.script import check_script
from shared.clock import SystemClock
from shared.errors import NotFoundError
from shared.identity import Role
from shared.jsontext import JsonObject
from shared.settings import Settings
from shared.tasks.plan import Known, PlanStep
from shared.tasks.step import StepKind
from shared.tasks.store import TaskStore
from shared.tools.definition import Permission, ToolDefinition
from shared.tools.surface import RunMode, SurfaceRequest, compute_surface
from shared.toolsets.sources import Surroundings, make_registry
from shared.toolsets.tasks import TaskTools


def tools_of(surroundings: Surroundings) -> tuple[ToolDefinition, ...]:
    """Return every tool that a plan may name, in registry order."""
    # Only described here, never called: a worker registers the same tools over its store.
    described = TaskTools(cast(TaskStore, None), lambda: "", SystemClock())
    return make_registry(surroundings, [described]).definitions()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Built once a client."""

    tools: tuple[ToolDefinition, ...] = field(default_factory=lambda: tools_of(Surroundings()))
    definitions: AgentDefinitionRegistry = field(default_factory=builtin_definitions)

    @classmethod
    def of(cls, settings: Settings) -> "Catalogue":
        """Return what plans may name under these settings. Raises: InvalidConfigError."""
        return cls(tools_of(Surroundings.of(settings)))

    @property
    def readonly_tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools if tool.permission is Permission.READONLY)

    def known(self) -> Known:
        """Return what plans are checked against."""
        return Known(
            tools=frozenset(tool.name for tool in self.tools),
            definitions=self.definitions.ids,
            check_script=check_script,
        )

    def surface_of(self, step: PlanStep) -> JsonObject:
        """Return the stored surface of a step's run; a step that runs no agent has no tools."""
        if step.kind is not StepKind.AGENT:
            return {}
        return compute_surface(self.tools, self._request(step)).to_json()

    def _request(self, step: PlanStep) -> SurfaceRequest:
        try:
            definition = self.definitions.get(step.agent)
        except NotFoundError:
            # Plans are checked against the definitions; one that was not is refused by the worker, by name.
            return SurfaceRequest(Role.WORKER, RunMode.READONLY, allowed_tools=())
        return SurfaceRequest(
            Role.WORKER, definition.mode, default_tools=definition.suggested_tools, allowed_tools=step.allowed_tools
        )
