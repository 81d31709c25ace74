"""From the model's words to a validated input (SCH-03), and how a handler runs and can end before its end (EXE-07..09).

Owns the changing state of one call. Hooks, permission and handler see the validated input and nothing else. The order
of the stages is :mod:`soong.shared.tools.pipeline`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.foreign import ForeignError, await_foreign, call_foreign, name_of
from soong.shared.core.jsontext import MAX_BYTES, Json, JsonObject, parse_strict
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.threads import unbroken
from soong.shared.tools.definition import HandlerOutput, Progress, Target, ToolDefinition
from soong.shared.tools.limits import TimeLimit, UnfitError, check_incoming, integral, plain, storable, taken_back
from soong.shared.tools.ports import CallInputs, CallLog, GateCall, ToolCall, Verdict
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schema import Violation, repaired, validate

PROGRESS_EVENT: Final = "tool_progress"
PROGRESS_BURST: Final = 20
PERSON: Final = "person"

T = TypeVar("T")

MAX_ARGUMENT_CHARS: Final = MAX_BYTES


@dataclass(slots=True)
class CallState:
    """How far one call has come; the only thing here that changes. ``signal`` is an abort that waited for its end."""

    call: ToolCall
    fence: int = 0
    model_input: Json = None
    """The input from the model: as received until it is parsed, which also bounds it."""
    hook_input: JsonObject | None = None
    permission_input: JsonObject | None = None
    call_input: JsonObject | None = None
    is_bounded: bool = False
    is_repaired: bool = False
    """The model's input was put right before hooks and permission saw it."""
    gate_call: GateCall | None = None
    verdict: Verdict | None = None
    started_s: float | None = None
    is_withheld: bool = False
    target: Target = field(default_factory=Target)
    reported: str = ""
    handed_over: str = ""
    signal: asyncio.CancelledError | None = None
    evidence: tuple[str, ...] = ()
    facts: JsonObject = field(default_factory=dict)
    """The facts of the permission check, and below its decision, without secrets."""
    decision: JsonObject = field(default_factory=dict)

    def next_event(self) -> str:
        """Return the id of the call's next event, and count it as evidence."""
        event_id = f"{self.call.id}.{self.fence}.{len(self.evidence) + 1}"
        self.evidence = (*self.evidence, event_id)
        return event_id

    def shown_inputs(self, redactor: Redactor) -> CallInputs:
        model = self.model_input if self.is_bounded else shown_arguments(self.model_input)
        rest = (self.hook_input, self.permission_input, self.call_input)
        return CallInputs(redactor.value(model), *(None if one is None else redactor.mapping(one) for one in rest))

    def keep_partial(self, partial: str) -> None:
        """Take the handler's partial result so far; it replaces the one before."""
        self.handed_over = storable(str(partial))

    @property
    def partial(self) -> str:
        return self.handed_over or self.reported


@dataclass(slots=True)
class CallProgress(Progress):
    """Progress of one call as events; the last words are kept in case it never ends."""

    log: CallLog
    redactor: Redactor
    call_state: CallState
    clock: Clock = field(default_factory=SystemClock)
    _room: float = PROGRESS_BURST
    _filled_s: float = 0.0
    _left_out: int = 0

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        shown = self.redactor.text(storable(str(message)))
        self.call_state.reported = f"{self.call_state.reported}{shown}\n"[-4_000:]
        if not self._may_tell():
            self._left_out += 1
            return
        event: dict[str, Json] = {"tool_call_id": self.call_state.call.id, "tool": self.call_state.call.tool}
        event |= {"message": shown, "data": self._shown_data(data), "event_id": self.call_state.next_event()}
        if self._left_out:
            event["left_out"], self._left_out = self._left_out, 0
        await self.log.note(PROGRESS_EVENT, event)

    def _shown_data(self, data: JsonObject | None) -> Json:
        try:
            return self.redactor.value(plain(data or {}))
        except UnfitError as error:
            return {"left_out": error.problem}

    def _may_tell(self) -> bool:
        now_s = self.clock.monotonic_s()
        self._room = min(PROGRESS_BURST, self._room + (now_s - self._filled_s) / timing.PROGRESS_S)
        self._filled_s = now_s
        if self._room < 1:
            return False
        self._room -= 1
        return True


class HandlerTimeoutError(Exception):
    """Our own time limit, which a handler's TimeoutError must not be taken for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"no result within {seconds:g} s")


class SelfCancelledError(Exception):
    """A handler raised CancelledError although nobody cancelled the call: its failure, not the run's end."""

    def __init__(self) -> None:
        super().__init__("the tool cancelled itself")


class ExitedError(Exception):
    """A handler called ``sys.exit``, as parsers of command lines do: its own end, not the process's."""

    def __init__(self, code: object) -> None:
        super().__init__(f"the tool ended itself: {code}")


async def timed(
    handler: Callable[[], Awaitable[HandlerOutput]], limit: TimeLimit, seconds: float | None
) -> HandlerOutput:
    """Call a handler and wait for its end; ``limit`` is of ``seconds``.

    Raises:
        HandlerTimeoutError: it was not there in time.
        Exception: whatever it raised; others than ordinary ones are contained (:mod:`soong.shared.core.foreign`).
    """
    try:
        async with limit:
            return await await_foreign(handler)
    except ForeignError as error:
        raise _named(error) from error
    except TimeoutError as error:
        if limit.timeout.expired():
            raise HandlerTimeoutError(seconds or 0.0) from error
        raise


