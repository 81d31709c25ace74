"""The web tools as one source (REG-07, REG-12)."""

from soong.shared.core.value import Value
from soong.shared.sandbox.egress import Resolver
from soong.shared.sandbox.network import resolve
from soong.shared.tools.definition import ToolDefinition
from soong.shared.toolsets.web.fetch import FetchTool


class WebTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter`. ``heeds_robots``: a site's robots.txt is followed."""

    heeds_robots: bool = True
    resolver: Resolver = resolve

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (FetchTool(self.heeds_robots, self.resolver).definition(),)
