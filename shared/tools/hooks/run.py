"""One run of one hook: its time, its failures, the soundness of its answer, its event (EXE-13).

A hook is foreign code. Whatever it does ends as an outcome: a Pre hook that fails, is too slow or answers nonsense
denies, a Post hook then changes nothing, and a hook around a server's question declines it. Every run is an event with
its outcome, how long it took and what it changed; cancelling the call cancels the hook.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Final, Generic, Literal, TypeVar

from msgspec.structs import replace

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.foreign import await_foreign, name_of
from soong.shared.core.jsontext import Json, JsonObject, dump, parse_strict
from soong.shared.core.value import Value
from soong.shared.tools.elicitation import ElicitationAnswer
from soong.shared.tools.hooks.hook import (
    ELICITATION_ACTIONS,
    STRENGTH,
    AnyHook,
    ElicitationHook,
    ElicitationOutcome,
    ElicitationResultHook,
    HookCall,
    HookServices,
    NamedHook,
    PostHook,
    PostOutcome,
    PreHook,
    PreOutcome,
)
from soong.shared.tools.result import ArtifactRef, JsonBlock, TextBlock, ToolResult

HOOK_EVENT: Final = "hook_run"
PROGRESS_EVENT: Final = "tool_progress"

MAX_CONTEXT_CHARS: Final = 10_000
"""What one run of a hook may add to the context, reason included. More is refused, not cut: a cut can halve a secret
so that it is no longer recognised as one."""

_SHOWN_CHARS: Final = 2_000

T = TypeVar("T")
Failure = Literal["", "timeout", "failed", "nonsense"]


class HookFailedError(Exception):
    """Raised by a hook of ours that says why it has no answer; foreign ones raise what they like."""


async def ask_pre(named: NamedHook[PreHook], call: HookCall, wires: HookServices) -> PreOutcome:
    """Return what a Pre hook wants; a denial that names it when that cannot be known."""
    own = _own(call, named, wires)
    run = await _run(named, "pre", lambda: named.hook(own), _sound_pre, wires)
    outcome = run.answer or PreOutcome("deny", f"the hook {named.name!r} {run.problem}")
    data: dict[str, Json] = {"outcome": outcome.action, "reason": outcome.reason, "context": len(outcome.context)}
    if outcome.call_input is not None and outcome.call_input != call.call_input:
        data["input_diff"] = _difference(call.call_input, outcome.call_input)
    await run.note(wires, data)
    return outcome


async def ask_post(named: NamedHook[PostHook], call: HookCall, result: ToolResult, wires: HookServices) -> PostOutcome:
    """Return what a Post hook wants; nothing when that cannot be known."""
    own = _own(call, named, wires)
    run = await _run(named, "post", lambda: named.hook(own, result), _sound_post, wires)
    outcome = run.answer or PostOutcome(reason=run.problem)
    word = "none" if outcome.content is None else "replaced"
    await run.note(wires, {"outcome": word, "reason": outcome.reason, "context": len(outcome.context)})
    return outcome


async def ask_elicitation(named: NamedHook[ElicitationHook], call: HookCall, wires: HookServices) -> ElicitationOutcome:
    """Return what a hook wants before the person is asked; a refusal that names it when that cannot be known."""
    own = _own(call, named, wires)
    run = await _run(named, "elicitation", lambda: named.hook(own), _sound_elicitation, wires)
    outcome = run.answer or ElicitationOutcome("decline", reason=f"the hook {named.name!r} {run.problem}")
    data: dict[str, Json] = {"outcome": outcome.action, "reason": outcome.reason}
    if outcome.action == "accept":
        data["content_diff"] = _difference({}, outcome.content or {})
    await run.note(wires, data)
    return outcome


async def ask_elicitation_result(
    named: NamedHook[ElicitationResultHook], call: HookCall, answer: ElicitationAnswer, wires: HookServices
) -> ElicitationAnswer:
    """Return an answer as a hook leaves it. One that fails declines, because nothing has been sent yet."""
    own = _own(call, named, wires)
    given = answer.content
    told = replace(answer, content=None if given is None else _detached(given))
    run = await _run(named, "elicitation_result", lambda: named.hook(own, told), _sound_elicitation_result, wires)
    outcome = run.answer or ElicitationOutcome("decline", reason=f"the hook {named.name!r} {run.problem}")
    is_replaced = outcome.content is not None and answer.action == "accept" and outcome.action == "none"
    data: dict[str, Json] = {"outcome": "replaced" if is_replaced else outcome.action, "reason": outcome.reason}
    if is_replaced:
        data["content_diff"] = _difference(given or {}, outcome.content or {})
    await run.note(wires, data)
    if answer.action != "accept":
        return answer
    if outcome.action == "decline":
        return ElicitationAnswer("decline", reason=outcome.reason or f"the hook {named.name!r} declined the answer")
    return replace(answer, content=outcome.content) if is_replaced else answer


def _own(call: HookCall, named: NamedHook[AnyHook], wires: HookServices) -> HookCall:
    """Return the call as one hook gets it, which may change its copy and say how far it is."""
    return replace(call, call_input=_detached(call.call_input), progress=_HookProgress(named.name, wires))


class _HookRun(Value, Generic[T]):
    """How a hook's run ended: with a sound answer, or with a problem that completes "the hook 'x' …"."""

    hook: str
    stage: str
    duration_ms: int
    answer: T | None = None
    failure: Failure = ""
    problem: str = ""

    async def note(self, wires: HookServices, data: JsonObject) -> None:
        event: dict[str, Json] = {"hook": self.hook, "stage": self.stage, **data, "duration_ms": self.duration_ms}
        if self.failure:
            event["failure"] = self.failure
        await wires.note(HOOK_EVENT, event)


