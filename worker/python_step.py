"""Python steps: a registered function instead of an agent, under the same claims, fences and limits."""

import asyncio
import functools
from collections.abc import Awaitable
from concurrent.futures import Executor
from dataclasses import dataclass

from shared.errors import InvalidJsonError, UsageError
from shared.jsontext import Json, JsonObject, dump
from shared.runs.status import EndReason
from shared.tasks.functions import StepContext, StepFunction, resolve
from shared.tasks.status import StepStatus
from shared.tasks.step import Claim, StepEnd, StepError

STEP_THREADS = "soong-step"
"""Name of the threads on which plain functions run: a thread cannot be ended, only left behind."""


@dataclass(slots=True)
class PythonSteps:
    """Calls functions: cheap ones inline, other sync ones on the bounded executor, async ones on the loop."""

    executor: Executor

    async def run(self, claim: Claim, inputs: JsonObject) -> StepEnd:
        try:
            function = resolve(str(claim.spec.get("call", "")))
        except UsageError as error:
            return failed(claim, "invalid_input", str(error))
        try:
            output = await self._call(function, claim, inputs)
        except asyncio.CancelledError:
            raise
        except UsageError as error:
            return failed(claim, "invalid_input", str(error))
        except (SystemExit, KeyboardInterrupt) as error:  # a function that wants to end the process ends its step
            return failed(claim, "execution_failed", f"the function raised {type(error).__name__}", retryable=True)
        except Exception as error:  # noqa: BLE001  # a user's function: whatever it raises is the step's failure
            return failed(claim, "execution_failed", f"{type(error).__name__}: {error}", retryable=True)
        try:
            dump(output)
        except (InvalidJsonError, TypeError, ValueError) as error:
            return failed(claim, "execution_failed", f"{type(error).__name__}: {error}")
        return StepEnd(
            claim.step_key,
            claim.identity.run_id,
            claim.fence,
            StepStatus.COMPLETED,
            EndReason.COMPLETED,
            output=output,
        )

    async def _call(self, function: StepFunction, claim: Claim, inputs: JsonObject) -> Json:
        context = StepContext(claim.identity, claim.attempt, effect_key=claim.step_key)
        if function.is_cheap or function.is_async:
            result = function.body(inputs, context)
        else:
            call = functools.partial(_called, function, inputs, context)
            result = await asyncio.get_running_loop().run_in_executor(self.executor, call)
        return await result if isinstance(result, Awaitable) else result


def _called(function: StepFunction, inputs: JsonObject, context: StepContext) -> Json | Awaitable[Json]:
    """Call a plain function on its thread, where some exceptions would end more than the call.

    StopIteration cannot be carried by a future, and the others would end the thread's loop or pool.
    """
    try:
        return function.body(inputs, context)
    except (SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error


def failed(
    claim: Claim, type_: str, message: str, *, retryable: bool = False, reason: EndReason = EndReason.FAILED
) -> StepEnd:
    """Return the end of a step that did not do what it should."""
    return StepEnd(
        claim.step_key,
        claim.identity.run_id,
        claim.fence,
        StepStatus.FAILED,
        reason,
        error=StepError(type_, message[:2000], retryable),
    )
