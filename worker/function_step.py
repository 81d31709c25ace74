"""Python steps: a registered function instead of an agent, under the same claims, fences and limits."""

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable
from concurrent.futures import Executor
from pathlib import Path
from types import CodeType
from typing import Final

from soong.shared.core.errors import InvalidJsonError, UsageError
from soong.shared.core.foreign import await_foreign, call_foreign, place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.runs.record import Usage
from soong.shared.engine.tasks.functions import StepContext, StepFunction, resolve
from soong.shared.engine.tasks.step import MALFORMED, Claim, StepEnd
from soong.shared.engine.wire.capabilities import BUILTIN
from soong.shared.tools.value_limits import plain

MAX_OUTPUT_BYTES: Final = 16 * 1024 * 1024
"""As JSON: every step that depends on this one gets all of it."""


@dataclass(slots=True)
class FunctionStepRunner:
    """Calls functions: cheap ones inline, other sync ones on the bounded executor, async ones on the loop."""

    executor: Executor
    runs: Path = Path("/nonexistent")
    """Where the folders of runs are."""

    async def run(self, claim: Claim, inputs: JsonObject) -> StepEnd:
        try:
            function = resolve(claim.spec.call)
        except UsageError as error:
            return claim.failed("invalid_input", str(error))
        try:
            output = await self._call(function, claim, inputs)
        except UsageError as error:
            return claim.failed("invalid_input", str(error))
        except Exception as error:  # noqa: BLE001  # a user's function: whatever it raises is the step's failure
            return crashed(claim, error, _place_of(function, error))
        try:
            size = len(dump(output).encode("utf-8", "surrogatepass"))
            output = plain(output)
        except (InvalidJsonError, TypeError, ValueError, RecursionError) as error:
            return claim.failed("execution_failed", words_of(error))
        if size > MAX_OUTPUT_BYTES:
            words = f"the output has {size} bytes; a step gives at most {MAX_OUTPUT_BYTES}; write a file instead"
            return claim.failed("execution_failed", words)
        return claim.completed(output, usage=Usage(files=_files_in(self._run_dir(claim))))

    async def _call(self, function: StepFunction, claim: Claim, inputs: JsonObject) -> Json:
        context = StepContext(claim.identity, claim.attempt, claim.step_key, self._run_dir(claim))
        if function.is_cheap or function.is_async:
            result = call_foreign(function.body, inputs, context)
        else:
            call = functools.partial(call_foreign, function.body, inputs, context)
            result = await asyncio.get_running_loop().run_in_executor(self.executor, call)
        if isinstance(result, Awaitable):
            awaited = result
            return await await_foreign(lambda: awaited)
        return result

    def _run_dir(self, claim: Claim) -> Path:
        return self.runs / claim.identity.run_id


def _files_in(folder: Path) -> int:
    """Return how much a function has left in its run's folder, the folder among it: 0 where it made none."""
    return 1 + sum(len(files) for _, _, files in os.walk(folder)) if folder.is_dir() else 0


def crashed(claim: Claim, error: BaseException, place: str) -> StepEnd:
    """Return the end of a step whose work raised: the exception's type, its text and where it was raised."""
    words = words_of(error)
    return claim.failed("execution_failed", f"{words} (at {place})" if place else words, retryable=True)


def malformed(claim: Claim) -> StepEnd:
    """Return the end of a step that is not run: the rows behind it are not to be believed. Another run may be made."""
    return claim.failed(MALFORMED, claim.malformed, retryable=True)


def _place_of(function: StepFunction, error: BaseException) -> str:
    if function.name.startswith(BUILTIN):
        return ""  # its lines are ours and help nobody
    code = getattr(inspect.unwrap(function.body), "__code__", None)
    return place_of(error, code.co_filename if isinstance(code, CodeType) else "")
