"""The metrics of an operator, from rows: waiting steps, held steps, questions. Made for reading often.

Owns the values and the port. They are shown elsewhere: metrics, lists of workers, an agent's own view.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from soong.shared.core.value import Value
from soong.shared.engine.tasks.step import Step


class WorkerLoad(Value):
    """A step that a worker holds."""

    worker_id: str
    run_id: str
    step_key: str
    title: str
    attempt: int
    session_id: str
    started_us: int | None
    function: str = ""
    asked_to_end: str = ""
    """Why it is to end, and has not: ``cancelled``, ``timed out`` or ``paused``; empty when it is not. ``completed``:
    it has ended, and threads of its calls have not; then there is no run, and ``step_key`` names the step."""
    progress: str = ""

    @property
    def words(self) -> str:
        """Return what a person reads of a step that has not ended although it is to; empty of any other."""
        if not self.asked_to_end:
            return ""
        what = f"{self.step_key} ({self.function})" if self.function else self.step_key
        return f"{what}: {self.asked_to_end}, still running{f'; {self.progress}' if self.progress else ''}"


class PoolMetrics(Value):
    """One pool's steps. ``oldest_us`` is since when the next in line has waited; None when nothing waits.

    ``pulled`` are ready too, but wait for a run that asks for them: another worker would not begin them.
    """

    ready: int = 0
    running: int = 0
    oldest_us: int | None = None
    pulled: int = 0


class Metrics(Value):
    """One look at the rows. ``lost_leases`` counts those of open tasks; a poisoned step is among them."""

    pools: Mapping[str, PoolMetrics] = msgspec.field(default_factory=dict)
    questions: int = 0
    oldest_question_us: int | None = None
    lost_leases: int = 0
    open_tasks: int = 0


class LimitUsage(Value):
    """A limit on live leases, and how many there are of its scope."""

    scope: str
    limit: int
    """0: none; the scope is only paused."""
    used: int
    is_paused: bool = False


class MetricsSource(Protocol):
    """Reads metrics; its cost grows with what is open now, not with what has ended."""

    async def metrics(self) -> Metrics:
        """Raises: UnavailableError; InvalidConfigError when our role may not read them (a worker's may not)."""

    async def parked(self) -> int:
        """Return how many runs wait for consent without a slot. Raises: UnavailableError."""

    async def holdings(self) -> Sequence[WorkerLoad]:
        """Return what is held, by worker, oldest first. Raises: UnavailableError."""

    async def concurrency_limits(self) -> Sequence[LimitUsage]:
        """Return the current limits; those of sessions only for sessions with open tasks. Raises: UnavailableError."""

    async def close(self) -> None: ...


def still_running(steps: Sequence[Step]) -> str:
    """Return how many of the steps are leased, in words; empty when none is."""
    left = [step for step in steps if step.status.is_leased]
    if not left:
        return ""
    nouns = {step.kind.traits.noun for step in left}
    noun = nouns.pop() if len(nouns) == 1 else "step"
    return f"{len(left)} {noun}{'s' if len(left) > 1 else ''} still running"
