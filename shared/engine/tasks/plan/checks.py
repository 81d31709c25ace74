"""The kinds of steps, and the checks of a plan across its steps.

A new kind is a row of ``KINDS``, its facts (``StepKind.traits``) and its runner.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec.structs import replace
from pydantic import BeforeValidator, ConfigDict, Field, Tag

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import blanked
from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.plan.agent_kind import AGENT, AgentStep, AgentWork
from soong.shared.engine.tasks.plan.fields import (
    ON_FAILURE,
    RESERVED,
    Flag,
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
    check_condition,
    check_references,
    check_work,
    safe_references,
)
from soong.shared.engine.tasks.plan.plan import MAX_MAP_ITEMS, OnFailure, Plan, PlanNames, Registered, Report
from soong.shared.engine.tasks.plan.validation import Expected, branch, problem
from soong.shared.engine.tasks.problems import Path, Unknown
from soong.shared.engine.tasks.spec import StepKind, StepSpec, StepStatus


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
    after = "; `modules` of a plan file or SOONG_FUNCTIONS names the modules that register functions"
    report((*path, "call"), f"there is no step function {name!r}", Unknown(name, functions, after=after))


FUNCTION: Final = Kind(PythonStep, PythonWork, _check_call)


AppName: TypeAlias = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"),
    Expected("a module and an attribute, such as `shop.celery:app`"),
]


class CeleryWork(WorkDocument):
    """The work of a task of the user's Celery app."""

    model_config = ConfigDict(title="celery step without an id")

    kind: Literal["celery"] = Field(description="A task of your Celery app does it.")
    call: Title = Field(description="Name of the Celery task.")
    app: AppName = Field(
        default="", description="The Celery app as `module:attribute`; left out: the one of SOONG_CELERY_APP."
    )
    args: Annotated[tuple[Any, ...], Field(strict=False), Expected('a list, such as [1, "${a.output}"]')] = Field(
        default=(), description="Positional arguments of the task; `inputs` are those by keyword."
    )
    queue: Text = Field(default="", description="Queue of the app; left out: as the app routes the task.")
    terminate: Flag = Field(
        default=False,
        description="Whether cancelling, pausing or the time limit also ends the process that works on the task.",
    )


