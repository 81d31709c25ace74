"""What a plan may name, as clients know it: tools, agent definitions, scripts; and the surface of a step's run.

The tools are the built-in ones. A step's functions and a worker's own tools are known where they run.
"""

from dataclasses import dataclass, field

from shared.identity import Role
from shared.jsontext import JsonObject
from shared.tasks.plan import Known, PlanStep
from shared.tools.definition import Permission, ToolDefinition
from shared.tools.surface import CHILD_TASK_TOOLS, SurfaceRequest, compute_surface
from shared.toolsets.code.toolset import code_tools


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Built once a client."""

    tools: tuple[ToolDefinition, ...] = field(default_factory=code_tools)

    @property
    def readonly_tools(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools if tool.permission is Permission.READONLY)

    def known(self) -> Known:
        """Return what plans are checked against."""
        return Known(tools=frozenset(tool.name for tool in self.tools) | CHILD_TASK_TOOLS)

    def surface_of(self, step: PlanStep) -> JsonObject:
        """Return the stored surface of a step's run."""
        return compute_surface(self.tools, SurfaceRequest(Role.WORKER, allowed_tools=step.allowed_tools)).to_json()
