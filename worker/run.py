"""Runs one claimed step to its end: what a slot does between claim and completion.

A step's kind decides what does the work: a registered function or a child agent. Both get their inputs bound here, both
run under the step's time limit, and every outcome becomes one :class:`StepEnd`.

A cancelled or expired step leaves its function behind as work of the run (:mod:`soong.shared.core.foreign`); the slot
waits for that. A paused one is awaited here: the result of a function that ends counts.
"""

import asyncio
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any, Final, Protocol, assert_never, cast

import msgspec

from soong.shared.agents.runtime.call_log import StopSignal, clean_end
from soong.shared.core.errors import (
    ForgedError,
    LeaseLostError,
    SoongError,
    TemplateError,
    UnavailableError,
    UsageError,
)
from soong.shared.core.foreign import (
    await_foreign,
    begin_task,
    begin_thread,
    call_foreign,
    cancelled_soon,
    contained,
    place_of,
    words_of,
)
from soong.shared.core.identity import Origin, Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import MICRO, TASK_LIMIT, BudgetStore, TaskTime, time_words
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.failure_report import with_report
from soong.shared.engine.tasks.functions import StepContext, StepFunction, resolve
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.spec import BoundStep, StepKind
from soong.shared.engine.tasks.step import MALFORMED, Claim, StepEnd, StepError
from soong.shared.engine.wire.notifier import BUILTIN
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, Stream
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.programs import child_environment
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.limits import TimeLimit, UnfitError, plain
from soong.shared.toolsets.modules import import_own

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

    functions: "FunctionStepRunner"
    agents: BoundSteps
    celery: BoundSteps
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
                match claim.spec.kind:
                    case StepKind.PYTHON:
                        end = await self.functions.run(claim, bound.inputs, interruption)
                        if limit.timeout.expired():  # its function ignored its cancellation
                            raise TimeoutError
                        return end
                    case StepKind.AGENT | StepKind.CELERY as kind:
                        steps = {StepKind.AGENT: self.agents, StepKind.CELERY: self.celery}[kind]
                        return await steps.run(claim, bound, limit, interruption)
                    case StepKind.MAP:
                        return claim.failed("execution_failed", "a map step is never claimable")
                    case other:
                        assert_never(other)
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


def _words(time: TaskTime) -> str:
    return time_words(time.wall_us or 0)


MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""As JSON: every step that depends on this one gets all of it."""

_START: Final = "import sys; sys.path[:] = sys.argv[1:]; from soong.worker.run import answer_call; answer_call()"
_NO_LIMIT: Final = timedelta(days=3660)
"""The step's own limit cancels the call."""


class IsolatedCalls(Value):
    """Makes such calls. ``modules`` register the functions, ``folders`` are searched for them."""

    modules: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Names of what the process gets of our environment besides PATH, HOME and TMPDIR."""
    secret_variables: tuple[str, ...] = ()
    runner: CommandRunner = msgspec.field(default_factory=ProcessRunner)

    async def call(self, name: str, inputs: JsonObject, context: StepContext) -> tuple[Json, StepError | None]:
        """Call a function; return its output, or why there is none. A cancelled call ends its process first.

        Raises: OSError: the process cannot be started.
        """
        request = {
            "modules": self.modules,
            "folders": self.folders,
            "function": name,
            "inputs": inputs,
            "identity": context.identity.as_json(),
            "attempt": context.attempt,
            "effect_key": context.effect_key,
            "run_dir": str(context.run_dir),
        }
        cwd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            command = ChildCommand(
                argv=(sys.executable, "-I", "-c", _START, *sys.path),
                cwd=cwd,
                cwd_path=Path.cwd(),
                env=child_environment(self.variables, self.secret_variables),
                timeout=_NO_LIMIT,
                max_stdout_bytes=MAX_OUTPUT_BYTES + 64 * 1024,
                stdin=encoded(request),
                heard=_print,
                overflow="discard",
            )
            return _answer(await self.runner.run(command))
        finally:
            os.close(cwd)


@dataclass(slots=True)
class FunctionStepRunner:
    """Calls functions: cheap ones inline, other sync ones on a thread, async ones in a task on the loop.

    A function that must be killable is called in a process of its own.
    """

    runs: Path = Path("/nonexistent")
    """The parent of the folders of runs."""
    isolated: IsolatedCalls = field(default_factory=IsolatedCalls)

    async def run(self, claim: Claim, inputs: JsonObject, interruption: StopSignal) -> StepEnd:
        try:
            function = resolve(claim.spec.call)
        except UsageError as error:
            return claim.failed("invalid_input", str(error))
        run_dir = self.runs / claim.identity.run_id
        context = StepContext(claim.identity, claim.attempt, claim.step_key, run_dir)
        if (claim.spec.isolation or function.isolation) == "process":
            output, failure = await self.isolated.call(function.name, inputs, context)
        else:
            output, failure = await outcome_of(function, inputs, context, interruption)
        if failure is not None:
            return claim.failed(failure.type, failure.message, retryable=failure.retryable)
        # The files of its run's folder, the folder among them; 0 where it made none.
        files = 1 + sum(len(names) for _, _, names in os.walk(run_dir)) if run_dir.is_dir() else 0
        return claim.completed(output, usage=Usage(files=files))


async def outcome_of(
    function: StepFunction, inputs: JsonObject, context: StepContext, interruption: StopSignal
) -> tuple[Json, StepError | None]:
    """Call a function in this process; return its output, or why there is none."""
    try:
        output = await _call(function, inputs, context, interruption)
    except UsageError as error:
        return None, StepError("invalid_input", str(error))
    except Exception as error:  # noqa: BLE001  # a user's function: whatever it raises is the step's failure
        return None, _crash(error, _place_of(function, error))
    try:
        output = call_foreign(plain, output)  # a mapping of any class may come out
    except Exception as error:  # noqa: BLE001  # a user's class: whatever it raises is the step's failure
        words = str(error) if isinstance(error, UnfitError) else words_of(error)
        return None, StepError("execution_failed", f"the output cannot be stored: {words}{_defined_at(function)}")
    size = len(encoded(output))
    if size > MAX_OUTPUT_BYTES:
        words = f"the output has {size} bytes; a step gives at most {MAX_OUTPUT_BYTES}; write a file instead"
        return None, StepError("execution_failed", words)
    return output, None


async def _call(function: StepFunction, inputs: JsonObject, context: StepContext, interruption: StopSignal) -> Json:
    if function.is_cheap or function.is_async:
        result = call_foreign(function.body, inputs, context)
    else:
        call = functools.partial(call_foreign, function.body, inputs, context)
        result = await _result(begin_thread(function.name, call), interruption)
    if isinstance(result, Awaitable):
        awaited = result
        result = await _result(begin_task(function.name, await_foreign(lambda: awaited)), interruption)
    return cast("Json", result)


async def _result(call: "asyncio.Future[Any]", interruption: StopSignal) -> Any:
    """Await a function's end. A pause lets a plain function end, and a coroutine that ignores its cancellation.

    Raises: asyncio.CancelledError; what the function raised.
    """
    interruption.lets_end = not isinstance(call, asyncio.Task)
    while True:
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if call.done() and not call.cancelled():
                return call.result()
            if isinstance(call, asyncio.Task):
                await cancelled_soon(call)
            if interruption.stop != "release" or interruption.lets_end or call.cancelled():
                raise
            interruption.lets_end = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


def crashed(claim: Claim, error: BaseException, place: str) -> StepEnd:
    """Return the end of a step whose work raised: the exception's type, its text and where it was raised."""
    crash = _crash(error, place)
    return claim.failed(crash.type, crash.message, retryable=True)


