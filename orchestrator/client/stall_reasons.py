"""Why the steps of a task are not run, as a client that follows it finds out.

Rows show which workers are alive. Only an embedded service itself reports the workers that it starts, and why it
cannot. A deployment of several machines has no such report: there the rows are all there is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.child import ServiceHealth, health_of
from soong.orchestrator.embedded.starter import last_words
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError


@dataclass(slots=True)
class StallReasons:
    """Looks at each view of one task.

    ``control`` is the socket of the embedded service that the client uses now, if it is one. ``pause`` says whether
    nothing of the task runs then, ``is_owned`` whether an orchestrator lives.
    """

    task_id: str
    control: Callable[[], str | None]
    pause: Callable[[], Awaitable[bool]]
    is_owned: Callable[[], Awaitable[bool]]
    note: Callable[[str], None] = lambda _sentence: None
    _since_s: float | None = None
    """When no worker was found to live, until one does."""
    _next_s: float = 0.0
    _told_s: float = 0.0
    _missing_s: float | None = None
    """Since when a function is missing: a worker with its module may be about to start."""
    _had_workers: bool = False
    """Whether a worker lived, or held a step of the task, at any time."""

    async def refresh(self, *, is_manned: bool, has_begun: bool, missing: str, is_over: bool) -> None:
        """Say what the steps wait for.

        ``is_manned``: a worker lives; ``has_begun``: one has held a step; ``missing``: a function that no worker has.

        Raises:
            UnavailableError: they wait for what will not come; the task has been paused.
        """
        now_s = asyncio.get_running_loop().time()
        self._had_workers = self._had_workers or is_manned or has_begun
        if not missing or self._missing_s is None:
            self._missing_s = now_s
        if is_manned:
            self._since_s = None
        elif self._since_s is None:
            self._since_s, self._told_s = now_s, 0.0
        if now_s < self._next_s or is_over or (is_manned and not missing):
            return
        self._next_s = now_s + timing.RETRY_EVERY_S
        control = self.control()
        if control is None:
            await self._deployment(now_s)
            return
        health = await health_of(control)
        if health is None:
            return
        reason = _hopeless(health)
        if missing and now_s > self._missing_s + timing.GRACE_S and not health.starting:  # all of its workers are there
            reason = reason or (
                f"{health.problem or missing}\n  the service's modules (SOONG_FUNCTIONS): {health.modules}; "
                f"to use others, end it with `{program()} down` and run again with SOONG_FUNCTIONS=MODULE"
            )
        if reason:  # nothing is to wait for the task
            stands = "the task is paused" if await self.pause() else "the task still runs"
            raise UnavailableError(f"{reason}\n  {stands}; continue it: {program()} resume {self.task_id}")
        self._starting(health, now_s)

    def _starting(self, health: ServiceHealth, now_s: float) -> None:
        """Say that the service starts workers, soon after they were missed and then now and then."""
        if self._since_s is None or not health.starting:
            return
        waited_s = now_s - self._since_s
        if (waited_s < timing.SHORT_LIMIT_S and not self._had_workers) or (
            self._told_s and now_s - self._told_s < timing.SILENCE_S
        ):
            return
        workers = "1 worker" if health.starting == 1 else f"{health.starting} workers"
        if self._told_s:
            log = f"; its log: {health.log}" if health.log else ""
            self.note(f"still starting {workers} after {waited_s:.0f} s{log}")
        else:
            self.note(
                f"no worker is left: the service starts {workers}" if self._had_workers else f"starting {workers}"
            )
        self._told_s = now_s

    async def _deployment(self, now_s: float) -> None:
        if self._since_s is None or self._told_s or now_s - self._since_s < timing.SILENCE_S:
            return
        self._told_s = now_s
        missing = (
            f"worker lives: start one with `{program()} worker`"
            if await self.is_owned()
            else "orchestrator lives: start one"
        )
        self.note(f"nothing runs: no {missing}; `{program()} doctor` looks at the rest")


def _hopeless(health: ServiceHealth) -> str:
    if not health.is_hopeless:
        return ""
    words = f": {health.problem}" if health.problem else last_words(Path(health.log) if health.log else None)
    log = f"\n  its log: {health.log}" if health.problem and health.log else ""
    return f"the workers do not start{words}{log}"
