"""Tools collected before there is a registry: what a module of one's own fills and calls ``tools`` (REG-06)."""

from collections.abc import Callable
from typing import Any, TypeVar

from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.registry import Function, definition_of

F = TypeVar("F", bound=Function)


class Toolset:
    """A :class:`soong.shared.tools.definition.ToolAdapter` that is written down tool by tool, in the order of the
    text.
    """

    def __init__(self) -> None:
        self._tools: list[ToolDefinition] = []

    def tool(self, name: str, **more: Any) -> Callable[[F], F]:
        """Add a function, sync or async, as :meth:`soong.shared.tools.registry.ToolRegistry.tool` does; returns it
        unchanged.

        Raises:
            InvalidToolError: the function cannot be said as a schema.
        """

        def decorate(function: F) -> F:
            self.add(definition_of(function, name, **more))
            return function

        return decorate

    def add(self, definition: ToolDefinition) -> ToolDefinition:
        """Add a complete definition; it is checked when it is registered."""
        self._tools.append(definition)
        return definition

    def tools(self) -> tuple[ToolDefinition, ...]:
        return tuple(self._tools)