def _crash(error: BaseException, place: str) -> StepError:
    words = words_of(error)
    return StepError("execution_failed", f"{words} (at {place})" if place else words, retryable=True)


def malformed(claim: Claim) -> StepEnd:
    """Return the end of a step that is not run: the rows behind it are not to be believed. Another run may be made."""
    return claim.failed(MALFORMED, claim.malformed, retryable=True)


def _place_of(function: StepFunction, error: BaseException) -> str:
    if function.name.startswith(BUILTIN):
        return ""  # its lines are ours and help nobody
    code = _code_of(function)
    return place_of(error, code.co_filename if code else "")


def _defined_at(function: StepFunction) -> str:
    code = None if function.name.startswith(BUILTIN) else _code_of(function)
    return f" (from {code.co_filename}:{code.co_firstlineno})" if code else ""


def _code_of(function: StepFunction) -> CodeType | None:
    code = getattr(inspect.unwrap(function.body), "__code__", None)
    return code if isinstance(code, CodeType) else None


def encoded(value: object) -> bytes:
    return dump(value).encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> dict[str, Json]:
    """Return a request or an answer that was read. Raises: ValueError, RecursionError."""
    return dict(json.loads(text.decode("utf-8", "surrogatepass")))


def _answer(finished: Finished) -> tuple[Json, StepError | None]:
    try:
        answer = decoded(finished.stdout)
        error = answer["error"]
        return answer["output"], StepError(**error) if isinstance(error, dict) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        how = f"exit code {finished.code}" if finished.code >= 0 else signal.Signals(-finished.code).name
        words = f"its process ended before its result: {how}"
        last = finished.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return None, StepError("execution_failed", f"{words}; {last}" if last else words, retryable=True)


def _print(stream: Stream, data: bytes) -> None:
    """Print what the function prints to the worker's log, as for a function on a thread."""
    if stream == "stderr":
        sys.stderr.write(data.decode("utf-8", "replace"))


def answer_call() -> None:
    """Make one call of a function in a process of its own: from the request on stdin to the answer on stdout.

    The output of the function goes to stderr.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    output, error = _outcome(decoded(sys.stdin.buffer.read()))
    with os.fdopen(answer, "wb") as file:
        file.write(encoded({"output": output, "error": error and error.as_json()}))


def _outcome(request: dict[str, Any]) -> tuple[Json, StepError | None]:
    try:
        for module in dict.fromkeys(request["modules"]):
            import_own(module, "SOONG_FUNCTIONS", request["folders"])
        function = resolve(request["function"])
    except SoongError as error:
        return None, StepError("invalid_input", str(error))
    who = request["identity"]
    origin = Origin(who.pop("dispatched_by"), who.pop("is_foreign"))
    identity = RunIdentity(**{**who, "role": Role(who["role"])}, origin=origin)
    context = StepContext(identity, request["attempt"], request["effect_key"], Path(request["run_dir"]))
    return asyncio.run(outcome_of(function, request["inputs"], context, StopSignal()))
