"""The plan as a document: one definition of every field, its type, its limits and its description (DAG-02, DAG-08).

The reader validates with these models, the published JSON Schema is theirs, and so is what tools tell a model of a
step. What fields must say of each other is :mod:`soong.shared.engine.tasks.plan.checks`. A field that is null counts as
left out: in YAML that is a name without a value.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind
from soong.shared.engine.tasks.plan.permissions import (
    MAX_DECLARED,
    PermissionProblem,
    host_problem,
    run_problem,
    write_problem,
)
from soong.shared.engine.tasks.plan.plan import DEFAULT_RETRIES, MAX_MAP_ITEMS, InputType, OnFailure
from soong.shared.engine.tasks.plan.validation import Expected, branch, problem, unexpected
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION

STEP_ID: Final = r"[A-Za-z0-9_.-]{1,64}"
NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
LONGEST_S: Final = 30 * 86_400
LONGEST_PAUSE_S: Final = 3600
MOST_COUNTED: Final = 10**15
MOST_USD: Final = 10**9
"""Of a task's limits; larger ones are mistakes."""


class PlanModel(BaseModel):
    """A mapping of a plan or of a change to a task. Unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Treat null as left out."""
        if isinstance(value, Mapping) and None in value.values():
            return {name: item for name, item in value.items() if item is not None}
        return value


