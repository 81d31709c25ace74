"""What a run's model is offered, request by request: all its tools, or those that are not deferred (DEF-01)."""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_ai.models import Model, ModelRequestParameters

from soong.shared.agents.ports import AgentTask
from soong.shared.agents.provider_schema import check_offer
from soong.shared.agents.turn import parameters_of
from soong.shared.tools.naming import NameTable
from soong.shared.tools.result import ToolResult
from soong.shared.tools.surface import TOOL_SEARCH

CHECKED_AT_ONCE: Final = 32


@dataclass(slots=True)
class ToolOffer:
    """The offer of one run. ``names`` are the provider's, of all tools: they stay when some are found later."""

    task: AgentTask
    names: NameTable
    parameters: ModelRequestParameters = field(init=False)
    """Of the next request."""

    def __post_init__(self) -> None:
        self._renew()

    def take(self, tool: str, result: ToolResult) -> None:
        """Offer what a search found, from the next request on; called with the results of former lives, too."""
        if tool == TOOL_SEARCH and self.task.deferred.take(result):
            self._renew()

    def check(self, model: Model[Any]) -> None:
        """Find out whether a model can take all that the run may offer it. Raises: SchemaUnsupportedError."""
        check_offer(model, self.parameters, self.names)
        hidden = [tool for tool in self.task.tools if self.task.deferred.hint(tool.name)]
        for start in range(0, len(hidden), CHECKED_AT_ONCE):
            part = parameters_of(hidden[start : start + CHECKED_AT_ONCE], self.names, None)
            check_offer(model, part, self.names)

    def _renew(self) -> None:
        offered = self.task.deferred.offered(self.task.tools)
        self.parameters = parameters_of(offered, self.names, self.task.output_schema)
