"""How a handler runs and how it can end before its end: its time limit, an abort, its last words (EXE-07..09).

Owns the changing state of one call. The order of its stages is :mod:`shared.tools.pipeline`.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from shared.jsontext import Json, JsonObject
from shared.sandbox.redact import Redactor
from shared.tools.definition import HandlerOutput, Target
from shared.tools.normalise import refusal
from shared.tools.ports import CallLog, ToolCall
from shared.tools.result import ErrorType, TextBlock, ToolFailure, ToolResult

PROGRESS_EVENT: Final = "tool_progress"
_MAX_PARTIAL_CHARS: Final = 4_000

T = TypeVar("T")


@dataclass(slots=True)
class Course:
    """How far one call has come; the only thing here that changes. ``signal`` is an abort that waited for its end."""

    call: ToolCall
    started_s: float | None = None
    is_withheld: bool = False
    target: Target = field(default_factory=Target)
    partial: str = ""
    signal: asyncio.CancelledError | None = None


@dataclass(frozen=True, slots=True)
class CallProgress:
    """Progress of one call as events; the last words are kept in case it never ends."""

    log: CallLog
    redactor: Redactor
    course: Course

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        self.course.partial = f"{self.course.partial}{message}\n"[-_MAX_PARTIAL_CHARS:]
        event: dict[str, Json] = {"tool_call_id": self.course.call.id, "tool": self.course.call.tool}
        event |= {"message": self.redactor.text(message), "data": self.redactor.mapping(data or {})}
        await self.log.note(PROGRESS_EVENT, event)


class HandlerTimeoutError(Exception):
    """Our own time limit, which a handler's TimeoutError must not be taken for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"no result within {seconds:g} s")


async def timed(running: Awaitable[HandlerOutput], seconds: float | None) -> HandlerOutput:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await running
    except TimeoutError as error:
        if limit.expired():
            raise HandlerTimeoutError(seconds or 0.0) from error
        raise


async def unbroken(work: Coroutine[object, object, T]) -> T:
    """Finish the work although the caller is being cancelled, and only then let the cancellation go on."""
    task = asyncio.ensure_future(work)
    signal: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            signal = error
    if signal is not None:
        raise signal
    return task.result()


def aborted(course: Course, signal: asyncio.CancelledError) -> ToolResult:
    reason = str(signal.args[0]) if signal.args else "the run was interrupted"
    failure = ToolFailure(ErrorType.ABORTED, f"aborted: {reason}")
    result = refusal(course.call.id, failure, None, aborted=True, partial=bool(course.partial), abort_reason=reason)
    return _with_partial(result, course.partial)


def timed_out(course: Course, error: HandlerTimeoutError) -> ToolResult:
    failure = ToolFailure(ErrorType.TIMEOUT, str(error), "narrow the call so that it ends sooner")
    return _with_partial(refusal(course.call.id, failure, None, partial=bool(course.partial)), course.partial)


def _with_partial(result: ToolResult, partial: str) -> ToolResult:
    if not partial:
        return result
    return replace(result, content=(*result.content, TextBlock(f"until then:\n{partial}")))


def withheld(course: Course, result: ToolResult) -> ToolResult:
    """Return what is kept of an allowed sensitive read: where it was, not what it said (RES-03)."""
    if result.is_error:
        return result
    text = f"[the content of the sensitive {course.target.shown} went to the model only]"
    metadata: dict[str, Json] = {"is_withheld": True, "ref": course.target.shown}
    return ToolResult(result.tool_call_id, (TextBlock(text),), text, metadata=metadata)
