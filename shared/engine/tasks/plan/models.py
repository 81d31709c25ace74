"""The plan as a document: one definition of every field, its type, its limits and its description (DAG-02, DAG-08).

The reader validates with these models. The published JSON Schema and the step schema of tools are made from them.
Checks across fields are :mod:`soong.shared.engine.tasks.plan.checks`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from soong.shared.engine.tasks.plan.fields import (
    MOST_COUNTED,
    MOST_USD,
    Flag,
    Name,
    PlanModel,
    Seconds,
    Tags,
    Text,
    Texts,
    Title,
)
from soong.shared.engine.tasks.plan.kinds.registry import StepDocument
from soong.shared.engine.tasks.plan.plan import InputType
from soong.shared.engine.tasks.plan.validation import Expected


class InputDocument(PlanModel):
    """A value that is given when the plan is run. Short form: the default itself."""

    model_config = ConfigDict(title="input")

    type: InputType | None = Field(default=None, description="The default's type, else string, when absent.")
    description: Text = Field(default="", description="What it is for.")
    required: Flag | None = Field(default=None, description="Whether it must be given; yes when it has no default.")
    default: Any = Field(default=None, description="Its value when none is given.")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Read the short form; keep a default of null in the long one, which makes the input optional."""
        if not isinstance(value, Mapping):
            return {} if value is None else {"default": value}
        return {name: item for name, item in value.items() if item is not None or name == "default"}


class TaskLimitsDocument(PlanModel):
    """Limits on the usage of all runs of a task together, and on the task's time. The first that is reached ends it."""

    max_turns: Annotated[int, Field(ge=1, le=MOST_COUNTED), Expected("an integer above 0")] | None = Field(
        default=None, description="Most model turns of all its runs together."
    )
    tokens: Annotated[int, Field(ge=1, le=MOST_COUNTED), Expected("an integer above 0")] | None = Field(
        default=None, description="Most tokens that all its runs together read and write."
    )
    cost_usd: Annotated[float, Field(gt=0, le=MOST_USD), Expected("a number of US dollars above 0")] | None = Field(
        default=None, description="Most US dollars that the model requests of all its runs together may cost."
    )
    wall_s: Seconds | None = Field(
        default=None,
        description="Most seconds from the start of its first step, with all pauses and all waiting for people.",
    )


class PlanDocument(PlanModel):
    """A DAG of steps that Soong runs. `soong tasks validate` checks what a schema cannot say."""

    model_config = ConfigDict(title="Plan")

    title: Title = Field(description="What the task is for, for people.")
    inputs: dict[Name, InputDocument] = Field(
        default={}, description="Values given when the plan is run. Short form: the default itself."
    )
    modules: Texts = Field(
        default=(),
        description="Python modules next to the plan's file that register its scripted agents. Only for "
        "`soong run FILE`.",
    )
    limits: TaskLimitsDocument | None = Field(
        default=None, description="What all its runs together may use, and how long it may take."
    )
    tags: Tags = Field(default=(), description="Words by which lists of tasks and runs are filtered.")
    steps: Annotated[tuple[StepDocument, ...], Field(min_length=1)]


class PlanHead(PlanDocument):
    """A plan whose inputs and steps are validated one by one: each part bounds the problems of a hostile plan."""

    inputs: Annotated[dict[str, Any], Field(strict=False)] = Field(default={})
    steps: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]
