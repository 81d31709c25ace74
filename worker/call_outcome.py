"""One call of a user's function in this process, and what becomes of it.

Cheap functions are called here, on the event loop; others on a thread, in the folder of their run; coroutine functions
on a thread with an event loop of its own.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable
from contextlib import nullcontext
from types import CodeType
from typing import Any, Final, cast

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.errors import UsageError
from soong.shared.core.foreign import await_foreign, call_foreign, place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.log_lines import note_raised
from soong.shared.core.step_work import begin_coroutine, begin_task, begin_thread, cancelled_soon, work_here
from soong.shared.engine.tasks.functions import StepContext, StepFunction
from soong.shared.engine.tasks.step import StepError
from soong.shared.engine.wire.notifier import BUILTIN
from soong.shared.sandbox.own_folder import working_in
from soong.shared.tools.limits import UnfitError, plain

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""As JSON: every step that depends on this one gets all of it."""


async def outcome_of(
    function: StepFunction, inputs: JsonObject, context: StepContext, interruption: StopSignal
) -> tuple[Json, StepError | None]:
    """Call a function in this process; return its output, or why there is none."""
    try:
        output = await _call(function, inputs, context, interruption)
    except Exception as error:  # noqa: BLE001  # a user's function: whatever it raises is the step's failure
        note_raised(error)
        if isinstance(error, UsageError):
            return None, StepError("invalid_input", str(error))
        return None, crash_of(error, _place_of(function, error))
    return stored(output, _defined_at(function))


def stored(output: object, origin: str) -> tuple[Json, StepError | None]:
    """Return an output as it is stored, or why it cannot be; ``origin`` says whose it is."""
    try:
        output = call_foreign(plain, output)  # a mapping of any class may come out
    except Exception as error:  # noqa: BLE001  # a user's class: whatever it raises is the step's failure
        words = str(error) if isinstance(error, UnfitError) else words_of(error)
        return None, StepError("execution_failed", f"the output cannot be stored: {words}{origin}")
    size = len(encoded(output))
    if size > MAX_OUTPUT_BYTES:
        words = f"the output has {size} bytes; a step gives at most {MAX_OUTPUT_BYTES}; write a file instead"
        return None, StepError("execution_failed", words)
    return output, None


async def _call(function: StepFunction, inputs: JsonObject, context: StepContext, interruption: StopSignal) -> Json:
    is_here = function.is_cheap or function.name.startswith(BUILTIN)
    around = nullcontext if is_here else functools.partial(working_in, context.folder)
    body = functools.partial(call_foreign, function.body, inputs, context)
    result: Any
    if is_here or function.is_async:
        result = body()  # of a coroutine function nothing runs before it is awaited
    else:

        def call() -> Any:
            with around():
                return body()

        result = await _result(begin_thread(function.name, call), interruption)
    if isinstance(result, Awaitable):
        awaited = await_foreign(lambda: result)
        if function.name.startswith(BUILTIN):
            task = begin_task(function.name, awaited)
        else:
            task = begin_coroutine(function.name, lambda: awaited, around)
        result = await _result(task, interruption)
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
                if (work := work_here()) is not None:
                    work.is_given_up = True
                raise
            interruption.lets_end = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


def crash_of(error: BaseException, place: str) -> StepError:
    words = words_of(error)
    return StepError("execution_failed", f"{words} (at {place})" if place else words, retryable=True)


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
