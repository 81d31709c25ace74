"""Python steps: a registered function instead of an agent, under the same claims, fences and limits.

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
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import CodeType
from typing import Any, Final, cast

import msgspec

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.errors import UsageError
from soong.shared.core.foreign import (
    await_foreign,
    begin_task,
    begin_thread,
    call_foreign,
    cancelled_soon,
    place_of,
    words_of,
)
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.tasks.functions import StepContext, StepFunction, resolve
from soong.shared.engine.tasks.step import MALFORMED, Claim, StepEnd, StepError
from soong.shared.engine.wire.notifier import BUILTIN
from soong.shared.sandbox.command import ChildCommand, CommandRunner, Finished, Stream
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.sandbox.programs import child_environment
from soong.shared.tools.value_limits import UnfitError, plain

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""As JSON: every step that depends on this one gets all of it."""

_START: Final = "import sys; sys.path[:] = sys.argv[1:]; from soong.worker.isolated_child import main; main()"
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
    """Return a request or an answer as it is written."""
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
