"""A tool, as programs see it: what it takes, gives and may end in (docs/reference/tools.md)."""

from datetime import timedelta
from typing import Annotated

from soong.orchestrator.client.tool_registry import registered, tool_set
from soong.orchestrator.schemas.base import AnyObject, From, Schema
from soong.shared.core.identity import Role
from soong.shared.core.settings import Settings
from soong.shared.tools.definition import Permission


class ToolSchema(Schema):
    name: str
    title: str
    description: str
    permission: Permission
    tags: Annotated[list[str], From("tags", sorted)]
    aliases: list[str]
    source: str
    input_schema: AnyObject
    output_schema: AnyObject | None
    timeout_ms: Annotated[int | None, From("timeout", lambda limit: limit and limit // timedelta(milliseconds=1))]
    max_result_chars: int | None
    interrupt: str
    errors: Annotated[list[str], From("errors", lambda errors: [error.value for error in errors])]


class ToolsSchema(Schema):
    items: list[ToolSchema]

    @classmethod
    def of_home(cls, settings: Settings, role: Role | None) -> "ToolsSchema":
        """Return the tools of a home in the order that models see them, or those of them that a role gets."""
        config, registry = registered(settings)
        tools = registry.definitions()
        if role is not None:
            tools = registry.select(tool_set(registry, config, role, home=settings.home).tools)
        return cls(items=[ToolSchema.of(tool, source=registry.source_of(tool.name)) for tool in tools])
