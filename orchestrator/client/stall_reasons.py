"""Why the steps of a task are not run, as a client that follows it finds out.

Rows show which workers are alive. What an embedded service starts, and why it cannot, only the service itself knows. A
deployment of several machines has nobody to ask: there the rows are all there is.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.orchestrator.client.program import program
from soong.orchestrator.embedded.child import ServiceHealth, health_of, modules_text
from soong.orchestrator.embedded.service_file import ServiceRecord
from soong.orchestrator.embedded.starter import last_words
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.functions import suggestion
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.engine.wire.capabilities import FUNCTION


@dataclass(slots=True)
class StallReasons:
    """Looks at each view of one task. ``record`` is the embedded service that the client uses now, if it is one."""

    client: Client
    record: Callable[[], ServiceRecord | None]
    note: Callable[[str], None] = lambda _sentence: None
    _since_s: float | None = None
    """When no worker was found to live, until one does."""
    _next_s: float = 0.0
    _told_s: float = 0.0
    _is_compared: bool = False
    _had_workers: bool = False
    """Whether a worker lived, or held a step of the task, at any time."""

    async def refresh(self, view: TaskSnapshot) -> None:
        """Say what the steps wait for.

        Raises:
            UnavailableError: they wait for what will not come; the task has been paused.
        """
        now_s = asyncio.get_running_loop().time()
        is_manned = any(worker.state is ProcessState.LIVE for worker in view.workers)
        self._had_workers = self._had_workers or is_manned or any(step.fence for step in view.steps)
        if is_manned:
            self._since_s = None
        elif self._since_s is None:
            self._since_s, self._told_s = now_s, 0.0
        unserved = _without_function(view)
        is_wanted = not is_manned or bool(unserved) or self._is_unsure
        if now_s < self._next_s or view.task.status.is_terminal or not is_wanted:
            return
        self._next_s = now_s + timing.RETRY_EVERY_S
        record = self.record()
        if record is None:
            await self._deployment(now_s)
            return
        health = await health_of(record.control)
        if health is None:
            return
        self._compare_modules(health)
        if reason := _hopeless(health) or _unserved(unserved, health, view):
            await self._give_up(view, reason)
        self._starting(health, now_s)

    @property
    def _is_unsure(self) -> bool:
        """Say whether it is to be seen yet that the service has the modules that this command names."""
        return not self._is_compared and bool(self.client.settings.functions) and self.record() is not None

    def _compare_modules(self, health: ServiceHealth) -> None:
        settings = self.client.settings
        own = modules_text(settings.functions, settings.import_folders)
        if self._is_unsure and own != health.modules:
            self.note(
                f"the running service has other modules of step functions: {health.modules}; this command names {own}; "
                f"to use these, end the service with `{program()} down` and run again"
            )
        self._is_compared = True

    async def _give_up(self, view: TaskSnapshot, reason: str) -> NoReturn:
        """Pause the task, so that nothing waits for it."""
        is_paused = await self.client.pause(view.task, reason="no worker can run it", limit_s=timing.RELEASE_LIMIT_S)
        stands = "the task is paused" if is_paused else "the task still runs"
        raise UnavailableError(f"{reason}\n  {stands}; continue it: {program()} resume {view.task.id}")

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
        is_owned = bool(await self.client.store.sessions.owners())
        missing = f"worker lives: start one with `{program()} worker`" if is_owned else "orchestrator lives: start one"
        self.note(f"nothing runs: no {missing}; `{program()} doctor` looks at the rest")


def _hopeless(health: ServiceHealth) -> str:
    if not health.is_hopeless:
        return ""
    words = f": {health.problem}" if health.problem else last_words(Path(health.log) if health.log else None)
    log = f"\n  its log: {health.log}" if health.problem and health.log else ""
    return f"the workers do not start{words}{log}"


def _without_function(view: TaskSnapshot) -> list[Step]:
    """Return the steps that are ready and need a function that no living worker has."""
    if not view.lacks:
        return []
    ready = [step for step in view.steps if step.status is StepStatus.READY and step.key in view.lacks]
    return [step for step in ready if _missing(step, _functions(view))]


def _functions(view: TaskSnapshot) -> frozenset[str]:
    """Return the functions of all living workers."""
    live = [worker for worker in view.workers if worker.state is ProcessState.LIVE]
    words = (word for worker in live for word in worker.capabilities)
    return frozenset(word.removeprefix(FUNCTION) for word in words if word.startswith(FUNCTION))


def _missing(step: Step, known: frozenset[str]) -> str:
    """Return a function that a step needs and that is not among the known ones; empty when there is none."""
    needed = (need.removeprefix(FUNCTION) for need in step.needs if need.startswith(FUNCTION))
    return next((name for name in needed if name not in known), "")


def _unserved(steps: list[Step], health: ServiceHealth, view: TaskSnapshot) -> str:
    """Say which function no worker of the service has, once all of its workers are there."""
    if not steps or health.starting:
        return ""
    known = _functions(view)
    missing = _missing(steps[0], known)
    return (
        f"step {steps[0].step_id!r} needs the function {missing!r}, which no worker of the running service has; "
        f"{suggestion(missing, known)}\n"
        f"  the service's modules (SOONG_FUNCTIONS): {health.modules}; "
        f"to use others, end it with `{program()} down` and run again with SOONG_FUNCTIONS=MODULE"
    )
