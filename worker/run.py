"""Runs one claimed step to its end: what a slot does between claim and completion.

A step's kind decides what does the work: a registered function or a child agent. Both get their inputs bound here, both
run under the step's time limit, and every outcome becomes one :class:`StepEnd`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from soong.shared.agents.runtime.call_log import clean_end
from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.errors import ForgedError, LeaseLostError, TemplateError, UnavailableError
from soong.shared.core.foreign import contained, place_of
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, TASK_LIMIT, BudgetStore, TaskTime, time_words
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.failure_report import with_report
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.spec import BoundStep, StepKind
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.time_limit import TimeLimit
from soong.worker.function_step import FunctionStepRunner, crashed, malformed

log = get_logger(__name__)


class AgentSteps(Protocol):
    """Runs a child agent (:mod:`soong.worker.agent_step`)."""

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd: ...


class TaskLimits(Value):
    """Keeps the limits of tasks in a worker process; it reads rows for steps of tasks with limits alone."""

    budgets: BudgetStore
    clock: Clock

    async def keep(self, claim: Claim, work: Callable[[], Awaitable[StepEnd]]) -> StepEnd:
        """Do the work of a step within the limits of its task.

        Raises: what ``work`` raises; UnavailableError, when the limits cannot be read.
        """
        time = await self.budgets.task_time(claim.identity.task_id)
        if time is None:
            return await work()
        left_s = None if time.deadline_us is None else (time.deadline_us - self.clock.now_us()) / MICRO
        if time.reached or (left_s is not None and left_s <= 0):
            log.info("step_not_started", step=claim.step_key, reason=time.reached or "wall_s")
            return claim.cancelled(time.reached or _words(time))
        try:
            async with asyncio.timeout(left_s) as limit:
                end = await work()
            if not limit.expired():  # else the work ignored its cancellation
                return end
        except TimeoutError:
            pass
        return claim.failed(TASK_LIMIT, _words(time), reason=EndReason.TIME_LIMIT)


@dataclass(slots=True)
class StepRunner:
    """The one place that maps what happened in a step to how the step ends."""

    functions: FunctionStepRunner
    agents: AgentSteps
    redactor: Redactor = field(default_factory=Redactor)
    limits: TaskLimits | None = None
    """None: no task here has limits."""

    async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        """Run the step; cancellation and a lost lease pass through to the slot. Its end holds no secret (EVT-05)."""
        if claim.malformed:
            end = malformed(claim)
        elif claim.spec.is_limited and self.limits is not None:
            end = await self.limits.keep(claim, lambda: self._timed(claim, interruption))
        else:
            end = await self._timed(claim, interruption)
        return clean_end(with_report(end, interruption.incidents), self.redactor)

    async def _timed(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        limit_s = claim.spec.timeout_s
        try:
            bound = bind_step(claim.spec, claim.task_inputs, claim.dependencies)
            async with TimeLimit(limit_s) as limit:
                return await self._work(claim, bound, limit, interruption)
        except TemplateError as error:
            return claim.failed(error.code, str(error))
        except TimeoutError:
            words = f"the step took longer than {limit_s} s"
            return claim.failed("time_limit", words, retryable=True, reason=EndReason.TIME_LIMIT)
        except ForgedError as error:
            return claim.failed(error.what, str(error), retryable=True)
        except (LeaseLostError, UnavailableError, asyncio.CancelledError):
            raise
        except BaseException as error:  # a fault in one step must not take the process's other steps with it
            log.exception("step_crashed", step=claim.step_key)
            stand_in = contained(error)
            return crashed(claim, stand_in, place_of(stand_in))

    async def _work(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        match claim.kind:
            case StepKind.PYTHON:
                end = await self.functions.run(claim, bound.inputs, interruption)
                if limit.has_expired:  # its function ignored its cancellation
                    raise TimeoutError
                return end
            case StepKind.AGENT:
                return await self.agents.run(claim, bound, limit, interruption)
            case StepKind.MAP:
                return claim.failed("execution_failed", "a map step is never claimable")
            case other:
                assert_never(other)


def _words(time: TaskTime) -> str:
    return time_words(time.wall_us or 0)
