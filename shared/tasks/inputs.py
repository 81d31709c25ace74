"""Binds values to a plan's inputs, and a step's templates to what is known when it runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from shared.errors import InvalidPlanError, Offence, TemplateError
from shared.jsontext import Json, JsonObject, parse_strict
from shared.tasks.functions import suggestion
from shared.tasks.plan import InputType, Plan, PlanInput, has_type
from shared.tasks.step import StepResult
from shared.tasks.template import Scope, as_text, render, render_text


def bind_inputs(plan: Plan, given: Mapping[str, Json]) -> dict[str, Json]:
    """Return the value of every input of the plan. A text given for another type is read as JSON (a command line's).

    Raises:
        InvalidPlanError: an unknown input, a missing one, or one of the wrong type.
    """
    known = {one.name: one for one in plan.inputs}
    offences = [
        Offence(f"input {name!r}", "the plan has no such input", suggestion(name, known))
        for name in given
        if name not in known
    ]
    bound: dict[str, Json] = {}
    for one in plan.inputs:
        try:
            bound[one.name] = _bind(one, given)
        except ValueError as error:
            remedy = f"pass `--input {one.name}=<{one.type}>`"
            offences.append(Offence(f"input {one.name!r}", str(error), remedy))
    if offences:
        raise InvalidPlanError(offences)
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
        raise ValueError(f"{json.dumps(value)[:60]} is not of type {type_name}")
    return value


@dataclass(frozen=True, slots=True)
class BoundStep:
    """What a step's run is told: instructions and inputs with every reference looked up, once."""

    instructions: str
    inputs: JsonObject


def scope_of(
    task_inputs: JsonObject, dependencies: Mapping[str, StepResult], item: tuple[str, Json] | None = None
) -> Scope:
    """Return what the references of a step may name: inputs, its dependencies' results, and a map's item."""
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
    scope: dict[str, Json] = {"inputs": task_inputs, "steps": results, **results}
    if item is not None:
        scope[item[0]] = item[1]
    return scope


def bind_step(spec: JsonObject, task_inputs: JsonObject, dependencies: Mapping[str, StepResult]) -> BoundStep:
    """Return what the claimed step's run is told.

    A map's child was bound when it was made, and is taken as it is: a value from its item is never expanded again.

    Raises:
        TemplateError: a dependency's result has not what the plan asks of it.
    """
    if "bound" in spec:
        bound = cast("Mapping[str, Json]", spec["bound"])
        return BoundStep(str(bound.get("instructions", "")), cast(JsonObject, bound.get("inputs", {})))
    return bind(spec, scope_of(task_inputs, dependencies))


def bind(spec: JsonObject, scope: Scope) -> BoundStep:
    """Look up every reference of a step's instructions and inputs. Raises: TemplateError."""
    inputs = render(spec.get("inputs") or {}, scope)
    if not isinstance(inputs, Mapping):
        raise TemplateError("inputs", "the inputs of a step are not a mapping")
    return BoundStep(as_text(render_text(str(spec.get("instructions") or ""), scope)), inputs)
