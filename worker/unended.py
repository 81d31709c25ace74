"""Runs that were asked to end while functions of theirs still run: reported in their rows, and named in the log.

A thread cannot be ended, so its slot, its lease and its place in every limit stay taken until it ends. The row of its
step reports it to owners and people: at once when a time limit has passed, and again when it counts as stuck.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core import timing
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.core.foreign import StepWork
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.claims import UNKNOWN, ClaimStore
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, RunFence, StepEnd, StepError
from soong.shared.engine.wire.notifier import Notifier

log = get_logger(__name__)

MAX_CHARS: Final = 200
"""The most of a step and its functions in a heartbeat."""


@dataclass(slots=True)
class HeldRun:
    """A run in a slot: its asyncio task, and the work that can outlive it."""

    claim: Claim
    task: asyncio.Task[StepEnd]
    worker_id: str
    interruption: StopSignal
    work: StepWork
    is_stuck: bool = False
    is_leaving: bool = False
    """Its process ends without waiting for it."""
    slot: "asyncio.Task[Any] | None" = None
    is_abandoned: bool = False
    """Its slot is given up; its end is written last of all."""
    is_settled: bool = False
    """It has completed and its end is written; what it left behind keeps the slot."""

    @property
    def words(self) -> str:
        return f"{self.claim.step_key} ({' and '.join(self.work.names)})"[:MAX_CHARS]

    @property
    def is_left(self) -> bool:
        """Say whether only the end of this process ends it."""
        is_over = self.is_leaving or self.interruption.stop == "drop"
        return bool(self.work) and (is_over or (self.is_stuck and self.interruption.stop != "release"))

    @property
    def end(self) -> StepEnd | None:
        """Return what its runner has reported; None while that runs, and where it was stopped."""
        is_known = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if is_known else None

    def end_now(self) -> StepEnd | None:
        """Return the end to write when its process ends the work; None: its step is handed back."""
        end = self.end
        if end is not None and end.error is not None:
            words = f"{end.error.message}; its function was ended with its worker, what it did is unknown"
            return replace(end, error=StepError(UNKNOWN, words))
        if end is None and self.interruption.stop == "cancel":
            words = f"{self.interruption.reason or 'cancelled'}; its function was ended with its worker"
            return self.claim.cancelled(words, EndReason.CANCELLED)
        return end


@dataclass(slots=True)
class UnendedRuns:
    """Watches the runs of one process that were asked to end, each from then on until it has ended."""

    claims: ClaimStore
    clock: Clock
    stuck_s: float = 30.0
    beat_s: float = 5.0
    """So long a resumed function can still look paused."""
    on_stuck: Callable[[], object] = lambda: None
    notifier: Notifier | None = None
    _watched: "dict[RunFence, asyncio.Task[None]]" = field(default_factory=dict)

    def watch(self, held: HeldRun) -> None:
        """Watch a run from now on, for what it is asked to end for now."""
        self.ended(held)
        held.is_stuck = False
        self._watched[held.claim.run_fence] = asyncio.get_running_loop().create_task(self._watch(held))

    def ended(self, held: HeldRun) -> None:
        """Watch it no more."""
        if (watching := self._watched.pop(held.claim.run_fence, None)) is not None:
            watching.cancel()

    async def _watch(self, held: HeldRun) -> None:
        await asyncio.sleep(timing.SETTLE_S)
        error = held.end.error if held.end is not None else None
        if error is not None:
            await self._report(held, f"{error.message}; {' and '.join(held.work.names)} still runs", error)
        late_s = self.beat_s if held.interruption.is_pausing else 0.0
        await asyncio.sleep(max(0.0, self.stuck_s - timing.SETTLE_S) + late_s)
        if not held.work:
            return
        held.is_stuck = True
        names, place = " and ".join(held.work.names), held.work.place()
        words = f"{names} has not ended within {self.stuck_s:g} s of its {_cause(held)}; it is at {place or '?'}"
        log.error("function_stuck", step=held.claim.step_key, function=names, at=place, stack=held.work.stacks())
        final = None if error is None else StepError(UNKNOWN, f"{error.message}; {words}; what it did is unknown")
        if not held.is_settled:
            await self._report(held, words, final)
        self.on_stuck()

    async def _report(self, held: HeldRun, words: str, error: StepError | None) -> None:
        """Write it into the step's row; an owner that is notified settles what a limit has ended."""
        claim, now_us = held.claim, self.clock.now_us()
        try:
            await self.claims.report_progress(held.worker_id, claim.lease, words, error=error, now_us=now_us)
            if error is not None and self.notifier is not None:
                await self.notifier.notify_owners([claim.identity.session_id])
        except (LeaseLostError, UnavailableError) as problem:
            log.warning("unended_unreported", step=claim.step_key, error=str(problem))


def _cause(held: HeldRun) -> str:
    if held.interruption.stop == "release":
        return "pause"
    end = held.end
    if end is None or end.status is StepStatus.CANCELLED:
        return "cancellation"
    return "time limit" if end.status is StepStatus.FAILED else "run"
