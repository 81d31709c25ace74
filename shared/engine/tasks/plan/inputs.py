"""Binds values to a plan's inputs, and a step's templates to what is known when it runs."""

from collections import ChainMap
from collections.abc import Mapping
from itertools import islice
from typing import cast

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json, JsonObject, parse_strict
from soong.shared.core.texts import EXPECTED, MOST_FAULTS, dotted, faults
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.plan import InputType, Plan, PlanInput, has_type
from soong.shared.engine.tasks.plan.template import Scope, as_text, json_head, render, render_text
from soong.shared.engine.tasks.problems import Problems, Unknown
from soong.shared.engine.tasks.spec import BoundStep, StepSpec
from soong.shared.engine.tasks.step import StepResult


def bind_inputs(plan: Plan, given: Mapping[str, Json]) -> dict[str, Json]:
    """Return the value of every input of the plan. A text given for another type is read as JSON (a command line's).

    Raises:
        InvalidPlanError: an unknown input, a missing one, or one of the wrong type.
    """
    known = {one.name: one for one in plan.inputs}
    problems = Problems()
    for name in given:
        if name not in known:
            problems.add(f"input {name!r}", "the plan has no such input", Unknown(name, known))
    for path, found in islice(faults(given), MOST_FAULTS):
        problems.add(f"input {dotted(path)}", found, f"give {EXPECTED}")
    bound: dict[str, Json] = {}
    for one in plan.inputs:
        try:
            bound[one.name] = _bind(one, given)
        except ValueError as error:
            problems.add(f"input {one.name!r}", str(error), f"pass `--input {one.name}=<{one.type}>`")
    problems.refuse()
    return bound


def _bind(one: PlanInput, given: Mapping[str, Json]) -> Json:
    if one.name not in given:
        if one.is_required:
            raise ValueError("it is required and not given" + (f" ({one.description})" if one.description else ""))
        return one.default
    value = given[one.name]
    if not isinstance(value, str) or one.type == "string":
        return _typed(value, one.type)
    return _typed(parse_strict(value), one.type)


def _typed(value: Json, type_name: InputType) -> Json:
    if not has_type(value, type_name):
        raise ValueError(f"{json_head(value, 60)} is not of type {type_name}")
    return value


def scope_of(task_inputs: JsonObject, dependencies: Mapping[str, StepResult]) -> Scope:
    """Return what the references of a step may name: inputs and its dependencies' results."""
    results: dict[str, Json] = {
        step_id: {
            "output": one.output,
            "status": one.status.value,
            "outcome": one.outcome.value,
            "error": None if one.error is None else one.error.as_json(),
            "denials": list(one.denials),
            "unknown_effects": list(one.unknown_effects),
            "partial": one.partial,
        }
        for step_id, one in dependencies.items()
    }
    return {"inputs": task_inputs, "steps": results, **results}


def with_item(scope: Scope, name: str, item: Json) -> Scope:
    """Return what the references of a map's child may name: those of the map step, and the item."""
    return ChainMap({name: item}, cast("dict[str, Json]", scope))


def bind_step(spec: StepSpec, task_inputs: JsonObject, dependencies: Mapping[str, StepResult]) -> BoundStep:
    """Return the instructions and inputs of the claimed step's run.

    A map's child was bound when it was made, and stays so: a value from its item is never expanded again.

    Raises:
        TemplateError: a dependency's result has not what the plan asks of it.
        BudgetExceededError: the result of its templates is too large for a step.
    """
    if spec.bound is not None:
        return spec.bound
    return bind(spec, scope_of(task_inputs, dependencies), ExpansionBudget("the inputs of the step"))


def bind(spec: StepSpec, scope: Scope, budget: ExpansionBudget) -> BoundStep:
    """Look up every reference of a step's instructions and inputs, and count what a run or a row is given.

    Raises: TemplateError, BudgetExceededError.
    """
    inputs = render(spec.inputs, scope, budget)
    if not isinstance(inputs, Mapping):
        raise TemplateError("inputs", "the inputs of a step are not a mapping")
    budget.spend(budget.size_of(inputs))
    instructions = render_text(spec.instructions, scope, budget)
    budget.spend_text(budget.size_of(instructions))
    return BoundStep(as_text(instructions), inputs)
