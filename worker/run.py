"""Runs one claimed step to its end: what a slot does between claim and completion.

A step's kind decides what does the work: a registered function or a child agent. Both get their inputs bound here, both
run under the step's time limit, and every outcome becomes one :class:`StepEnd`.

A cancelled or expired step leaves its function behind as work of the run (:mod:`soong.shared.core.step_work`); the slot
waits for that. A paused one is awaited here: the result of a function that ends counts.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, assert_never

from msgspec.structs import replace

from soong.shared.agents.runtime.call_log import StopSignal, clean_end
from soong.shared.core.errors import ForgedError, LeaseLostError, TemplateError, UnavailableError, UsageError
from soong.shared.core.foreign import contained, place_of
from soong.shared.core.identity import step_id_of
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, TASK_LIMIT, BudgetStore, time_words
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.failure_report import with_report
from soong.shared.engine.tasks.functions import NoFiles, StepContext, resolve
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.spec import BoundStep, StepKind, StepStatus
from soong.shared.engine.tasks.step import MALFORMED, Claim, StepEnd
from soong.shared.sandbox.own_folder import WORKSPACE
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.limits import TimeLimit
from soong.shared.tools.schema import validate
from soong.worker.call_outcome import crash_of, outcome_of
from soong.worker.handed_on import HandedOn, ReadArtifacts
from soong.worker.isolated_calls import IsolatedCalls
from soong.worker.log_lines import LineKeeper

log = get_logger(__name__)


class BoundSteps(Protocol):
    """Runs the steps of a kind: :mod:`soong.worker.agent_step`, :mod:`soong.worker.celery_step`."""

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
            return claim.cancelled(time.reached or time_words(time.wall_us or 0))
        try:
            async with asyncio.timeout(left_s) as limit:
                end = await work()
            if not limit.expired():  # else the work ignored its cancellation
                return end
        except TimeoutError:
            pass
        return claim.failed(TASK_LIMIT, time_words(time.wall_us or 0), reason=EndReason.TIME_LIMIT)


@dataclass(slots=True)
class StepRunner:
    """The one place that maps what happened in a step to how the step ends."""

    functions: "FunctionStepRunner"
    agents: BoundSteps
    celery: BoundSteps
    redactor: Redactor = field(default_factory=Redactor)
    limits: TaskLimits | None = None
    """None: no task here has limits."""
    lines: LineKeeper | None = None
    """None: what steps write is nobody's."""

    async def run(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        """Run the step; cancellation and a lost lease pass through to the slot. Its end holds no secret (EVT-05)."""
        if claim.malformed:
            end = malformed(claim)
        else:
            async with nullcontext() if self.lines is None else self.lines.kept(claim):
                if claim.spec.is_limited and self.limits is not None:
                    end = await self.limits.keep(claim, lambda: self._timed(claim, interruption))
                else:
                    end = await self._timed(claim, interruption)
        return clean_end(with_report(end, interruption.incidents), self.redactor)

    async def _timed(self, claim: Claim, interruption: StopSignal) -> StepEnd:
        limit_s = claim.spec.timeout_s
        try:
            bound = bind_step(claim.spec, claim.task_inputs, claim.dependencies)
            async with TimeLimit(limit_s) as limit:
                match claim.spec.kind:
                    case StepKind.PYTHON:
                        end = await self.functions.run(claim, bound.inputs, interruption)
                        if limit.timeout.expired():  # its function ignored its cancellation
                            raise TimeoutError
                    case StepKind.AGENT | StepKind.CELERY as kind:
                        steps = {StepKind.AGENT: self.agents, StepKind.CELERY: self.celery}[kind]
                        end = await steps.run(claim, bound, limit, interruption)
                    case StepKind.MAP:
                        return claim.failed("execution_failed", "a map step is never claimable")
                    case other:
                        assert_never(other)
            return _held_to_schema(claim, end)
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


def _held_to_schema(claim: Claim, end: StepEnd) -> StepEnd:
    """Return the end of a step: a failure if its output breaks its schema."""
    schema = claim.spec.output
    if schema is None or end.status is not StepStatus.COMPLETED or not (found := validate(schema, end.output)):
        return end
    words = f"the output of step {step_id_of(claim.step_key)!r} breaks its schema: {'; '.join(map(str, found))}"
    failed = claim.failed("invalid_output", words, retryable=True)
    return replace(end, status=failed.status, end_reason=failed.end_reason, output=None, error=failed.error)


@dataclass(slots=True)
class FunctionStepRunner:
    """Calls functions, each in this process or in one of its own, with the files of their runs."""

    runs: Path = field(default_factory=lambda: Path(tempfile.gettempdir(), "soong-runs"))
    """The parent of the folders of runs."""
    isolated: IsolatedCalls = field(default_factory=IsolatedCalls)
    artifacts: ReadArtifacts | None = None
    redactor: Redactor = field(default_factory=Redactor)

    async def run(self, claim: Claim, inputs: JsonObject, interruption: StopSignal) -> StepEnd:
        try:
            function = resolve(claim.spec.call)
        except UsageError as error:
            return claim.failed("invalid_input", str(error))
        if claim.spec.code not in ("", function.version) and claim.attempt == 1:
            words = (
                f"this worker has version {function.version or 'none'} of {function.name!r}, and the plan was "
                f"submitted with version {claim.spec.code}; start the worker again (`soong worker --reload` does it by "
                "itself), then `soong resume`"
            )
            return claim.failed("worker_incompatible", words)
        folder = self.runs / claim.identity.run_id / WORKSPACE
        store = None if function.is_cheap else self.artifacts
        files = NoFiles() if store is None else HandedOn(store, self.redactor)
        context = StepContext(claim.identity, claim.attempt, claim.step_key, folder, Path(claim.project), files)
        if (claim.spec.isolation or function.isolation) == "process":
            output, failure = await self.isolated.call(function, inputs, context)
        else:
            output, failure = await outcome_of(function, inputs, context, interruption)
        events = files.events if isinstance(files, HandedOn) else ()
        if failure is not None:
            end = claim.failed(failure.type, failure.message, retryable=failure.retryable)
            return replace(end, events=events)
        # The files of its run's folder, the folder among them; 0 where it made none.
        run = folder.parent
        count = 1 + sum(len(names) for _, _, names in os.walk(run)) if run.is_dir() else 0
        return claim.completed(output, usage=Usage(files=count), events=events)


def crashed(claim: Claim, error: BaseException, place: str) -> StepEnd:
    """Return the end of a step whose work raised: the exception's type, its text and where it was raised."""
    crash = crash_of(error, place)
    return claim.failed(crash.type, crash.message, retryable=True)


def malformed(claim: Claim) -> StepEnd:
    """Return the end of a step that is not run: the rows behind it are not to be believed. Another run may be made."""
    return claim.failed(MALFORMED, claim.malformed, retryable=True)
