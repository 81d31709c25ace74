"""Changes to a running task as documents: the fields of ``agent.task_update`` and of a dispatch of pull workers."""

from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.fields import PlanModel, Priority, Seconds, StepId, Text, Texts, Title
from soong.shared.engine.tasks.plan.kinds.registry import StepDocument
from soong.shared.engine.tasks.plan.models import TaskLimitsDocument
from soong.shared.engine.tasks.plan.validation import Expected
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION

MAX_PULL_WORKERS: Final = 1000
"""Most pull workers of one dispatch; what a session may run at once, its concurrency limits say."""


class EdgeDocument(PlanModel):
    """More dependencies of one step."""

    step: Title
    depends_on: Texts = ()


class AttemptDocument(PlanModel):
    """A failed step to be tried again; a text is the id of one that is tried as it was."""

    step: Title
    agent: Text = ""
    model: Text = ""
    instructions: Text = ""
    allowed_tools: Texts | None = None
    pool: Text = ""
    needs: Texts | None = None

    @model_validator(mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        return {"step": value} if isinstance(value, str) else value


class UpdateDocument(PlanModel):
    """What is to be different in a running task."""

    add_steps: tuple[StepDocument, ...] = Field(
        default=(), description="More steps, written as in a plan; they may depend on any of the task."
    )
    add_dependencies: tuple[EdgeDocument, ...] = Field(
        default=(), description="More dependencies of steps that are still pending."
    )
    retry_steps: tuple[AttemptDocument, ...] = Field(
        default=(),
        description="Failed steps to be tried again, each with what is to be different: agent, model, tools.",
    )
    priorities: dict[str, Priority] = Field(default={}, description="New priority by step id; higher first.")
    skip_steps: Texts = Field(default=(), description="Steps that are not needed; what depends on them is skipped too.")
    cancel_steps: Texts = Field(default=(), description="Steps to be stopped, also while they run.")
    reason: Text = Field(default="", description="Why, for people and for the log.")


class UpdateHead(UpdateDocument):
    """An update whose parts are validated one by one, as those of a plan are."""

    add_steps: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    add_dependencies: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    retry_steps: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    priorities: Annotated[dict[str, Any], Field(strict=False)] = Field(default={})


class DispatchDocument(PlanModel):
    """How many pull workers a task is to have, and what its author says about them."""

    count: Annotated[int, Field(ge=1, le=MAX_PULL_WORKERS), Expected(f"an integer from 1 to {MAX_PULL_WORKERS}")] = 1
    max_steps: Annotated[int, Field(ge=1, le=1_000_000), Expected("an integer from 1 to 1000000")] | None = None
    instructions: Text = ""
    agent: Text = DEFAULT_DEFINITION
    model: Text = ""
    allowed_tools: Texts | None = None
    script: Text = ""
    pool: StepId = "default"
    needs: Texts = ()
    timeout_s: Seconds | None = None
    reason: Text = ""


def planning_schemas() -> JsonObject:
    """Return what the planning tools show of a step, a task's limits and its changes, made from the models."""
    from soong.shared.engine.tasks.plan.schema import step_schema, tool_schema  # only the generator of documents asks

    return {
        "step": step_schema(),
        "limits": tool_schema(TaskLimitsDocument),
        "changes": tool_schema(UpdateDocument)["properties"],
    }
