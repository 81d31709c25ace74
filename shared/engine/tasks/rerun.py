"""The steps that run again when an ended task is retried from one of them (DAG-08).

The step itself, all steps below it, and all that did not complete: otherwise a step below could wait for ever. Steps
that continued without a kept failure run again, too. Other completed steps stay. In a fork of the task, a step that is
kept becomes a function's step with the recorded output, so that a fork is a plan like any other (DAG-11).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.spec import FailurePolicy, StepGate, StepStatus, TaskKind
from soong.shared.engine.tasks.step import Step, StepResult, Task

RETRIED = frozenset({StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED})

GIVEN: Final = "builtin.given"
"""The function of a kept step (:mod:`soong.shared.engine.tasks.functions`)."""


class Rerun(Value):
    """``attempts`` are the steps that get a new run; ``again`` are the others that go back, maps too:
    completed steps, and those that the plan's conditions left out.

    ``regrown`` are map steps whose items may be others now: they are expanded again, and their children are none of the
    attempts.
    """

    attempts: tuple[Step, ...]
    again: tuple[str, ...] = ()
    regrown: tuple[str, ...] = ()


def rerun(steps: Sequence[Step], from_step: str = "") -> Rerun:
    """Return what a retry of one task's steps runs again, from the step of that id; without one, what did not complete.
    Raises: NotFoundError.
    """
    losses = [step for step in steps if is_loss(step)]
    joined = {key for step in steps if step.gate is StepGate.ENDED for key in step.depends_on}
    kept_failures = [one for one in losses if one.status is StepStatus.FAILED and one.on_failure is FailurePolicy.KEEP]
    affected, regrown = _below(steps, [*kept_failures, *(one for one in losses if one.key in joined)], from_step)
    affected.update(step.key for step in losses)
    affected |= _left_out_above(steps, affected)
    back = [step for step in steps if step.key in affected]
    # A map step that waits again for what it had once gone on without is unlocked, and so expanded, again.
    waits = {step.key for step in back}
    regrown.update(step.key for step in back if step.kind.traits.has_items and not waits.isdisjoint(step.depends_on))
    kept = [step for step in back if step.map_key not in regrown]
    return Rerun(
        tuple(step for step in kept if not step.kind.traits.has_items),
        tuple(step.key for step in kept if not is_loss(step)),
        tuple(sorted(regrown)),
    )


def is_loss(step: Step) -> bool:
    """Say whether a step has not completed, and the plan's conditions did not leave it out."""
    return step.status in RETRIED and step.outcome is None


def _left_out_above(steps: Sequence[Step], keys: set[str]) -> set[str]:
    """Return the steps that conditions left out and that these need: they are decided again, too."""
    by_key = {step.key: step for step in steps}
    found: set[str] = set()
    rest = [by_key[key] for key in keys]
    while rest:
        step = rest.pop()
        needed = [by_key[key] for key in step.depends_on if step.gate is not StepGate.ENDED]
        more = [one for one in needed if one.status is StepStatus.SKIPPED and one.key not in keys | found]
        found.update(one.key for one in more)
        rest += more
    return found


def _below(steps: Sequence[Step], failures: Sequence[Step], from_step: str) -> tuple[set[str], set[str]]:
    """Return the keys of these steps and of all below them, and those of map steps whose items come of them."""
    by_key = {step.key: step for step in steps}
    named = [step for step in steps if from_step and step.step_id == from_step]
    if from_step and not named:
        raise NotFoundError("step", from_step)
    dependents: dict[str, list[str]] = {}
    for step in steps:
        for parent in step.depends_on:
            dependents.setdefault(parent, []).append(step.key)
    affected = {step.key for step in (*named, *failures)}
    regrown = {step.key for step in named if step.kind.traits.has_items}
    rest = [*affected]
    while rest:
        step = by_key[rest.pop()]
        found = list(dependents.get(step.key, ()))
        regrown.update(key for key in found if by_key[key].kind.traits.has_items)
        if step.map_key and step.map_key in by_key:
            found.append(step.map_key)  # it waits for this child again; its other children stay
        rest += [key for key in found if key not in affected]
        affected.update(found)
    return affected, regrown


def forked_plan(task: Task, steps: Sequence[Step], results: Mapping[str, StepResult], from_step: str) -> JsonObject:
    """Return the document of a plan that runs ``from_step`` of a task again, and all that comes of it.

    ``results`` are those of the completed steps, by step key. Steps that did not complete run again, too.
    Raises: NotFoundError, the task has no such step; ConflictError, its steps are not all of its plan, or the step is
    an item of a map step.
    """
    own = {step.step_id: step for step in steps if not (step.map_key or step.is_pull_worker)}
    _check(task, own, steps, from_step)
    kept = set(own) - _again(steps, from_step)
    document = cast("dict[str, Any]", dict(task.plan))
    planned = cast("list[dict[str, Any]]", document["steps"])
    document["title"] = f"{task.title} (from {from_step})"
    if task.inputs:
        document["inputs"] = {name: _input(document, name, value) for name, value in task.inputs.items()}
    document["steps"] = [
        _given(one, results[own[one["id"]].key], kept) if one["id"] in kept else one for one in planned
    ]
    return document


def _check(task: Task, own: Mapping[str, Step], steps: Sequence[Step], from_step: str) -> None:
    if task.kind is not TaskKind.PLAN:
        raise ConflictError(f"task {task.id} is an ask: it has no plan to fork; ask again with `soong ask --session`")
    if from_step not in own:
        item = next((step for step in steps if step.step_id == from_step and step.map_key), None)
        if item is not None:
            name = item.map_key.partition("/")[2]
            raise ConflictError(f"{from_step!r} is an item of the map step {name!r}; fork from that: --from {name}")
        raise NotFoundError("step", from_step, Unknown(from_step, own).text())
    planned = {str(one.get("id")) for one in cast("list[dict[str, Any]]", task.plan.get("steps") or [])}
    added = sorted(set(own) - planned)
    if added:
        words = f"steps were added to task {task.id} while it ran ({', '.join(added[:5])})"
        raise ConflictError(f"{words}; its plan alone does not make them, so it cannot be forked")


def _again(steps: Sequence[Step], from_step: str) -> set[str]:
    """Return the ids of the planned steps that run again; a map step does if one of its items does."""
    found = rerun(steps, from_step)
    back = {*(step.key for step in found.attempts), *found.again, *found.regrown}
    back |= {step.map_key for step in steps if step.key in back and step.map_key}
    back |= {step.key for step in steps if step.kind.traits.has_items and step.error is not None}
    return {step.step_id for step in steps if step.key in back}


def _given(planned: Mapping[str, Any], result: StepResult, kept: set[str]) -> dict[str, Any]:
    """Return a step that ends at once with the output that it had; it waits for nothing that runs again."""
    waits = [name for name in planned.get("depends_on") or () if name in kept]
    step: dict[str, Any] = {"id": planned["id"], "kind": "python", "call": GIVEN, "inputs": {"output": None}}
    if planned.get("title"):
        step["title"] = planned["title"]
    if waits:
        step["depends_on"] = waits
    step["inputs"] = {"output": literal(result.output)}
    return step


def _input(document: Mapping[str, Any], name: str, value: Json) -> dict[str, Json]:
    """Return an input of the plan whose default is what the task was given."""
    said = (document.get("inputs") or {}).get(name)
    shape = dict(said) if isinstance(said, Mapping) else {}
    shape.pop("required", None)
    return {**shape, "default": value}


def literal(value: Json) -> Json:
    """Return a value as a plan has to write it so that nothing in its texts is taken for a reference."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, Mapping):
        return {name: literal(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value
