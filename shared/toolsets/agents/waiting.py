"""Waiting for what an agent started: until nothing of it can continue by itself (DIS-06)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from soong.shared.engine.tasks.kinds import ClaimMode
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.engine.wire.notifier import Subscriber

T = TypeVar("T")

LOOK_EVERY_S: Final = 1.0
LOOK_AT_MOST_EVERY_S: Final = 0.1

_UNDER_WAY: Final = frozenset({StepStatus.CLAIMED, StepStatus.RUNNING, StepStatus.BLOCKED, StepStatus.EXPANDING})


async def wait_until(subscriber: Subscriber, session_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what ``look`` finds, as soon as it finds something; it looks again whenever the session's rows change."""
    subscription = await subscriber.subscribe_session(session_id)
    try:
        while (found := await look()) is None:
            await asyncio.sleep(LOOK_AT_MOST_EVERY_S)
            await subscription.wait(LOOK_EVERY_S)
    finally:
        await subscription.close()
    return found


def moves_by_itself(step: Step) -> bool:
    """Say whether a step will change although nobody decides anything: it runs, or is about to.

    A map step moves by its items, and a step that is to be pulled by its pull workers, which are steps, too.
    """
    match step.status:
        case StepStatus.READY:
            return step.claim_mode is ClaimMode.ASSIGNED
        case StepStatus.PENDING:
            return step.not_before_us is not None and not step.open_deps
        case StepStatus.FAILED:
            return step.error is not None and step.error.retryable and step.attempt < step.max_attempts
        case status:
            return status in _UNDER_WAY


def is_at_rest(steps: Sequence[Step]) -> bool:
    """Say whether none of these steps changes before somebody decides something."""
    return not any(map(moves_by_itself, steps))
