"""The decisions of a session's owner on steps whose dependencies are done: conditions, joins, the items of maps."""

from collections.abc import Mapping
from typing import TypeAlias

from soong.shared.core.errors import TemplateError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.value import Value
from soong.shared.engine.tasks.expansion import expand_map
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.condition import condition
from soong.shared.engine.tasks.plan.plan import scope_of
from soong.shared.engine.tasks.spec import Join, StepStatus
from soong.shared.engine.tasks.step import NewStep, Step, StepError, StepResult, Task


class OpenStep(Value):
    """Workers may claim it."""


class SkipStep(Value):
    """It is not done, and why: its condition is false, or nothing that it joins has completed."""

    reason: str


class FailStep(Value):
    """It fails: what it needs of the plan cannot be looked up."""

    error: StepError


class GrowMap(Value):
    """It is a map step with these children."""

    children: tuple[NewStep, ...]


StepVerdict: TypeAlias = OpenStep | SkipStep | FailStep | GrowMap


def decided(step: Step, task: Task, dependencies: Mapping[str, StepResult], root: RunIdentity) -> StepVerdict:
    """Decide an expanding step; its children, if it is a map, run under the ``root`` run.

    Raises: TemplateError, as :func:`soong.shared.engine.tasks.expansion.expand_map`, or its condition cannot be
    decided; BudgetExceededError, its children would be too large to be stored.
    """
    spec = step.spec
    ends = {name: one.status for name, one in dependencies.items()}
    if spec.join is Join.ANY and ends and StepStatus.COMPLETED not in ends.values():
        return SkipStep(f"none of its dependencies completed: {', '.join(ends)}")
    if spec.when and not _holds(spec.when, task, dependencies):
        return SkipStep(f"its condition is false: {spec.when}")
    return GrowMap(tuple(expand_map(step, task, dependencies, root))) if spec.kind.traits.has_items else OpenStep()


def _holds(when: str, task: Task, dependencies: Mapping[str, StepResult]) -> bool:
    try:
        return condition(when).holds(scope_of(task.inputs, dependencies), ExpansionBudget("the condition of the step"))
    except TemplateError as error:
        raise TemplateError("", f"its condition `{when}` cannot be decided: {error}") from None
