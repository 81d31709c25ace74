"""The checks of a plan's parts against each other: ids, edges, names, schemas and references (DAG-02).

Every check reports and continues; none raises. The places are those of the document
(:mod:`soong.shared.engine.tasks.problems`).
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Final, TypeAlias

from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.texts import blanked
from soong.shared.engine.tasks.plan.fields import RESERVED, References
from soong.shared.engine.tasks.plan.kinds.registry import KINDS
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames, Registered, Report
from soong.shared.engine.tasks.problems import Path, Unknown
from soong.shared.engine.tasks.spec import StepSpec, StepStatus

Standing: TypeAlias = Mapping[str, Sequence[str]]
"""The existing steps of a task under growth: the dependencies of each, by id."""

NOTHING: Standing = MappingProxyType({})


def check_plan(plan: Plan, known: PlanNames, report: Report, standing: Standing = NOTHING) -> None:
    """Report every problem between the parts of a plan, and between them and the steps that are ``standing``."""
    known = _with_modules(plan, known, report)
    ids = _check_ids(plan, report, standing)
    _check_edges(plan, ids, report, standing)
    inputs = frozenset(one.name for one in plan.inputs)
    patterns: dict[str, bool] = {}
    for index, step in enumerate(plan.steps):
        path: Path = ("steps", index)
        names = References(inputs, step, ids, patterns)
        KINDS[step.kind].check(step, path, names, known, report)


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


def _with_modules(plan: Plan, known: PlanNames, report: Report) -> PlanNames:
    """Return what a plan may name once its modules are known."""
    if plan.modules and known.load_module is None:
        hint = "remove them; the workers' SOONG_FUNCTIONS names modules, or `soong run FILE` takes the plan's"
        report(("modules",), "a plan that is submitted in this way cannot name modules", hint)
        return known
    found: list[Registered | None] = []
    for index, name in enumerate(plan.modules):
        try:
            found.append(None if known.load_module is None else known.load_module(name))
        except InvalidConfigError as error:
            report(("modules", index), str(error), known.module_hint)
            found.append(None)
    if not found or None in found:
        return known
    last = found[-1]
    return (
        replace(known, functions=last.functions, scripts=frozenset(last.scripts), calls=last.scripts) if last else known
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
    opening, closing = step.kind.traits.brackets
    return f'{opening}"{label}"{closing}'


def _escape(text: str) -> str:
    r"""Return text as a label shows it: on one line, and nothing in it is syntax.

    Mermaid reads HTML entities without the ampersand. Quotes and brackets would end the label, ``%%`` begins comments
    and directives anywhere, ``\n`` is a line break, and its own marks for entities are ``ﬂ°``, ``¶ß``.
    """
    return "".join(f"#{ord(char)};" if char in _SYNTAX else char for char in blanked(text))


_SYNTAX: Final = frozenset('"[](){}<>#;`%$&|\\ﬂ°¶ß')
