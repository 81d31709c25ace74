"""Tools (docs/reference/tools.md) and agent definitions (DIS-02), as programs see them."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from soong.orchestrator.client.tool_registry import registered, tool_set
from soong.orchestrator.schemas.base import AnyObject, From, Schema
from soong.shared.core.identity import Role
from soong.shared.core.settings import Settings
from soong.shared.tools.definition import Permission
from soong.shared.tools.surface import RunMode


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


class AgentSchema(Schema):
    """An agent definition that plans may name."""

    id: str
    description: str
    source: str = Field(description="built-in, or the path of its file.")
    model: str = Field(description="Empty: the model of the task.")
    fallback_models: list[str] | None = Field(
        description="They continue a run where the provider of its model fails for good; null: the configuration's."
    )
    mode: RunMode
    suggested_tools: list[str] | None = Field(description="A preference; null: the default of the run's role.")
    limits: dict[str, float] = Field(description="Those that it sets itself.")
    options: dict[str, float | int | bool | str] = Field(description="What it asks of its model.")
    instructions: str


class AgentFileProblem(Schema):
    """One thing that is wrong with a document."""

    place: str = Field(description="The file, the line and the field.")
    problem: str
    hint: str


class AgentFileSchema(Schema):
    """A file of a definition, and whether it can be used."""

    path: Annotated[str, From("path", str)]
    id: Annotated[str, From("definition", lambda one: "" if one is None else one.id)] = Field(
        description="Empty when it cannot be used."
    )
    problems: list[AgentFileProblem]
    notes: list[str] = Field(description="What of it is not taken, and why.")