# -- values
def _sequence(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    raise unexpected("a list of texts")


def _program(value: Any) -> Any:
    """Take a text for a program alone."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return value
    raise unexpected("a list of texts, such as [git, status]")


def _held_to(rule: Callable[[Any], PermissionProblem | None]) -> AfterValidator:
    def check(value: Any) -> Any:
        found = rule(value)
        if found is not None:
            raise problem(*found)
        return value

    return AfterValidator(check)


Text: TypeAlias = Annotated[str, Expected("a text")]
Name: TypeAlias = Annotated[str, Field(pattern=f"^{NAME}$"), Expected("letters, digits and `_`")]
StepId: TypeAlias = Annotated[str, Field(pattern=f"^{STEP_ID}$"), Expected("1 to 64 letters, digits, `_`, `.` or `-`")]
Title: TypeAlias = Annotated[str, Field(min_length=1, pattern=r"\S"), Expected("a text that is not empty")]
Item: TypeAlias = Annotated[str, Field(min_length=1), Expected("a text that is not empty")]
Texts: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False, fail_fast=True), BeforeValidator(_sequence)]
Object: TypeAlias = Annotated[dict[str, Any], Field(strict=False), Expected("a mapping")]
Flag: TypeAlias = Annotated[bool, Expected("true or false")]
Priority: TypeAlias = Annotated[int, Field(ge=-1000, le=1000), Expected("an integer from -1000 to 1000")]
Seconds: TypeAlias = Annotated[
    float, Field(gt=0, le=LONGEST_S), Expected(f"a number of seconds above 0, at most {LONGEST_S}")
]
Pause: TypeAlias = Annotated[
    float, Field(gt=0, le=LONGEST_PAUSE_S), Expected(f"a number of seconds above 0, at most {LONGEST_PAUSE_S}")
]
Policy: TypeAlias = Annotated[FailurePolicy, Field(strict=False)]
Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2), Expected("a number from 0 to 2")]
AnswerTokens: TypeAlias = Annotated[int, Field(ge=1, le=10_000_000), Expected("an integer from 1 to 10000000")]
Thinking: TypeAlias = Literal["off", "low", "medium", "high"]
_Declared = Field(max_length=MAX_DECLARED, strict=False)
_Program: TypeAlias = Annotated[
    tuple[str, ...],
    Field(strict=False),
    _held_to(run_problem),
    BeforeValidator(_program, json_schema_input_type=Annotated[list[str], Field(min_length=1)] | Item),
]


class PermissionsDocument(PlanModel):
    """What a step says beforehand that it will ask for."""

    write: Annotated[tuple[Annotated[Item, _held_to(write_problem)], ...], _Declared, BeforeValidator(_sequence)] = (
        Field(default=(), description="Folders and files to write; relative ones start at the working directory.")
    )
    hosts: Annotated[tuple[Annotated[Item, _held_to(host_problem)], ...], _Declared, BeforeValidator(_sequence)] = (
        Field(default=(), description="Hosts to reach, such as api.example.org.")
    )
    run: Annotated[tuple[_Program, ...], _Declared, BeforeValidator(_sequence)] = Field(
        default=(), description="Programs to run, each as a list of words, such as [git, status]."
    )


class SettingsDocument(PlanModel):
    """How an agent's model is asked; what is left out is as the agent's definition says."""

    temperature: Temperature | None = None
    max_tokens: AnswerTokens | None = Field(default=None, description="Most tokens of one answer.")
    thinking: Thinking | None = None
    timeout_s: Seconds | None = Field(default=None, description="Time limit of one model request, in seconds.")
    parallel_calls: Flag | None = Field(default=None, description="Whether one answer may make several calls.")
    cache: Flag | None = Field(default=None, description="Whether the provider may keep the history for the next turn.")


# -- what a run does
class WorkDocument(PlanModel):
    """What every step has that is run, alone or for an item of a map."""

    title: Text = Field(default="", description="What people see; the id when absent.")
    inputs: Object = Field(
        default={},
        description="Values for the step; references such as ${look.output.files} are looked up when it starts.",
    )
    output: Object | None = Field(
        default=None,
        description="JSON Schema of the result. An agent is asked again until its answer holds to it.",
    )
    priority: Priority = Field(default=0, description="Higher first, among steps that are ready.")
    retries: Annotated[int, Field(ge=0, le=20), Expected("an integer from 0 to 20")] = Field(
        default=0, description="More attempts after a failure."
    )
    backoff_s: Pause = Field(
        default=1.0, description="Pause before the first of these attempts, doubled each time, in seconds."
    )
    timeout_s: Seconds | None = Field(
        default=None, description="Time limit of one attempt in seconds, waiting for people not counted."
    )
    pool: StepId = Field(default="default", description="Queue that the step waits in.")
    needs: Texts = Field(default=(), description="Capabilities that its worker must announce.")


class AgentWork(WorkDocument):
    """What an agent does."""

    model_config = ConfigDict(title="agent step without an id")

    kind: Literal["agent"] = Field(default="agent", description="A child agent does it.")
    instructions: Text = Field(
        default="", description="What to do, for a model. References such as ${inputs.path} are looked up."
    )
    agent: Text = Field(default=DEFAULT_DEFINITION, description="Id of an agent definition.")
    model: Text = Field(
        default="", description="A model of its own (provider:name); else the one that the task runs with."
    )
    settings: SettingsDocument | None = Field(
        default=None, description="How its model is asked, instead of what its definition says."
    )
    allowed_tools: Texts | None = Field(
        default=None, description="Tools it asks for instead of its definition's; names or globs."
    )
    claim: Annotated[ClaimMode, Field(strict=False)] = Field(
        default=ClaimMode.ASSIGNED,
        description="Who claims it. `pull`: a run that asks for it with agent.task_claim_step and does it with its own "
        "agent, model and tools; no worker begins it by itself.",
    )
    script: Text = Field(default="", description="Name of the scripted agent that runs when no model is chosen.")
    permissions: PermissionsDocument | None = Field(
        default=None,
        description="What it will ask people for, to be seen beforehand and answered once. It grants nothing.",
    )


class PythonWork(WorkDocument):
    """What a registered function does."""

    model_config = ConfigDict(title="python step without an id")

    kind: Literal["python"] = Field(description="A registered Python function does it.")
    call: Title = Field(description="Name of a registered function.")
    isolation: Literal["thread", "process"] | None = Field(
        default=None,
        description="`process`: each call has a process of its own, which ends at the time limit or when it is "
        "cancelled. Left out: as the function was registered.",
    )


class NodeDocument(PlanModel):
    """What every step of the DAG has."""

    id: StepId = Field(description="Unique in the plan; letters, digits, `_`, `.` or `-`.")
    title: Text = Field(default="", description="What people see; the id when absent.")
    depends_on: Texts = Field(default=(), description="Ids of the steps whose results this one needs.")


_ON_FAILURE: Final = (
    "At the final failure: skip what depends on it, fail the task, or keep going with a null result. "
    f"`retry`: {DEFAULT_RETRIES} more attempts first, unless `retries` says how many. Left out: what depends on it "
    "is skipped, or waits for the agent that plans the task."
)


class AgentStep(AgentWork, NodeDocument):
    """A step that an agent does."""

    model_config = ConfigDict(title="agent step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=_ON_FAILURE)


class PythonStep(PythonWork, NodeDocument):
    """A step that a registered function does."""

    model_config = ConfigDict(title="python step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=_ON_FAILURE)


def _by_kind(union: str) -> Discriminator:
    """Choose the branch of a union of documents by their ``kind``."""

    def branch_of(value: Any) -> str:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        return branch(union, StepKind.AGENT if kind is None else kind)

    return Discriminator(branch_of)


def _no_map(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("kind") == StepKind.MAP:
        raise problem("a map step is inside a map step", "let a step after it map over its results")
    return value


ChildDocument: TypeAlias = Annotated[
    Annotated[AgentWork, Tag(branch("child", "agent"))] | Annotated[PythonWork, Tag(branch("child", "python"))],
    _by_kind("child"),
    BeforeValidator(_no_map),
]


class MapStep(NodeDocument):
    """A step that grows a child for each item of a list."""

    model_config = ConfigDict(title="map step")

    kind: Literal["map"] = Field(description="One child for each item of a list.")
    over: Any = Field(description="The list: one reference such as ${survey.output.packages}, or a list.")
    item_name: Name = Field(default="item", alias="as", description="Name of an item in references.")
    item_key: Text = Field(
        default="",
        alias="key",
        description="What names each child, such as ${item.name}; unique. When absent: the item, or its index.",
    )
    max_items: Annotated[int, Field(ge=1, le=MAX_MAP_ITEMS), Expected(f"an integer from 1 to {MAX_MAP_ITEMS}")] = Field(
        default=1000, description="Most items; more is a failure."
    )
    on_item_failure: Policy | None = Field(default=None, description="As on_failure, for each child.")
    priority: Priority = Field(default=0, description="Higher first, among steps that are ready.")
    step: ChildDocument = Field(description="The child: an agent or python step without id, depends_on and on_failure.")
    on_failure: Policy | None = Field(default=None, description=_ON_FAILURE)


StepDocument: TypeAlias = Annotated[
    Annotated[AgentStep, Tag(branch("step", "agent"))]
    | Annotated[PythonStep, Tag(branch("step", "python"))]
    | Annotated[MapStep, Tag(branch("step", "map"))],
    _by_kind("step"),
]
STEP_MODELS: Final[Mapping[StepKind, type[PlanModel]]] = {
    StepKind.AGENT: AgentStep,
    StepKind.PYTHON: PythonStep,
    StepKind.MAP: MapStep,
}
CHILD_MODELS: Final[Mapping[StepKind, type[PlanModel]]] = {StepKind.AGENT: AgentWork, StepKind.PYTHON: PythonWork}
BRANCHES: Final[Mapping[str, type[PlanModel]]] = {
    **{branch("step", kind): model for kind, model in STEP_MODELS.items()},
    **{branch("child", kind): model for kind, model in CHILD_MODELS.items()},
}


# -- the plan
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
        """Read the short form; of the long one keep a default of null, which makes the input optional."""
        if not isinstance(value, Mapping):
            return {} if value is None else {"default": value}
        return {name: item for name, item in value.items() if item is not None or name == "default"}


class TaskLimitsDocument(PlanModel):
    """What all runs of a task together may use, and how long the task may take. The first that is reached ends it."""

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
    steps: Annotated[tuple[StepDocument, ...], Field(min_length=1)]


class PlanHead(PlanDocument):
    """A plan whose inputs and steps are validated one by one: what a hostile plan gets wrong is bounded by one part."""

    inputs: Annotated[dict[str, Any], Field(strict=False)] = Field(default={})
    steps: Annotated[tuple[Any, ...], Field(min_length=1, strict=False)]
