"""The form of an agent definition: Markdown with front matter, checked with every problem and its line (DIS-02).

Most homes have no definitions of their own: only who reads one imports this.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from msgspec.structs import fields
from pydantic import BeforeValidator, Field

from soong.shared.agents.definition import ID, AgentDefinition, ModelOptions
from soong.shared.core.front_matter import MAX_FRONT_CHARS, split
from soong.shared.core.texts import fault
from soong.shared.engine.tasks.plan.document import Document
from soong.shared.engine.tasks.plan.fields import (
    AnswerTokens,
    Flag,
    PlanModel,
    Seconds,
    Temperature,
    Text,
    Texts,
    Thinking,
    Title,
)
from soong.shared.engine.tasks.plan.validation import DocumentReader, Expected, kind_of
from soong.shared.engine.tasks.problems import Hint, Problems
from soong.shared.tools.surface import RunMode

_ID_WORDS: Final = "1 to 64 lower-case letters, digits, `_` or `-`"
AgentId: TypeAlias = Annotated[str, Field(pattern=f"^{ID}$"), Expected(_ID_WORDS)]


def _words(value: Any) -> Any:
    """Take one text with commas for a list."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


MAX_FALLBACKS: Final = 5
ModelName: TypeAlias = Annotated[
    str, Field(pattern=r"^[^\s:]{1,100}:\S{1,200}$"), Expected("a model as provider:name, such as openai:gpt-5")
]


class LimitsDocument(PlanModel):
    """Limits of the agent's runs; what is left out is the deployment's."""

    max_turns: Annotated[int, Field(ge=1, le=10_000), Expected("an integer from 1 to 10000")] | None = None
    max_repeated_failures: Annotated[int, Field(ge=0, le=1000), Expected("an integer from 0 to 1000")] | None = None
    max_reasks: Annotated[int, Field(ge=0, le=20), Expected("an integer from 0 to 20")] | None = None
    max_continuations: Annotated[int, Field(ge=0, le=20), Expected("an integer from 0 to 20")] | None = None
    parallel_reads: Annotated[int, Field(ge=1, le=100), Expected("an integer from 1 to 100")] | None = None
    tokens: Annotated[int, Field(ge=0, le=10**12), Expected("an integer from 0")] | None = Field(
        default=None, description="Most tokens that a run reads and writes in all."
    )
    cost_usd: Annotated[float, Field(ge=0, le=1e9), Expected("a number from 0")] | None = Field(
        default=None, description="Most US dollars that the model requests of a run cost in all."
    )


class DefinitionDocument(PlanModel):
    """The front matter of a definition."""

    name: AgentId | None = Field(default=None, description="The id; the file's name without `.md` when absent.")
    description: Title = Field(description="What the agent is for: plans and other agents choose it by this.")
    model: Text = Field(default="", description="provider:name; else the model of the task.")
    fallback_models: (
        Annotated[
            tuple[ModelName, ...],
            Field(strict=False, max_length=MAX_FALLBACKS),
            BeforeValidator(_words),
        ]
        | None
    ) = Field(
        default=None,
        description="Models that continue its runs, in their order, where the provider of its model fails for good; "
        "else those of the configuration.",
    )
    suggested_tools: Annotated[Texts, BeforeValidator(_words)] | None = Field(
        default=None, description="Tools it wants, by name or glob. A preference: policy and mode decide."
    )
    mode: Annotated[RunMode, Field(strict=False)] = Field(
        default=RunMode.DEFAULT, description="readonly: no tool that changes anything."
    )
    limits: LimitsDocument | None = Field(default=None, description="Limits of its runs.")
    temperature: Temperature | None = None
    max_tokens: AnswerTokens | None = Field(default=None, description="Most tokens of one answer.")
    thinking: Thinking | None = None
    timeout_s: Seconds | None = Field(default=None, description="Time limit of one model request, in seconds.")
    parallel_calls: Flag | None = Field(default=None, description="Whether one answer may make several calls.")
    cache: Flag | None = Field(default=None, description="Whether the provider may keep the history for the next turn.")


_READER: Final = DocumentReader.of(DefinitionDocument)


def read_definition(text: str, path: Path) -> AgentDefinition:
    """Read the text of a definition's file.

    Raises:
        InvalidPlanError: with every problem, each with its line.
    """
    from soong.shared.engine.tasks.plan.yaml_document import read_document

    problems = Problems()
    parts = split(text)
    if parts is None:
        problems.add(str(path), "it does not begin with front matter", "write fields between two lines of `---`")
        raise problems.error()
    if len(parts.fields) > MAX_FRONT_CHARS:
        words = f"its front matter has {len(parts.fields):,} characters"
        problems.add(str(path), words, f"write at most {MAX_FRONT_CHARS:,}")
        raise problems.error()
    # The line of `---` counts too: so the lines in problems are those of the file.
    document = read_document(f"\n{parts.fields}", str(path)) if parts.fields.strip() else Document(str(path), {})

    def report(place: tuple[str | int, ...], problem: str, hint: Hint) -> None:
        problems.add(document.place(place), problem, hint, line=document.line(place))

    if not parts.body:
        report((), "there is no text after the front matter", "write the agent's instructions there")
    if (found := fault(text)) != "":
        report((), f"the file has a character that is not text: {found}", "remove it")
    if not isinstance(document.value, dict):
        report((), f"the front matter is {kind_of(document.value)}", "write fields, such as `description: …`")
        raise problems.error()
    said = _READER.read(document.value, (), report, {"description": "-"})
    if said is not None and said.name is None and not re.fullmatch(ID, path.stem):
        report((), f"the file's name {path.stem!r} cannot be an id", f"add `name:` with {_ID_WORDS}")
    problems.refuse()
    assert said is not None
    return _definition_of(said, parts.body, path)


def _definition_of(said: DefinitionDocument, body: str, path: Path) -> AgentDefinition:
    name = said.name or path.stem
    options = {one.name: getattr(said, one.name) for one in fields(ModelOptions)}
    return AgentDefinition(
        id=name,
        name=name,
        description=" ".join(said.description.split()),
        instructions=body,
        model=said.model,
        suggested_tools=said.suggested_tools,
        mode=said.mode,
        limits={} if said.limits is None else said.limits.model_dump(exclude_none=True),
        options=ModelOptions(**options),
        fallback_models=said.fallback_models,
        source=str(path),
    )
