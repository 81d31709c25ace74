"""Agent definitions and their files, as programs see them (DIS-02)."""

from pydantic import Field

from soong.orchestrator.schemas.base import Schema
from soong.shared.agents.definition import AgentDefinition
from soong.shared.agents.definition_files import DefinitionFile
from soong.shared.core.errors import Problem
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

    @classmethod
    def of(cls, definition: AgentDefinition) -> "AgentSchema":
        return cls(
            id=definition.id,
            description=definition.description,
            source=definition.source,
            model=definition.model,
            fallback_models=None if definition.fallback_models is None else list(definition.fallback_models),
            mode=definition.mode,
            suggested_tools=None if definition.suggested_tools is None else list(definition.suggested_tools),
            limits=dict(definition.limits),
            options=definition.options.as_json(),
            instructions=definition.instructions,
        )


class AgentFileProblem(Schema):
    """One thing that is wrong with a document."""

    place: str = Field(description="The file, the line and the field.")
    problem: str
    hint: str

    @classmethod
    def of(cls, problem: Problem) -> "AgentFileProblem":
        return cls(place=problem.place, problem=problem.problem, hint=problem.hint)


class AgentFileSchema(Schema):
    """A file of a definition, and whether it can be used."""

    path: str
    id: str = Field(description="Empty when it cannot be used.")
    problems: list[AgentFileProblem]
    notes: list[str] = Field(description="What of it is not taken, and why.")

    @classmethod
    def of(cls, file: DefinitionFile) -> "AgentFileSchema":
        definition_id = "" if file.definition is None else file.definition.id
        problems = [AgentFileProblem.of(one) for one in file.problems]
        return cls(path=str(file.path), id=definition_id, problems=problems, notes=list(file.notes))
