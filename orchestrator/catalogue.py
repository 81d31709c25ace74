"""What a plan may name, as clients know it: tools, agent definitions, scripts; and the surface of a step's run.

The tools are those that workers with the same settings register, under the user's configuration. A step's functions
are known where they run.
"""

from dataclasses import dataclass, field
from typing import Self

from orchestrator.tool_registry import registry_of
from shared.agents.definition import AgentDefinitionRegistry, builtin_definitions
from shared.agents.script import check_script
from shared.config import Config
from shared.errors import NotFoundError
from shared.identity import Role
from shared.jsontext import JsonObject
from shared.permissions.configured import policy_of, surface_request
from shared.permissions.policy import Policy
from shared.settings import Settings
from shared.tasks.plan import Known, PlanStep
from shared.tasks.planner import Planner
from shared.tasks.step import StepKind
from shared.tools.definition import Permission, ToolDefinition
from shared.tools.surface import RunMode, SurfaceRequest, compute_surface
from shared.toolsets.sources import Surroundings


def tools_of(surroundings: Surroundings) -> tuple[ToolDefinition, ...]:
    """Return every tool that a plan may name, in registry order."""
    return registry_of(surroundings).definitions()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Built once a client. ``policy`` is what the configuration says, before any ``--allow``."""

    tools: tuple[ToolDefinition, ...] = field(default_factory=lambda: tools_of(Surroundings()))
    definitions: AgentDefinitionRegistry = field(default_factory=builtin_definitions)
    config: Config = field(default_factory=Config)
    needs_project: bool = False
    """Workers may run where the project is not: its mark, if it has one, says who has it."""
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", policy_of(self.config))

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what plans may name under these settings and the configuration of their home.

        Raises:
            InvalidConfigError: the configuration or a module of tools is wrong; names the place.
            InvalidToolError: a tool is refused.
        """
        surroundings = Surroundings.of(settings)
        return cls(tools_of(surroundings), config=surroundings.config, needs_project=not settings.is_embedded)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def readonly_tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools if tool.permission is Permission.READONLY)

    def known(self) -> Known:
        """Return what plans are checked against."""
        return Known(
            tools=self.names,
            definitions=self.definitions.ids,
            check_script=check_script,
        )

    def planner(self, default_model: str, max_children: int = 0) -> Planner:
        """Return what makes rows of plans in this process."""
        return Planner(self.known(), self.surface_of, default_model, max_children)

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
            return surface_request(self.config, Role.WORKER, RunMode.READONLY, allowed_tools=())
        return surface_request(
            self.config,
            Role.WORKER,
            definition.mode,
            default_tools=definition.suggested_tools,
            allowed_tools=step.allowed_tools,
        )
