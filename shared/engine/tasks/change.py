"""Changes of a running task, as its owner writes them: growth, more attempts, steps that are not to run.

Owns the value that crosses the store port. :mod:`soong.shared.engine.tasks.growth` reads and checks the requests of
clients and agents.
"""

from collections.abc import Mapping, Sequence

import msgspec

from soong.shared.core.errors import ConflictError, InvalidTransitionError, NotFoundError
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Command, CommandKind
from soong.shared.engine.tasks.plan.checks import find_cycle
from soong.shared.engine.tasks.spec import STEP_ENDS, FailurePolicy, StepGate, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import NewStep


class TaskChange(Value):
    """Changes by step key; all of them in one transaction or none.

    ``steps`` are new; they may depend on each other and on existing steps. ``edges`` are more dependencies (child,
    parent) of steps that are still pending. ``attempts`` are failed steps tried again, each as it is now planned and
    with the run of its next attempt. ``skipped`` and ``cancelled`` steps do not run any more, and nothing that waits
    for them does.
    """

    steps: tuple[NewStep, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    attempts: tuple[NewStep, ...] = ()
    priorities: Mapping[str, int] = msgspec.field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    reason: str = ""

    @property
    def named(self) -> frozenset[str]:
        """The keys of all steps that must exist already."""
        added = {step.key for step in self.steps}
        needed = {parent for step in self.steps for parent in step.depends_on}
        needed |= {key for edge in self.edges for key in edge}
        needed |= {step.key for step in self.attempts} | {*self.priorities, *self.skipped, *self.cancelled}
        return frozenset(needed - added)

    @property
    def joined(self) -> frozenset[str]:
        """The keys of those that new steps only join: it is enough for them that these have ended."""
        joins = {parent for step in self.steps if step.gate is StepGate.ENDED for parent in step.depends_on}
        needs = {parent for step in self.steps if step.gate is not StepGate.ENDED for parent in step.depends_on}
        return frozenset(joins - needs - {parent for _, parent in self.edges})


def must_wait(
    step_id: str, status: StepStatus, policy: FailurePolicy, *, is_settled: bool, is_map_child: bool, is_joined: bool
) -> bool:
    """Say whether steps that are made to depend on this one have to wait for it; no: it is done already.

    ``is_joined``: all of them only need that it has ended.
    Raises: ConflictError, it will never complete, or is not a step that others may depend on.
    """
    if is_map_child:
        raise ConflictError(f"step {step_id!r} is an item of a map step; depend on the map step")
    if status not in STEP_ENDS or (status is StepStatus.FAILED and not is_settled):
        return True
    if is_joined or status is StepStatus.COMPLETED or (status is StepStatus.FAILED and policy is FailurePolicy.KEEP):
        return False
    raise ConflictError(f"step {step_id!r} is {status}: what depends on it would never run; try it again first")


def check_still_pending(step_id: str, status: StepStatus) -> None:
    """Raises: ConflictError when the step may get no more dependencies: it may be running by now."""
    if status is not StepStatus.PENDING:
        raise ConflictError(f"step {step_id!r} is {status}: only a step that is still pending can wait for more")


def check_no_circle(edges: Mapping[str, Sequence[str]]) -> None:
    """``edges`` maps each step's key to what it depends on. Raises: ConflictError naming the steps of a circle."""
    cycle = find_cycle(edges)
    if cycle:
        chain = " -> ".join(key.partition("/")[2] or key for key in cycle)
        raise ConflictError(f"the steps would depend on each other: {chain}")


def why_failed(not_completed: Sequence[tuple[str, str]]) -> str:
    """Return why a task did not complete, from (status, step id) of the steps that did not: its failures, if any.

    One that failed nowhere names the steps that somebody took out of it.
    """
    failed = [step_id for status, step_id in not_completed if status == StepStatus.FAILED]
    if failed:
        return ", ".join(failed)
    named = [f"{step_id} was {status}" for status, step_id in not_completed[:5]]
    return ", ".join(named) + (" …" if len(not_completed) > 5 else "")


def check_over(open_ids: Sequence[str]) -> None:
    """Raises: ConflictError naming the steps that keep a task from being completed."""
    if open_ids:
        shown = ", ".join(open_ids[:5]) + (" …" if len(open_ids) > 5 else "")
        raise ConflictError(f"{len(open_ids)} steps have not ended ({shown}); wait for them, skip or cancel them")


def outcome_in_closed_session(command: Command, status: TaskStatus | None) -> str | None:
    """Return how a command to a closed session ends at once: why it is refused, or nothing if it asks for what is so.

    None: an owner carries it out, as of a task that is open or that is tried again. ``status``: that of the task that
    the command names; None when its session has no such task.
    """
    if command.kind is CommandKind.CLOSE:
        return ""
    if command.kind is CommandKind.RETRY:
        return None
    if status is None:
        return str(NotFoundError("task", command.subject))
    return str(InvalidTransitionError("task", status, command.kind)) if status.is_terminal else None
