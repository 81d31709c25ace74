"""What the parts of a plan must say of each other: ids, edges, names, schemas and references (DAG-02).

Every check reports and continues; none raises. The places are those of the document
(:mod:`soong.shared.engine.tasks.plan.document`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError
from soong.shared.engine.tasks.plan.graph import find_cycle
from soong.shared.engine.tasks.plan.kinds.registry import KINDS
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames, Registered, Report
from soong.shared.engine.tasks.plan.references import RESERVED, References
from soong.shared.engine.tasks.problems import Path, Unknown

Standing: TypeAlias = Mapping[str, Sequence[str]]
"""The steps of a task that these ones are added to: what each depends on, by id."""

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