def _named(error: ForeignError) -> Exception:
    match error.original:
        case SystemExit() as left:
            return ExitedError(left.code)
        case asyncio.CancelledError():
            return SelfCancelledError()
        case _:
            return error


async def run_to_end(running: Coroutine[object, object, T], call_state: CallState) -> T:
    """Run what asked not to be cut: an abort meanwhile waits in ``call_state.signal`` until it has ended."""
    task = asyncio.ensure_future(running)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as signal:
            if task.cancelled():
                raise
            call_state.signal = signal


async def too_late_to_abort(work: Awaitable[T]) -> T:
    """Finish the work as :func:`unbroken` does; an abort of this call alone meanwhile changes nothing any more."""
    task = asyncio.ensure_future(work)
    try:
        return await unbroken(task)
    except asyncio.CancelledError:
        if task.cancelled() or not taken_back():
            raise
        return task.result()


def aborted(call_state: CallState, signal: asyncio.CancelledError) -> ToolResult:
    words = str(*signal.args[:1])  # or those of anyio, which name a scope and no reason
    return _aborted(call_state, words if words and "via cancel scope" not in words else "the run was interrupted")


def aborted_by_person(call_state: CallState, reason: str) -> ToolResult:
    """Return the end of a call that was aborted alone: its run continues, and this result is a part of it."""
    return _aborted(call_state, reason, aborted_by=PERSON)


def is_run_aborted(result: ToolResult) -> bool:
    """Say whether a call was cut off because its run was."""
    is_aborted = result.error is not None and result.error.type is ErrorType.ABORTED
    return is_aborted and result.metadata.get("aborted_by") != PERSON


def _aborted(call_state: CallState, reason: str, **facts: Json) -> ToolResult:
    failure = ToolFailure(ErrorType.ABORTED, reason)
    metadata: dict[str, Json] = {"aborted": True, "partial": bool(call_state.partial), "abort_reason": reason, **facts}
    return _with_partial(refusal(call_state.call.id, failure, None, **metadata), call_state.partial)


def timed_out(call_state: CallState, error: HandlerTimeoutError) -> ToolResult:
    failure = ToolFailure(ErrorType.TIMEOUT, str(error), "narrow the call so that it ends sooner")
    return _with_partial(
        refusal(call_state.call.id, failure, None, partial=bool(call_state.partial)), call_state.partial
    )


def _with_partial(result: ToolResult, partial: str) -> ToolResult:
    if not partial:
        return result
    return replace(result, content=(*result.content, TextBlock(f"until then:\n{partial}")))


def withheld(call_state: CallState, result: ToolResult) -> ToolResult:
    """Return the kept part of an allowed sensitive read: its place, not its content (RES-03)."""
    if result.is_error:
        return result
    text = f"[the content of the sensitive {call_state.target.shown} went to the model only]"
    metadata: dict[str, Json] = {"is_withheld": True, "ref": call_state.target.shown}
    return ToolResult(result.tool_call_id, (TextBlock(text),), text, metadata=metadata)


def parsed(arguments: Json) -> Json:
    """Return arguments as a JSON value. A string that holds JSON is parsed first, also when it was encoded twice (S4).
    Raises: ToolError, ``invalid_input``, they are not JSON, or too large or deep to be looked at.
    """
    value = arguments
    try:
        for _ in range(2):
            if isinstance(value, str):
                value = parse_strict(value.strip() or "{}")
    except InvalidJsonError as error:
        raise ToolError(ErrorType.INVALID_INPUT, f"the arguments are not JSON: {error}") from error
    value = {} if value is None else value
    try:
        check_incoming(value, max_chars=MAX_ARGUMENT_CHARS)
    except UnfitError as error:
        raise _refused([Violation("$", error.rule, error.problem)]) from error
    return integral(value)


def validated(definition: ToolDefinition, value: Json, hint: str = "") -> JsonObject:
    """Hold a parsed value to the tool's schema and to its own check; ``hint`` is what its caller should do.

    A value with a clear meaning is repaired first: the input is the same object exactly when nothing was.
    Raises: ToolError, ``invalid_input``, names every path and rule.
    """
    value = repaired(definition.input_schema, value)
    violations = validate(definition.input_schema, value)
    if violations or not isinstance(value, dict):
        raise _refused(violations or [Violation("$", "type", "must be object")], hint)
    problem = _guarded(definition.validate_input, value) if definition.validate_input else None
    if problem:
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)
    return value


def shown_arguments(arguments: Json) -> Json:
    """Return arguments as they may be kept: too large or deep ones are named, not kept."""
    try:
        if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARS:
            return {"left_out": f"{len(arguments)} characters"}
        check_incoming(arguments, max_chars=MAX_ARGUMENT_CHARS)
    except UnfitError as error:
        return {"left_out": error.problem}
    return arguments


def _refused(violations: list[Violation], hint: str = "") -> ToolError:
    details: Json = [{"path": each.path, "rule": each.rule} for each in violations]
    return ToolError(
        ErrorType.INVALID_INPUT, "; ".join(map(str, violations)), hint=hint, details={"violations": details}
    )


def _guarded(check: Callable[[JsonObject], str | None], call_input: JsonObject) -> str | None:
    try:
        verdict: object = call_foreign(check, call_input)
    except Exception as error:  # noqa: BLE001  # foreign code; an input it cannot judge is not accepted
        return f"the input could not be checked: {name_of(error)}"
    if verdict is None or isinstance(verdict, str):
        return verdict
    return f"the input could not be checked: the tool's check gave a {type(verdict).__name__}, not a message or None"
