"""Additional claims: why a run does or does not get another step of its task (DAG-03).

Pure, so that every store refuses for the same reasons and in the same words. The caller is an agent: each refusal
says what to do next.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from soong.shared.core.value import Value
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.status import StepStatus


class Refusal(StrEnum):
    """Why an additional claim is refused, for programs."""

    UNKNOWN = "unknown"
    NOT_FOR_AGENTS = "not_for_agents"
    NOT_READY = "not_ready"
    ENDED = "ended"
    HELD = "held"
    BEGUN = "begun"
    PAUSED = "paused"
    ONE_AT_A_TIME = "one_at_a_time"
    LIMIT = "limit"
    CONCURRENCY_LIMIT = "concurrency_limit"
    INCAPABLE = "incapable"
    STOPPING = "stopping"


class ClaimRefusal(Value):
    """A refusal: what the matter is, and what to do about it."""

    reason: Refusal
    problem: str
    hint: str


class ClaimingRun(Value):
    """The run that asks, by its rows: its own step, the additional one it holds, how many it has had, and its limit.

    ``is_stopping``: it, or its worker, was asked to stop.
    """

    step_id: str
    open_step_id: str = ""
    taken: int = 0
    most: int | None = None
    is_stopping: bool = False


class RequestedStep(Value):
    """The step that is asked for, by its rows."""

    step_id: str
    kind: StepKind
    status: StepStatus
    open_deps: int
    pool: str
    needs: tuple[str, ...]
    is_paused: bool
    is_pull_worker: bool
    has_begun: bool
    """Its own run has worked on it, and continues where it stopped."""


def refusal(
    claiming: ClaimingRun,
    asked: str,
    requested: RequestedStep | None,
    *,
    pools: Collection[str],
    capabilities: Collection[str],
) -> ClaimRefusal | None:
    """Return why the run may not have the step; None when only the concurrency limits are left to say no."""
    refused = _by_claiming_run(claiming)
    if refused is not None:
        return refused
    if requested is None:
        return unknown(asked)
    return _by_kind(requested) or _by_status(requested) or _by_place(requested, pools, capabilities)


def unknown(asked: str) -> ClaimRefusal:
    """Return the refusal of a step that the task does not have."""
    return ClaimRefusal(Refusal.UNKNOWN, f"your task has no step {asked[:80]!r}", _ANOTHER)


def limited(step_id: str, scope: str) -> ClaimRefusal:
    """Return the refusal of a step for which a concurrency limit has no room."""
    return ClaimRefusal(
        Refusal.CONCURRENCY_LIMIT,
        f"step {step_id!r} must wait: the concurrency limit of {scope} is reached",
        "take another step, or continue with yours and ask again later",
    )


def taken_meanwhile(step_id: str) -> ClaimRefusal:
    """Return the refusal of a step that somebody else claims at this very moment."""
    return ClaimRefusal(Refusal.HELD, f"step {step_id!r} has just been taken by another run", _ANOTHER)


def undoable(step_id: str, problem: str) -> ClaimRefusal:
    """Return the refusal of a step that has failed as soon as it was given out."""
    return ClaimRefusal(Refusal.ENDED, f"step {step_id!r} cannot be done and has failed: {problem}", _ANOTHER)


_ANOTHER: Final = "take another one; agent.task_query_steps lists the ready ones"


def _by_claiming_run(claiming: ClaimingRun) -> ClaimRefusal | None:
    if claiming.is_stopping:
        problem = "your run was asked to stop, so it gets no other step"
        return ClaimRefusal(Refusal.STOPPING, problem, "finish what you hold and give your answer")
    if claiming.open_step_id:
        return ClaimRefusal(
            Refusal.ONE_AT_A_TIME,
            f"you hold the step {claiming.open_step_id!r} already; one at a time",
            f"end it first: agent.task_update_step with step_id {claiming.open_step_id!r} and its output or failure",
        )
    if claiming.most is not None and claiming.taken >= claiming.most:
        problem = f"you have had {claiming.taken} steps, and {claiming.most} is your limit"
        return ClaimRefusal(Refusal.LIMIT, problem, "give your final answer now")
    return None


def _by_kind(requested: RequestedStep) -> ClaimRefusal | None:
    if requested.kind.traits.is_agent and not requested.is_pull_worker:
        return None
    what = (
        "another run that takes steps like you"
        if requested.is_pull_worker
        else f"a {requested.kind} step, not an agent's work"
    )
    return ClaimRefusal(Refusal.NOT_FOR_AGENTS, f"step {requested.step_id!r} is {what}", _ANOTHER)


def _by_status(requested: RequestedStep) -> ClaimRefusal | None:
    name, status = requested.step_id, requested.status
    if status.is_terminal:
        return ClaimRefusal(Refusal.ENDED, f"step {name!r} is {status} already", _ANOTHER)
    if requested.is_paused:
        return ClaimRefusal(Refusal.PAUSED, "the task is paused", "finish what you hold; nothing new starts")
    if status is StepStatus.READY:
        begun = f"step {name!r} has begun already, and its own run continues it"
        return ClaimRefusal(Refusal.BEGUN, begun, _ANOTHER) if requested.has_begun else None
    if status is StepStatus.PENDING:
        waits = f"waits for {requested.open_deps} other steps" if requested.open_deps else "waits for its next attempt"
        return ClaimRefusal(Refusal.NOT_READY, f"step {name!r} {waits}", _ANOTHER)
    return ClaimRefusal(Refusal.HELD, f"step {name!r} is held by another run", _ANOTHER)


def _by_place(requested: RequestedStep, pools: Collection[str], capabilities: Collection[str]) -> ClaimRefusal | None:
    missing = [] if requested.pool in pools else [f"pool {requested.pool}"]
    missing += [need for need in requested.needs if need not in capabilities]
    if not missing:
        return None
    problem = f"step {requested.step_id!r} needs {', '.join(missing)}, which your worker does not have"
    return ClaimRefusal(Refusal.INCAPABLE, problem, _ANOTHER)
