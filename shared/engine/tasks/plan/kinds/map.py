"""A map step: it has no run, and grows a child for each item of a list."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec.structs import replace
from pydantic import BeforeValidator, ConfigDict, Field, Tag

from soong.shared.engine.tasks.plan.fields import ON_FAILURE, Name, NodeDocument, Policy, Priority, Text, by_kind
from soong.shared.engine.tasks.plan.kinds.agent import AGENT, AgentWork
from soong.shared.engine.tasks.plan.kinds.function import FUNCTION, PythonWork
from soong.shared.engine.tasks.plan.kinds.kind import Kind
from soong.shared.engine.tasks.plan.plan import MAX_MAP_ITEMS, PlanNames, Report
from soong.shared.engine.tasks.plan.references import RESERVED, References, check_references, safe_references
from soong.shared.engine.tasks.plan.validation import Expected, branch, problem
from soong.shared.engine.tasks.problems import Path
from soong.shared.engine.tasks.spec import StepKind, StepSpec


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


def _check(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
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
MAP: Final = Kind(MapStep, None, _check)
