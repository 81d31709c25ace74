"""Agent definitions and their files, as programs see them (DIS-02)."""

from typing import Annotated

from pydantic import Field

from soong.orchestrator.schemas.base import From, Schema
from soong.shared.tools.surface import RunMode


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
