"""The inputs for making rows of plans and of pull workers: tools, agent definitions, functions, surfaces."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from soong.shared.core.identity import OWN, Origin, RunIdentity, step_key
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.change import TaskChange
from soong.shared.engine.tasks.growth import DispatchDocument, Update, planned
from soong.shared.engine.tasks.new_tasks import SurfaceOf, check_total, grown, retried_step
from soong.shared.engine.tasks.plan.checks import check_plan
from soong.shared.engine.tasks.plan.plan import FOREIGN_PREFIXES, Plan, PlanInput, PlanNames, Report
from soong.shared.engine.tasks.plan.validation import DocumentReader
from soong.shared.engine.tasks.problems import Hint, Path, Problems
from soong.shared.engine.tasks.spec import DEFAULT_DEFINITION, FailurePolicy, StepSpec
from soong.shared.engine.tasks.step import NewStep, Step, Task

SOURCE: Final = "dispatch"
_FORM: Final = DocumentReader.of(DispatchDocument)
SAYS_WHAT_TO_DO: Final = frozenset({"agent", "instructions", "allowed_tools", "script"})
"""The fields of a dispatch by which its author, and not the plan, sets the work and the tools of the pull workers."""

PULL_WORKER_TOOLS: Final = (
    "agent.task_get",
    "agent.task_query_steps",
    "agent.task_claim_step",
    "agent.task_update_step",
)

_INSTRUCTIONS: Final = """\
You take the open steps of a task, one after another. Look for ready ones with agent.task_query_steps, claim one with
agent.task_claim_step, do what its instructions say, and report it with agent.task_update_step: its output, or its
failure. Then take the next. A step that another run has taken is not yours: take another one. {limit}When no step is
left that you may claim, answer with a short account of what you did."""


def no_tools(_step: StepSpec) -> JsonObject:
    """Return the surface of steps that run no agent."""
    return {}


class Dispatch(Value):
    """A checked request for pull workers: ``step`` is one of them as in a plan, without its id."""

    count: int
    step: StepSpec
    max_steps: int | None


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
        Raises: InvalidPlanError, they would run on the script model and have no script; LimitExceededError, with them
        the task would have too many steps.
        """
        check_total(len(steps), dispatch.count, self.max_children)
        taken = {step.step_id for step in steps}
        numbered = ((number, f"pull-worker-{number}") for number in itertools.count(1))
        free = itertools.islice((one for one in numbered if one[1] not in taken), dispatch.count)
        planned = [replace(dispatch.step, id=step_id, title=f"Pull worker {number}") for number, step_id in free]
        made = self._grown(planned, task, root, project=project, origin=origin)
        limited = [replace(step.spec, max_steps=dispatch.max_steps) for step in made]
        added = (replace(step, is_pull_worker=True, spec=spec) for step, spec in zip(made, limited, strict=True))
        return TaskChange(steps=tuple(added), reason=f"{dispatch.count} pull workers dispatched")

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
        Raises: InvalidPlanError, an added step has neither a model nor a script; LimitExceededError, with the added
        steps the task would have too many.
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
        return TaskChange(
            steps=self._grown(update.steps, task, root, project=project, origin=origin),
            edges=tuple((key_of[child], key_of[parent]) for child, parent in update.edges),
            attempts=tuple(attempts),
            priorities={key_of[name]: priority for name, priority in update.priorities.items()},
            skipped=tuple(key_of[name] for name in update.skipped),
            cancelled=tuple(key_of[name] for name in update.cancelled),
            reason=update.reason,
        )

    def _grown(
        self, steps: Sequence[StepSpec], task: Task, root: RunIdentity, *, project: tuple[str, ...], origin: Origin
    ) -> tuple[NewStep, ...]:
        own: dict[str, Any] = {"surface_of": self.surface_of, "default_model": self.default_model}
        return grown(steps, task, root, project=project, origin=origin, **own)


def read_dispatch(document: JsonObject, task: Task, known: PlanNames) -> Dispatch:
    """Read what is asked for. Raises: InvalidPlanError with every problem."""
    problems = Problems(SOURCE)
    report: Report = problems.report
    asked = _FORM.read(document, (), report) or DispatchDocument()
    step = _step_of(asked)
    # References may name the inputs that the task was given.
    plan = Plan(task.title, tuple(PlanInput(name) for name in task.inputs), (step,), {})
    check_plan(plan, known, _at_dispatch(report))
    if step.agent.startswith(FOREIGN_PREFIXES):
        report(("agent",), f"{step.agent!r} takes no steps by itself", "name another agent")
    problems.refuse()
    return Dispatch(asked.count, known.with_model(step), asked.max_steps)


def _step_of(asked: DispatchDocument) -> StepSpec:
    limit = "" if asked.max_steps is None else f"Take at most {asked.max_steps} of them. "
    own, tools = asked.instructions, asked.allowed_tools
    return StepSpec(
        id="pull-worker",
        title="Pull worker",
        instructions=_INSTRUCTIONS.format(limit=limit) + (f"\n\n{own}" if own else ""),
        agent=asked.agent or DEFAULT_DEFINITION,
        model=asked.model,
        allowed_tools=None if tools is None else tuple(dict.fromkeys((*PULL_WORKER_TOOLS, *tools))),
        inputs={} if asked.max_steps is None else {"max_steps": asked.max_steps},
        script=asked.script,
        pool=asked.pool,
        needs=asked.needs,
        timeout_s=asked.timeout_s,
        on_failure=FailurePolicy.KEEP,
    )


def _at_dispatch(report: Report) -> Report:
    """Report the places of the one step as those of the document's fields."""

    def moved(path: Path, problem: str, hint: Hint) -> None:
        report(path[2:] if path[:1] == ("steps",) else path, problem, hint)

    return moved