class CeleryStep(CeleryWork, NodeDocument):
    """A step that a task of the user's Celery app does."""

    model_config = ConfigDict(title="celery step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=ON_FAILURE)


def _check_celery(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    check_work(step, path, names, report)
    if known.lacks_app and not step.app:
        hint = "write `app: module:attribute`, such as shop.celery:app, or set SOONG_CELERY_APP"
        report((*path, "app"), "the step names no Celery app", hint)
    check_references(step.args, (*path, "args"), names, report)


CELERY: Final = Kind(CeleryStep, CeleryWork, _check_celery)


def _no_map(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get("kind") == "map":
        raise problem("a map step is inside a map step", "let a step after it map over its results")
    return value


ChildDocument: TypeAlias = Annotated[
    Annotated[AgentWork, Tag(branch("child", "agent"))]
    | Annotated[PythonWork, Tag(branch("child", "python"))]
    | Annotated[CeleryWork, Tag(branch("child", "celery"))],
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
    step: ChildDocument = Field(
        description="The child: an agent, python or celery step without id, depends_on and on_failure."
    )
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
    KINDS[step.work.kind].check(step.work, (*path, "step"), names.with_item(step.item_name), known, report)


MAP: Final = Kind(MapStep, None, _check_map)


KINDS: Final[Mapping[StepKind, Kind]] = {
    StepKind.AGENT: AGENT,
    StepKind.PYTHON: FUNCTION,
    StepKind.CELERY: CELERY,
    StepKind.MAP: MAP,
}
StepDocument: TypeAlias = Annotated[
    Annotated[AgentStep, Tag(branch("step", "agent"))]
    | Annotated[PythonStep, Tag(branch("step", "python"))]
    | Annotated[CeleryStep, Tag(branch("step", "celery"))]
    | Annotated[MapStep, Tag(branch("step", "map"))],
    by_kind("step"),
]
BRANCHES: Final[Mapping[str, type[StepModel]]] = {
    **{branch("step", name): kind.document for name, kind in KINDS.items()},
    **{branch("child", name): kind.child for name, kind in KINDS.items() if kind.child is not None},
}


Standing: TypeAlias = Mapping[str, Sequence[str]]
"""The existing steps of a task under growth: the dependencies of each, by id."""

NOTHING: Standing = MappingProxyType({})


def check_plan(plan: Plan, known: PlanNames, report: Report, standing: Standing = NOTHING) -> None:
    """Report every problem between the parts of a plan, and between them and the steps that are ``standing``."""
    known = _with_modules(plan, known, report) if modules_of(plan, known) else known
    ids = _check_ids(plan, report, standing)
    _check_edges(plan, ids, report, standing)
    inputs = frozenset(one.name for one in plan.inputs)
    patterns: dict[str, bool] = {}
    for index, step in enumerate(plan.steps):
        path: Path = ("steps", index)
        names = References(inputs, step, ids, patterns)
        check_condition(step.when, (*path, "when"), names, report)
        KINDS[step.kind].check(step, path, names, known, report)
    if (output := plan.document.get("output")) is not None:
        every = StepSpec(depends_on=tuple(one.id for one in plan.steps))
        check_references(output, ("output",), References(inputs, every, ids, patterns), report)


def _check_ids(plan: Plan, report: Report, standing: Standing) -> frozenset[str]:
    seen: dict[str, int] = {}
    for index, step in enumerate(plan.steps):
        if step.id in RESERVED:
            report(("steps", index, "id"), f"{step.id!r} is a word of references", "choose another id")
        elif step.id in standing:
            report(("steps", index, "id"), f"the task has a step {step.id!r} already", "choose another id")
        elif step.id and step.id in seen:
            first = f"steps[{seen[step.id]}]"
            report(("steps", index, "id"), f"the id {step.id!r} is taken by {first}", "give each step its own id")
        seen.setdefault(step.id, index)
    return frozenset(seen) - {""} | frozenset(standing)


def _check_edges(plan: Plan, ids: frozenset[str], report: Report, standing: Standing) -> None:
    for index, step in enumerate(plan.steps):
        named: set[str] = set()
        for number, parent in enumerate(step.depends_on):
            place: Path = ("steps", index, "depends_on", number)
            if parent not in ids:
                report(place, f"there is no step {parent!r}", Unknown(parent, ids, but=step.id))
            elif parent in named:
                report(place, f"{parent!r} is listed twice", "name each dependency once")
            named.add(parent)
    edges: dict[str, Sequence[str]] = dict(standing)
    for step in plan.steps:
        edges.setdefault(step.id, step.depends_on)
    cycle = find_cycle(edges)
    if cycle:
        # A cycle belongs to all its steps; it is reported at the first of them that stands in the document.
        index = next((number for number, step in enumerate(plan.steps) if step.id in cycle), 0)
        chain = " -> ".join(cycle)
        report(("steps", index, "depends_on"), f"the steps depend on each other: {chain}", "remove one of these edges")


def modules_of(plan: Plan, known: PlanNames) -> dict[str, Path]:
    """Return the modules that workers import for a plan, with their places: its own, and those of its Celery apps."""
    found: dict[str, Path] = {}
    if known.imports_apps:
        for index, step in enumerate(plan.steps):
            if module := step.work.app.partition(":")[0]:
                found[module] = ("steps", index, *(["step"] if step.step else ()), "app")
    return {name: ("modules", index) for index, name in enumerate(plan.modules)} | found


def _with_modules(plan: Plan, known: PlanNames, report: Report) -> PlanNames:
    """Return what a plan may name once its modules are known."""
    if known.load_module is None:
        hint = "remove them; the workers' SOONG_FUNCTIONS names modules, or `soong run FILE` takes the plan's"
        report(("modules",), "a plan that is submitted in this way cannot name modules", hint)
        return known
    found: list[Registered | None] = []
    for name, path in modules_of(plan, known).items():
        try:
            found.append(known.load_module(name))
        except InvalidConfigError as error:
            report(path, str(error), known.module_hint)
            found.append(None)
    if None in found:
        return known
    last = found[-1]
    return (
        replace(
            known,
            functions=frozenset(last.functions),
            scripts=frozenset(last.scripts),
            calls=last.scripts,
            agents=frozenset(last.agents),
        )
        if last
        else known
    )


def find_cycle(edges: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes of one cycle in the order of its edges, first one repeated at the end; empty when there is none.

    ``edges`` maps a node to what it depends on; names that are not nodes are skipped.
    """
    try:
        TopologicalSorter(
            {node: [each for each in parents if each in edges] for node, parents in edges.items()}
        ).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return tuple(reversed(found))
    return ()


_CLASSES: Final[Mapping[str, str]] = {
    "done": "fill:#d9f2dc,stroke:#2e7d32",
    "bad": "fill:#f9d6d5,stroke:#b71c1c",
    "off": "fill:#eeeeee,stroke:#9e9e9e",
    "busy": "fill:#d6e6fb,stroke:#1565c0",
    "asks": "fill:#fdf0cc,stroke:#f9a825",
}
_CLASS_OF: Final[Mapping[StepStatus, str]] = {
    StepStatus.COMPLETED: "done",
    StepStatus.FAILED: "bad",
    StepStatus.CANCELLED: "off",
    StepStatus.SKIPPED: "off",
    StepStatus.RUNNING: "busy",
    StepStatus.EXPANDING: "busy",
    StepStatus.WAITING: "busy",
    StepStatus.BLOCKED: "asks",
}


def mermaid(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the plan as a Mermaid flowchart, steps in plan order; ``statuses`` by step id colour it."""
    names = {step.id: f"s{index}" for index, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    lines += [f"    {names[step.id]}{_shape(step)}" for step in plan.steps]
    lines += [
        f"    {names[parent]} --> {names[step.id]}"
        for step in plan.steps
        for parent in step.depends_on
        if parent in names
    ]
    classes = {_CLASS_OF[status] for status in (statuses or {}).values() if status in _CLASS_OF}
    lines += [f"    classDef {name} {_CLASSES[name]}" for name in sorted(classes)]
    lines += [
        f"    class {names[step_id]} {_CLASS_OF[status]}"
        for step_id, status in (statuses or {}).items()
        if step_id in names and status in _CLASS_OF
    ]
    return "\n".join(lines) + "\n"


def _shape(step: StepSpec) -> str:
    label = f"{_escape(step.id)}<br/><i>{_escape(step.title)}</i>" if step.title != step.id else _escape(step.id)
    if step.kind.traits.has_items:
        label += f"<br/>one for each of {_escape(str(step.over))}"
    if step.terms:
        label += f"<br/>{_escape(step.terms)}"
    opening, closing = step.kind.traits.brackets
    return f'{opening}"{label}"{closing}'


def _escape(text: str) -> str:
    r"""Return text as a label shows it: on one line, and nothing in it is syntax.

    Mermaid reads HTML entities without the ampersand. Quotes and brackets would end the label, ``%%`` begins comments
    and directives anywhere, ``\n`` is a line break, and its own marks for entities are ``ﬂ°``, ``¶ß``.
    """
    return "".join(f"#{ord(char)};" if char in _SYNTAX else char for char in blanked(text))


_SYNTAX: Final = frozenset('"[](){}<>#;`%$&|\\ﬂ°¶ß')
