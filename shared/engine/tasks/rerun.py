"""What is run again when an ended task is tried again from one of its steps (DAG-08).

The step itself, all that came of it, and whatever did not complete: otherwise something below could wait for ever.
What completed apart from it stays as it is.
"""

from collections.abc import Sequence

from soong.shared.core.errors import NotFoundError
from soong.shared.core.value import Value
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step

RETRIED = frozenset({StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED})


class Rerun(Value):
    """``attempts`` are the steps that get a new run; ``again`` the completed among all that go back, maps too.

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
    affected, regrown = _below(steps, from_step) if from_step else (set[str](), set[str]())
    back = [step for step in steps if step.key in affected or step.status in RETRIED]
    # A map step that waits again for what it had once gone on without is unlocked, and so expanded, again.
    waits = {step.key for step in back}
    regrown.update(step.key for step in back if step.kind.traits.has_items and not waits.isdisjoint(step.depends_on))
    kept = [step for step in back if step.map_key not in regrown]
    return Rerun(
        tuple(step for step in kept if not step.kind.traits.has_items),
        tuple(step.key for step in kept if step.status is StepStatus.COMPLETED),
        tuple(sorted(regrown)),
    )


def _below(steps: Sequence[Step], from_step: str) -> tuple[set[str], set[str]]:
    """Return the keys of the step and of all below it, and those of map steps whose items come of it."""
    by_key = {step.key: step for step in steps}
    first = next((step for step in steps if step.step_id == from_step), None)
    if first is None:
        raise NotFoundError("step", from_step)
    dependents: dict[str, list[str]] = {}
    for step in steps:
        for parent in step.depends_on:
            dependents.setdefault(parent, []).append(step.key)
    affected = {first.key}
    regrown = {first.key} if first.kind.traits.has_items else set[str]()
    rest = [first.key]
    while rest:
        step = by_key[rest.pop()]
        found = list(dependents.get(step.key, ()))
        regrown.update(key for key in found if by_key[key].kind.traits.has_items)
        if step.map_key and step.map_key in by_key:
            found.append(step.map_key)  # it waits for this child again; its other children stay
        rest += [key for key in found if key not in affected]
        affected.update(found)
    return affected, regrown
