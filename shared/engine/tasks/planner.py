"""What a process must know to make rows of plans: tools, agent definitions, functions, surfaces, the default model."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.errors import LimitExceededError
from soong.shared.core.identity import OWN, Origin, RunIdentity
from soong.shared.core.ids import step_key
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.growth import Update, planned
from soong.shared.engine.tasks.new_tasks import SurfaceOf, grown, retried_step
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.pull_workers import Dispatch, pull_workers
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import Step, Task

SETTING: Final = "SOONG_MAX_CHILDREN_PER_RUN"


def no_tools(_step: StepSpec) -> JsonObject:
    """Return the surface of steps that run no agent."""
    return {}


class Planner(Value):
    """Made by bootstrap of the user's configuration; without one, plans are checked for what is known everywhere."""

    known: PlanNames = msgspec.field(default_factory=PlanNames)
    surface_of: SurfaceOf = no_tools
    default_model: str = ""
    max_children: int = 0
    """Most children of one run, 0 for any number (:mod:`soong.shared.engine.tasks.planner`)."""
    of_project: "Callable[[str], Planner] | None" = None
    """Makes the planner of a project that may have agent definitions of its own; reads files."""

    async def at(self, project: str) -> "Planner":
        """Return the planner for a project."""
        return self if self.of_project is None else await asyncio.to_thread(self.of_project, project)

    def pull_workers(
        self,
        dispatch: Dispatch,
        task: Task,
        steps: Sequence[Step],
        root: RunIdentity,
        *,
        project: tuple[str, ...] = (),
        origin: Origin = OWN,
    ) -> TaskChange:
        """Return the change that adds pull workers to a task; ``project`` and ``origin`` as for :func:`grown`.

        Raises:
            InvalidPlanError: they would run on the script model and have no script.
            LimitExceededError: with them the task would have too many steps.
        """
        check_total(len(steps), dispatch.count, self.max_children)
        made = partial(
            grown, surface_of=self.surface_of, default_model=self.default_model, project=project, origin=origin
        )
        return pull_workers(dispatch, task, steps, root, grow=made)

    def change(
        self,
        update: Update,
        task: Task,
        steps: Sequence[Step],
        root: RunIdentity,
        last: Mapping[str, Run],
        *,
        project: tuple[str, ...] = (),
        origin: Origin = OWN,
    ) -> TaskChange:
        """Return a checked update for the store; ``last`` are the last runs, by key, of the steps that it tries again.

        ``project`` is what a worker must have to work in the session's project, ``origin`` who asked for the update.

        Raises:
            InvalidPlanError: an added step has neither a model nor a script.
            LimitExceededError: with the added steps the task would have too many.
        """
        check_total(len(steps), len(update.steps), self.max_children)
        by_id = {step.step_id: step for step in steps}
        attempts = []
        for attempt in update.attempts:
            step = by_id[attempt.step_id]
            plan = replace(planned(step), **attempt.changes) if attempt.changes else None
            attempts.append(retried_step(step, last[step.key], plan, self.surface_of, origin))
        key_of = {name: step.key for name, step in by_id.items()}
        key_of |= {step.id: step_key(task.id, step.id) for step in update.steps}
        made = partial(
            grown, surface_of=self.surface_of, default_model=self.default_model, project=project, origin=origin
        )
        return TaskChange(
            steps=made(update.steps, task, root),
            edges=tuple((key_of[child], key_of[parent]) for child, parent in update.edges),
            attempts=tuple(attempts),
            priorities={key_of[name]: priority for name, priority in update.priorities.items()},
            skipped=tuple(key_of[name] for name in update.skipped),
            cancelled=tuple(key_of[name] for name in update.cancelled),
            reason=update.reason,
        )


def check_total(standing: int, added: int, limit: int) -> None:
    """Raises: LimitExceededError when the run would have more than ``limit`` children; 0 means unlimited."""
    if limit and added and standing + added > limit:
        raise LimitExceededError(f"the run would have {standing + added} children, and {SETTING} is {limit}")
