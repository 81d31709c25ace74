"""Steps of every kind in a plan: their fields, those fields' types, and checks of their references (DAG-02, DAG-08).

A field that is null counts as left out: in YAML that is a name without a value. Facts of a kind for all other code are
``StepKind.traits``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator

from soong.shared.core import timing
from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.condition import condition
from soong.shared.engine.tasks.plan.plan import DEFAULT_RETRIES, OnFailure, PlanNames, Report
from soong.shared.engine.tasks.plan.template import Reference, references
from soong.shared.engine.tasks.plan.validation import Expected, branch, unexpected
from soong.shared.engine.tasks.problems import Hint, JoinedNames, Path, Unknown
from soong.shared.engine.tasks.spec import FailurePolicy, Join, StepKind, StepSpec
from soong.shared.tools.schema import schema_problems

STEP_ID: Final = r"[A-Za-z0-9_.-]{1,64}"
NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
MOST_COUNTED: Final = 10**15
MOST_USD: Final = 10**9
"""The maximum of a task's limits; larger ones are mistakes."""


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
def sequence(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    raise unexpected("a list of texts")


Text: TypeAlias = Annotated[str, Expected("a text")]
Name: TypeAlias = Annotated[str, Field(pattern=f"^{NAME}$"), Expected("letters, digits and `_`")]
StepId: TypeAlias = Annotated[str, Field(pattern=f"^{STEP_ID}$"), Expected("1 to 64 letters, digits, `_`, `.` or `-`")]
Title: TypeAlias = Annotated[str, Field(min_length=1, pattern=r"\S"), Expected("a text that is not empty")]
Item: TypeAlias = Annotated[str, Field(min_length=1), Expected("a text that is not empty")]
Texts: TypeAlias = Annotated[tuple[Item, ...], Field(strict=False, fail_fast=True), BeforeValidator(sequence)]
TAG: Final = r"[a-z0-9][a-z0-9._:/-]{0,63}"
Tag: TypeAlias = Annotated[str, Field(pattern=f"^{TAG}$"), Expected("up to 64 of a-z, 0-9, `.`, `_`, `:`, `/` and `-`")]
Tags: TypeAlias = Annotated[tuple[Tag, ...], Field(strict=False, max_length=20), BeforeValidator(sequence)]
Object: TypeAlias = Annotated[dict[str, Any], Field(strict=False), Expected("a mapping")]
Flag: TypeAlias = Annotated[bool, Expected("true or false")]
Priority: TypeAlias = Annotated[int, Field(ge=-1000, le=1000), Expected("an integer from -1000 to 1000")]
Seconds: TypeAlias = Annotated[
    float,
    Field(gt=0, le=timing.LONGEST_STEP_S),
    Expected(f"a number of seconds above 0, at most {timing.LONGEST_STEP_S}"),
]
Pause: TypeAlias = Annotated[
    float,
    Field(gt=0, le=timing.LONGEST_PAUSE_S),
    Expected(f"a number of seconds above 0, at most {timing.LONGEST_PAUSE_S}"),
]
Policy: TypeAlias = Annotated[FailurePolicy, Field(strict=False)]
Temperature: TypeAlias = Annotated[float, Field(ge=0, le=2), Expected("a number from 0 to 2")]
AnswerTokens: TypeAlias = Annotated[int, Field(ge=1, le=10_000_000), Expected("an integer from 1 to 10000000")]
Thinking: TypeAlias = Literal["off", "low", "medium", "high"]


# -- steps
class StepModel(PlanModel):
    """A step as it is written, of any kind."""

    def planned(self, **values: Any) -> StepSpec:
        """Return the step as it is planned; ``values`` are those of fields that a spec has in another form."""
        fields = {**self.__dict__, **values}
        fields["kind"] = StepKind(fields["kind"])
        policy = fields.get("on_failure")
        if policy is OnFailure.RETRY and "retries" not in self.model_fields_set:
            fields["retries"] = DEFAULT_RETRIES
        fields["on_failure"] = None if policy in (None, OnFailure.RETRY) else FailurePolicy(policy)
        fields["title"] = fields["title"] or fields.get("id", "")
        return StepSpec(**fields)


class WorkDocument(StepModel):
    """The fields of every step that is run, alone or for an item of a map."""

    title: Text = Field(default="", description="What people see; the id when absent.")
    inputs: Object = Field(
        default={},
        description="Values for the step; references such as ${look.output.files} are looked up when it starts.",
    )
    output: Object | None = Field(
        default=None, description="JSON Schema of the result. An agent is asked again until its answer holds to it."
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


class NodeDocument(StepModel):
    """The fields of every step of the DAG."""

    id: StepId = Field(description="Unique in the plan; letters, digits, `_`, `.` or `-`.")
    title: Text = Field(default="", description="What people see; the id when absent.")
    depends_on: Texts = Field(default=(), description="Ids of the steps whose results this one needs.")
    when: Text = Field(
        default="",
        description="Condition, such as `${look.output.count} > 0`, looked at when the dependencies are done. When it "
        "is false, the step is skipped.",
    )
    join: Annotated[Join, Field(strict=False)] = Field(
        default=Join.ALL,
        description="What it needs of its dependencies: `all` completed, `any` completed, or all `done`, however they "
        "ended. What one did not give is null.",
    )


ON_FAILURE: Final = (
    "At the final failure: skip what depends on it, fail the task, or keep going with a null result. "
    f"`retry`: {DEFAULT_RETRIES} more attempts first, unless `retries` says how many. Left out: what depends on it "
    "is skipped, or waits for the agent that plans the task."
)


def by_kind(union: str) -> Discriminator:
    """Choose the branch of a union of documents by their ``kind``."""
    prefix = branch(union, "")

    def branch_of(value: Any) -> str:
        kind = value.get("kind") if isinstance(value, Mapping) else None
        return f"{prefix}{'agent' if kind is None else kind}"

    return Discriminator(branch_of)


RESERVED = frozenset({"inputs", "steps", "run_dirs"})
"""Roots of references; no step and no map item may take them."""

_ROOTS = frozenset({"inputs", "steps"})
RESULT_FIELDS = frozenset({"output", "status", "outcome", "error", "denials", "unknown_effects", "partial"})


class References:
    """The names that the references of one step may use, and the checked patterns of tools of the plan."""

    def __init__(
        self, inputs: frozenset[str], step: StepSpec, ids: frozenset[str], patterns: dict[str, bool], item: str = ""
    ) -> None:
        self._step, self._ids = step, ids
        self.patterns = patterns
        self.inputs = inputs
        self.results = frozenset(step.depends_on)
        self.item = item
        self._items = frozenset({item} if item else ())
        self._roots = JoinedNames((_ROOTS, self._items, ids))

    def with_item(self, item: str) -> "References":
        return References(self.inputs, self._step, self._ids, self.patterns, item)

    def problem(self, reference: Reference) -> tuple[str, Hint] | None:
        """Return problem and hint of a reference; None when it is valid."""
        root = reference.root_in(self._roots)
        if root is None:
            known = JoinedNames((frozenset({"inputs"}), self._items, self.results))
            return f"{reference.parts[0]!r} is not known here", Unknown(str(reference.parts[0]), known)
        rest = reference.parts[root.count(".") + 1 :]
        if root == self.item:
            return None
        if root == "inputs":
            return self._input_problem(rest)
        if root == "steps":
            root, rest = str(rest[0]) if rest else "", rest[1:]
        return self._result_problem(root, rest)

    def _input_problem(self, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if not rest or rest[0] in self.inputs:
            return None
        return f"the plan has no input {rest[0]!r}", Unknown(str(rest[0]), self.inputs)

    def _result_problem(self, root: str, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if root not in self.results:
            if root in self._ids:
                return f"{root!r} is not a dependency of this step", f"add {root!r} to `depends_on`"
            return f"there is no step {root!r}", Unknown(root, self.results)
        if rest and rest[0] not in RESULT_FIELDS:
            return f"a step's result has no {rest[0]!r}", f"write `{root}.output.{rest[0]}`"
        return None


def check_references(value: Json, path: Path, names: References, report: Report) -> None:
    if isinstance(value, str) and "${" not in value:  # most texts
        return
    for place, reference in safe_references(value, path, report):
        problem = names.problem(reference)
        if problem is not None:
            report(place, f"the reference '${{{reference.text}}}': {problem[0]}", problem[1])


def check_condition(when: str, path: Path, names: References, report: Report) -> None:
    try:
        found = condition(when).references if when else ()
    except TemplateError as error:
        report(path, "it is not a condition", str(error))
        return
    for reference in found:
        problem = names.problem(reference)
        if problem is not None:
            report(path, f"the reference '${{{reference.text}}}': {problem[0]}", problem[1])


def safe_references(value: Json, path: Path, report: Report) -> Iterator[tuple[Path, Reference]]:
    """Yield the references; a malformed one is reported, and ends the string that contains it."""
    # The most frequent types come first: a check for a Mapping takes ten times as long.
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and "${" not in value):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from safe_references(item, (*path, key), report)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from safe_references(item, (*path, index), report)
    elif isinstance(value, str):
        try:
            yield from list(references(value, path))
        except TemplateError as error:
            report(path, f"the reference '${{{error.reference}}}' is malformed", error.problem)


def check_work(step: StepSpec, path: Path, names: References, report: Report) -> None:
    """Report what is wrong with the fields of any step that is run."""
    if step.inputs:
        check_references(step.inputs, (*path, "inputs"), names, report)
    check_references(step.instructions, (*path, "instructions"), names, report)
    check_references(step.title, (*path, "title"), names, report)
    for problem in () if step.output is None else schema_problems(step.output):
        report((*path, "output"), f"the schema {problem}", "keep to the supported keywords")


Check: TypeAlias = Callable[[StepSpec, Path, References, PlanNames, Report], None]
"""Reports what is wrong with a step at a place of the document."""


class Kind(Value):
    """How a plan writes a step of this kind, alone and as the child of a map step, and what is checked of it."""

    document: type[StepModel]
    child: type[StepModel] | None
    check: Check
