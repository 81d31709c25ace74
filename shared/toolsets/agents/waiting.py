"""Waiting for what an agent started: until nothing of it can continue by itself (DIS-06)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from soong.shared.core import timing
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.engine.wire.notifier import Subscriber

T = TypeVar("T")


_UNDER_WAY: Final = frozenset({StepStatus.RUNNING, StepStatus.BLOCKED, StepStatus.EXPANDING})


async def wait_until(subscriber: Subscriber, session_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what ``look`` finds, as soon as it finds something; it looks again whenever the session's rows change."""
    subscription = await subscriber.subscribe_session(session_id)
    try:
        while (found := await look()) is None:
            await asyncio.sleep(timing.LEAST_PAUSE_S)
            await subscription.wait(timing.POLL_ROWS_S)
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


@dataclass(slots=True)
class Patience:
    """How long steps that no living worker can take are waited for. One for each wait.

    A worker that starts in time ends the impatience; what is given up on stays where it is, and may run later.
    """

    sessions: SessionStore
    limit_s: float
    _since_s: float | None = None

    async def lacks(self, steps: Sequence[Step]) -> Mapping[str, str]:
        """Return by step key why no worker takes what alone keeps these steps moving, once the time is over."""
        moving = [step for step in steps if moves_by_itself(step)]
        if not moving or any(step.status is not StepStatus.READY for step in moving):
            self._since_s = None
            return {}
        workers = await self.sessions.workers()
        found = {step.key: words for step in moving if (words := lacking(step.pool, step.needs, workers))}
        if len(found) < len(moving):
            self._since_s = None
            return {}
        now_s = asyncio.get_running_loop().time()
        self._since_s = now_s if self._since_s is None else self._since_s
        return found if now_s - self._since_s >= self.limit_s else {}


def needs_decision(steps: Sequence[Step], left: Collection[str]) -> bool:
    """Say whether somebody has to decide: none of these steps changes by itself, or one failed that is not ``left``."""
    failed = (step for step in steps if step.status is StepStatus.FAILED and step.on_failure is not FailurePolicy.KEEP)
    is_open = any(not moves_by_itself(step) and not step.map_key and step.step_id not in left for step in failed)
    return is_open or not any(map(moves_by_itself, steps))
