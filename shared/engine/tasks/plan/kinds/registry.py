"""All kinds of steps. A new one is a row of ``KINDS``, its facts (``StepKind.traits``) and its runner."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec.structs import replace
from pydantic import BeforeValidator, ConfigDict, Field, Tag

from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.plan.fields import (
    ON_FAILURE,
    RESERVED,
    Kind,
    Name,
    NodeDocument,
    Policy,
    Priority,
    References,
    StepModel,
    Text,
    Title,
    WorkDocument,
    by_kind,
    check_references,
    check_work,
    safe_references,
)
from soong.shared.engine.tasks.plan.kinds.agent import AGENT, AgentStep, AgentWork
from soong.shared.engine.tasks.plan.plan import MAX_MAP_ITEMS, OnFailure, PlanNames, Report
from soong.shared.engine.tasks.plan.validation import Expected, branch, problem
from soong.shared.engine.tasks.problems import Path, Unknown
from soong.shared.engine.tasks.spec import StepKind, StepSpec


class PythonWork(WorkDocument):
    """The work of a registered function."""

    model_config = ConfigDict(title="python step without an id")

    kind: Literal["python"] = Field(description="A registered Python function does it.")
    call: Title = Field(description="Name of a registered function.")
    isolation: Literal["thread", "process"] | None = Field(
        default=None,
        description="`process`: each call has a process of its own, which ends at the time limit or when it is "
        "cancelled. Left out: as the function was registered.",
    )


class PythonStep(PythonWork, NodeDocument):
    """A step that a registered function does."""

    model_config = ConfigDict(title="python step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=ON_FAILURE)


def _check_call(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    check_work(step, path, names, report)
    functions = known.functions if known.functions is not None else frozenset(known_functions())
    # Functions of users are registered in the workers; without a list of them, only built-in names are judged.
    name = step.call
    if not name or name in functions or (known.functions is None and not name.startswith("builtin.")):
        return
    after = "; modules that register functions are named by SOONG_FUNCTIONS"
    report((*path, "call"), f"there is no step function {name!r}", Unknown(name, functions, after=after))


FUNCTION: Final = Kind(PythonStep, PythonWork, _check_call)


def _no_map(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("kind") == "map":
        raise problem("a map step is inside a map step", "let a step after it map over its results")
    return value


ChildDocument: TypeAlias = Annotated[
    Annotated[AgentWork, Tag(branch("child", "agent"))] | Annotated[PythonWork, Tag(branch("child", "python"))],
    by_kind("child"),
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
    on_failure: Policy | None = Field(default=None, description=ON_FAILURE)

    def planned(self, **values: Any) -> StepSpec:
        child = replace(self.step.planned(), on_failure=self.on_item_failure)
        return super().planned(step=child, **values)


def _check_map(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    if step.item_name in RESERVED or step.item_name in names.results:
        report((*path, "as"), f"{step.item_name!r} already names something else", "choose another name for the item")
    if isinstance(step.over, str) or step.over is None:
        found = list(safe_references(step.over, (*path, "over"), report))
        if step.over is not None and not found:
            report((*path, "over"), f"{step.over!r} is not a list", "write one reference, or a list")
    elif isinstance(step.over, Mapping | bool | int | float):
        report((*path, "over"), "it is not a list", "write one reference, or a list")
    check_references(step.over, (*path, "over"), names, report)
    check_references(step.item_key, (*path, "key"), names.with_item(step.item_name), report)
    _CHILDREN[step.work.kind].check(step.work, (*path, "step"), names.with_item(step.item_name), known, report)


_CHILDREN: Final = {StepKind.AGENT: AGENT, StepKind.PYTHON: FUNCTION}
MAP: Final = Kind(MapStep, None, _check_map)


KINDS: Final[Mapping[StepKind, Kind]] = {StepKind.AGENT: AGENT, StepKind.PYTHON: FUNCTION, StepKind.MAP: MAP}
StepDocument: TypeAlias = Annotated[
    Annotated[AgentStep, Tag(branch("step", "agent"))]
    | Annotated[PythonStep, Tag(branch("step", "python"))]
    | Annotated[MapStep, Tag(branch("step", "map"))],
    by_kind("step"),
]
BRANCHES: Final[Mapping[str, type[StepModel]]] = {
    **{branch("step", name): kind.document for name, kind in KINDS.items()},
    **{branch("child", name): kind.child for name, kind in KINDS.items() if kind.child is not None},
}