async def _run(
    named: NamedHook[AnyHook],
    stage: str,
    hook: Callable[[], Awaitable[T]],
    sound: Callable[[T], T],
    wires: HookServices,
) -> _HookRun[T]:
    began_s = wires.clock.monotonic_s()
    answer: T | None = None
    failure: Failure = ""
    problem = ""
    limit = asyncio.timeout(named.timeout.total_seconds())
    try:
        async with limit:
            answer = sound(await await_foreign(hook))
    except asyncio.CancelledError:
        cancelled: _HookRun[T] = _HookRun(named.name, stage, _since(began_s, wires))
        await cancelled.note(wires, {"outcome": "cancelled"})
        raise
    except InvalidHookResultError as error:
        failure, problem = "nonsense", f"gave no usable answer: {error}"
    except HookFailedError as error:
        failure, problem = "failed", str(error)
    except Exception as error:  # noqa: BLE001  # a hook is foreign code; its failure is the call's denial
        failure, problem = "failed", f"failed with {name_of(error)}"
    if limit.expired():
        answer, failure, problem = None, "timeout", f"gave no answer in {named.timeout.total_seconds():g} s"
    return _HookRun(named.name, stage, _since(began_s, wires), answer, failure, problem)


def _since(began_s: float, wires: HookServices) -> int:
    return int((wires.clock.monotonic_s() - began_s) * 1000)


class _HookProgress(Value):
    """A hook's progress as events of the call."""

    hook: str
    wires: HookServices

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        event: dict[str, Json] = {"hook": self.hook, "message": message, "data": dict(data or {})}
        await self.wires.note(PROGRESS_EVENT, event)


class InvalidHookResultError(Exception):
    """An answer that is none of those a hook can give."""


def _sound_pre(outcome: PreOutcome) -> PreOutcome:
    """Return the outcome with an input of our own, which the hook can no longer change. Types are not believed."""
    answer: object = outcome
    if not isinstance(answer, PreOutcome):
        raise InvalidHookResultError(f"{type(answer).__name__} is not a PreOutcome")
    if answer.action not in STRENGTH:
        raise InvalidHookResultError(f"there is no action {str(answer.action)[:80]!r}")
    _check_words(answer.reason, answer.context)
    if answer.call_input is None:
        return answer
    return replace(answer, call_input=_object(answer.call_input))


def _sound_post(outcome: PostOutcome) -> PostOutcome:
    answer: object = outcome
    if not isinstance(answer, PostOutcome):
        raise InvalidHookResultError(f"{type(answer).__name__} is not a PostOutcome")
    _check_words(answer.reason, answer.context)
    blocks: object = answer.content
    if blocks is None:
        return answer
    if not isinstance(blocks, tuple) or not all(isinstance(one, TextBlock | JsonBlock | ArtifactRef) for one in blocks):
        raise InvalidHookResultError("its content is not a tuple of content blocks")
    return answer


def _sound_elicitation(outcome: ElicitationOutcome) -> ElicitationOutcome:
    answer: object = outcome
    if not isinstance(answer, ElicitationOutcome):
        raise InvalidHookResultError(f"{type(answer).__name__} is not an ElicitationOutcome")
    if answer.action not in ELICITATION_ACTIONS:
        raise InvalidHookResultError(f"there is no action {str(answer.action)[:80]!r}")
    _check_words(answer.reason, ())
    return answer if answer.content is None else replace(answer, content=_object(answer.content, "content"))


def _sound_elicitation_result(outcome: ElicitationOutcome) -> ElicitationOutcome:
    answer = _sound_elicitation(outcome)
    if answer.action == "accept":
        raise InvalidHookResultError("after the answer there is no action 'accept'")
    return answer


def _check_words(reason: object, context: object) -> None:
    if not isinstance(reason, str) or not isinstance(context, tuple):
        raise InvalidHookResultError("its reason is not a text, or its context is not a tuple")
    texts = [text for text in (reason, *context) if isinstance(text, str)]
    if len(texts) <= len(context):
        raise InvalidHookResultError("its context holds something that is not a text")
    if sum(map(len, texts)) > MAX_CONTEXT_CHARS:
        raise InvalidHookResultError(f"its reason and context have more than {MAX_CONTEXT_CHARS} characters")


def _object(value: object, what: str = "input") -> JsonObject:
    try:
        copy = parse_strict(dump(value))
    except (InvalidJsonError, TypeError, ValueError, RecursionError) as error:
        raise InvalidHookResultError(f"its {what} is not JSON: {error}") from error
    if not isinstance(copy, dict):
        raise InvalidHookResultError(f"its {what} is not an object")
    return copy


def _detached(value: JsonObject) -> JsonObject:
    """Return a copy that a hook may change without changing the call."""
    return deepcopy(dict(value))


def _difference(before: JsonObject, after: JsonObject) -> dict[str, Json]:
    """Return the top-level fields that changed, each as [before, after]; None stands for an absent one."""
    names = sorted(before.keys() | after.keys())
    changed = [name for name in names if before.get(name) != after.get(name) or (name in before) != (name in after)]
    return {name: [_shown(before.get(name)), _shown(after.get(name))] for name in changed}


def _shown(value: Json) -> Json:
    """Return a value as an event shows it: a large one by size and digest, so that nothing is cut."""
    try:
        text = dump(value)
    except ValueError:  # NaN in arguments that never were JSON text; the call ends as invalid
        return repr(value)[:_SHOWN_CHARS]
    if len(text) <= _SHOWN_CHARS:
        return value
    return {"chars": len(text), "sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()}
