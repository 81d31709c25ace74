"""Hooks around a call: Pre before permission, Post after execution, in the order they were given (EXE-02, EXE-13).

A question of an MCP server to a person during a call has two hooks of its own (MCP-01.m). Hooks come from the SDK or
the user's configuration, never from the project that is worked on.

A hook is foreign code. Every run of it ends as an outcome: a Pre hook that fails, is too slow or answers nonsense
denies, a Post hook then changes nothing, and a hook around a server's question declines it. Every run is an event with
its outcome, how long it took and what it changed; cancelling the call cancels the hook.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.foreign import await_foreign, name_of
from soong.shared.core.jsontext import Json, JsonObject, dump, parse_strict
from soong.shared.core.value import Value
from soong.shared.tools.definition import ElicitationAnswer, Progress
from soong.shared.tools.hooks.hook import (
    ELICITATION_ACTIONS,
    REGISTERED,
    STRENGTH,
    ElicitationHook,
    ElicitationOutcome,
    ElicitationResultHook,
    HookCall,
    HookServices,
    NamedHook,
    PostHook,
    PostOutcome,
    PreAction,
    PreHook,
    PreOutcome,
)
from soong.shared.tools.result import ArtifactRef, JsonBlock, TextBlock, ToolResult

PROGRESS_EVENT: Final = "tool_progress"

MAX_CONTEXT_CHARS: Final = 10_000
"""Maximum text that one run of a hook adds to the context, reason included. More is refused, not cut: a cut can halve a
secret so that it is no longer recognised as one."""

_SHOWN_CHARS: Final = 2_000

T = TypeVar("T", PreOutcome, PostOutcome, ElicitationOutcome)


class HookFailedError(Exception):
    """Raised by a hook of ours, with the reason for no answer; foreign ones raise what they like."""


class InvalidHookResultError(Exception):
    """An answer that is none of those a hook can give."""


class PreResult(Value):
    """All Pre hooks of a call together. ``decided_by`` names the hook whose ``action`` and ``reason`` these are."""

    action: PreAction
    reason: str
    call_input: JsonObject
    is_rewritten: bool = False
    context: tuple[str, ...] = ()
    decided_by: str = ""


class Hooks(Value):
    """The hooks of a run, asked in this order. Put together when the process starts; ``a + b`` asks a's first."""

    pre: tuple[NamedHook[PreHook], ...] = ()
    post: tuple[NamedHook[PostHook], ...] = ()
    elicitation: tuple[NamedHook[ElicitationHook], ...] = ()
    elicitation_result: tuple[NamedHook[ElicitationResultHook], ...] = ()

    def __add__(self, other: "Hooks") -> "Hooks":
        return Hooks(
            self.pre + other.pre,
            self.post + other.post,
            self.elicitation + other.elicitation,
            self.elicitation_result + other.elicitation_result,
        )

    async def before(self, call: HookCall, wires: HookServices) -> PreResult:
        """Ask the Pre hooks one after another; each sees what the one before made of the input.

        A hook that fails, is too slow or answers nonsense denies. After a denial or a stop no other hook is asked.
        """
        so_far = PreResult("none", "", call.call_input)
        covering = [named for named in self.pre if named.on.covers(call.definition)]
        derived_from: JsonObject | None = None
        for named in covering:
            if derived_from is not so_far.call_input:
                derived_from = so_far.call_input
                call = replace(call, call_input=derived_from, derived=await wires.derive(derived_from))
            outcome = await _asked(named, _PRE, call, wires)
            so_far = _joined(so_far, outcome, named.name)
            if so_far.action in ("deny", "stop"):
                break
        return so_far

    async def after(self, call: HookCall, result: ToolResult, wires: HookServices) -> PostOutcome:
        """Tell the Post hooks; each sees what the one before made of the content.

        One that fails, is too slow or answers nonsense changes nothing and is noted.
        """
        so_far = PostOutcome()
        for named in self.post:
            if named.on.covers(call.definition):
                outcome = await _asked(named, _POST, call, wires, applied(so_far, result))
                content = so_far.content if outcome.content is None else outcome.content
                so_far = PostOutcome(content, so_far.context + outcome.context)
        return so_far

    async def before_elicitation(self, call: HookCall, wires: HookServices) -> ElicitationOutcome:
        """Ask the hooks before a person is asked. The first yes is the answer, unless a later hook declines.

        A hook that fails, is too slow or answers nonsense declines. After a refusal no other hook is asked.
        """
        so_far = ElicitationOutcome()
        for named in self.elicitation:
            if not named.on.covers(call.definition):
                continue
            outcome = await _asked(named, _ELICITATION, call, wires)
            about = outcome.reason or f"the hook {named.name!r} answered {outcome.action}"
            if outcome.action == "decline" or (outcome.action == "accept" and so_far.action == "none"):
                so_far = replace(outcome, reason=about)
            if so_far.action == "decline":
                break
        return so_far

    async def after_elicitation(
        self, call: HookCall, answer: ElicitationAnswer, wires: HookServices
    ) -> ElicitationAnswer:
        """Return an answer as the hooks leave it, each after the other. All see it; none makes a yes of a no."""
        for named in self.elicitation_result:
            if named.on.covers(call.definition):
                answer = await _answer_after(named, call, answer, wires)
        return answer


NO_HOOKS = Hooks()


def registered_hooks() -> Hooks:
    """Return what is registered in this process now."""
    return Hooks(**{stage: tuple(hooks.values()) for stage, hooks in REGISTERED.items()})


def applied(outcome: PostOutcome, result: ToolResult) -> ToolResult:
    """Return the result with what hooks may change of it, and nothing else changed."""
    content = result.content if outcome.content is None else outcome.content
    return with_context(replace(result, content=content), outcome.context)


def with_context(result: ToolResult, context: tuple[str, ...]) -> ToolResult:
    """Return the result with more hook context, which the model reads after the content."""
    if not context:
        return result
    before = result.metadata.get("hook_context")
    earlier = before if isinstance(before, list | tuple) else ()
    return replace(result, metadata={**result.metadata, "hook_context": [*earlier, *context]})


def _joined(so_far: PreResult, outcome: PreOutcome, hook: str) -> PreResult:
    is_changed = outcome.call_input is not None and outcome.call_input != so_far.call_input
    is_stronger = STRENGTH.index(outcome.action) > STRENGTH.index(so_far.action)
    return PreResult(
        action=outcome.action if is_stronger else so_far.action,
        reason=outcome.reason if is_stronger else so_far.reason,
        call_input=outcome.call_input if is_changed and outcome.call_input is not None else so_far.call_input,
        is_rewritten=so_far.is_rewritten or is_changed,
        context=so_far.context + outcome.context,
        decided_by=hook if is_stronger else so_far.decided_by,
    )


class _Stage(Value, Generic[T]):
    """One kind of hooks. ``sound`` checks an answer, whose types are not believed; ``unknown`` is what counts where the
    answer cannot be known, by the hook's name and its problem; ``facts`` are those of its event.
    """

    name: str
    sound: Callable[[object], T]
    unknown: Callable[[str, str], T]
    facts: Callable[..., JsonObject]


async def _asked(named: NamedHook[Any], stage: _Stage[T], call: HookCall, services: HookServices, *given: object) -> T:
    """Run one hook, which gets its own copy of the call, and return what it wants. Its run is an event."""
    own = replace(call, call_input=deepcopy(dict(call.call_input)), progress=_HookProgress(named.name, services))
    began_s = services.clock.monotonic_s()

    async def note(data: JsonObject) -> None:
        elapsed_ms = int((services.clock.monotonic_s() - began_s) * 1000)
        event: dict[str, Json] = {"hook": named.name, "stage": stage.name, **data, "duration_ms": elapsed_ms}
        await services.note("hook_run", event)

    answer: T | None = None
    failure, problem = "", ""
    limit = asyncio.timeout(named.timeout.total_seconds())
    try:
        async with limit:
            answer = stage.sound(await await_foreign(lambda: named.hook(own, *given)))
    except asyncio.CancelledError:
        await note({"outcome": "cancelled"})
        raise
    except InvalidHookResultError as error:
        failure, problem = "nonsense", f"gave no usable answer: {error}"
    except HookFailedError as error:
        failure, problem = "failed", str(error)
    except Exception as error:  # noqa: BLE001  # a hook is foreign code; its failure is the call's denial
        failure, problem = "failed", f"failed with {name_of(error)}"
    if limit.expired():
        answer, failure, problem = None, "timeout", f"gave no answer in {named.timeout.total_seconds():g} s"
    outcome = stage.unknown(named.name, problem) if answer is None else answer
    failed: JsonObject = {"failure": failure} if failure else {}
    await note({**stage.facts(outcome, call, *given), **failed})
    return outcome


async def _answer_after(
    named: NamedHook[ElicitationResultHook], call: HookCall, answer: ElicitationAnswer, services: HookServices
) -> ElicitationAnswer:
    """Return an answer as a hook leaves it. One that fails declines, because nothing has been sent yet."""
    told = replace(answer, content=None if answer.content is None else deepcopy(dict(answer.content)))
    outcome = await _asked(named, _ELICITATION_RESULT, call, services, told)
    if answer.action != "accept":
        return answer
    if outcome.action == "decline":
        return ElicitationAnswer("decline", reason=outcome.reason or f"the hook {named.name!r} declined the answer")
    return replace(answer, content=outcome.content) if _replaces(outcome, answer) else answer


def _replaces(outcome: ElicitationOutcome, answer: ElicitationAnswer) -> bool:
    return outcome.content is not None and answer.action == "accept" and outcome.action == "none"


@dataclass(slots=True)
class _HookProgress(Progress):
    """A hook's progress as events of the call."""

    hook: str
    services: HookServices

    async def report(self, message: str, data: JsonObject | None = None) -> None:
        event: dict[str, Json] = {"hook": self.hook, "message": message, "data": dict(data or {})}
        await self.services.note(PROGRESS_EVENT, event)


def _sound(answer: object, kind: type[T], actions: Collection[str] = ()) -> T:
    if not isinstance(answer, kind):
        raise InvalidHookResultError(f"{type(answer).__name__} is not a {kind.__name__}")
    action: object = getattr(answer, "action", "")
    if actions and action not in actions:
        raise InvalidHookResultError(f"there is no action {str(action)[:80]!r}")
    reason: object = answer.reason
    context: object = getattr(answer, "context", ())
    if not isinstance(reason, str) or not isinstance(context, tuple):
        raise InvalidHookResultError("its reason is not a text, or its context is not a tuple")
    if not all(isinstance(text, str) for text in context):
        raise InvalidHookResultError("its context holds something that is not a text")
    if len(reason) + sum(map(len, context)) > MAX_CONTEXT_CHARS:
        raise InvalidHookResultError(f"its reason and context have more than {MAX_CONTEXT_CHARS} characters")
    return answer


def _sound_pre(answer: object) -> PreOutcome:
    """Return the outcome with an input of our own, which the hook can no longer change."""
    outcome = _sound(answer, PreOutcome, STRENGTH)
    return outcome if outcome.call_input is None else replace(outcome, call_input=_object(outcome.call_input, "input"))


def _sound_post(answer: object) -> PostOutcome:
    outcome = _sound(answer, PostOutcome)
    blocks: object = outcome.content
    is_sound = isinstance(blocks, tuple) and all(isinstance(one, TextBlock | JsonBlock | ArtifactRef) for one in blocks)
    if blocks is not None and not is_sound:
        raise InvalidHookResultError("its content is not a tuple of content blocks")
    return outcome


def _sound_elicitation(answer: object) -> ElicitationOutcome:
    outcome = _sound(answer, ElicitationOutcome, ELICITATION_ACTIONS)
    return outcome if outcome.content is None else replace(outcome, content=_object(outcome.content, "content"))


def _sound_elicitation_result(answer: object) -> ElicitationOutcome:
    outcome = _sound_elicitation(answer)
    if outcome.action == "accept":
        raise InvalidHookResultError("after the answer there is no action 'accept'")
    return outcome


def _object(value: object, what: str) -> JsonObject:
    try:
        copy = parse_strict(dump(value))
    except (InvalidJsonError, TypeError, ValueError, RecursionError) as error:
        raise InvalidHookResultError(f"its {what} is not JSON: {error}") from error
    if not isinstance(copy, dict):
        raise InvalidHookResultError(f"its {what} is not an object")
    return copy


def _pre_facts(outcome: PreOutcome, call: HookCall) -> JsonObject:
    facts: dict[str, Json] = {"outcome": outcome.action, "reason": outcome.reason, "context": len(outcome.context)}
    if outcome.call_input is not None and outcome.call_input != call.call_input:
        facts["input_diff"] = _difference(call.call_input, outcome.call_input)
    return facts


def _post_facts(outcome: PostOutcome, _call: HookCall, _result: ToolResult) -> JsonObject:
    word = "none" if outcome.content is None else "replaced"
    return {"outcome": word, "reason": outcome.reason, "context": len(outcome.context)}


def _elicitation_facts(
    outcome: ElicitationOutcome, _call: HookCall, answer: ElicitationAnswer | None = None
) -> JsonObject:
    is_replaced = answer is not None and _replaces(outcome, answer)
    facts: dict[str, Json] = {"outcome": "replaced" if is_replaced else outcome.action, "reason": outcome.reason}
    if is_replaced or outcome.action == "accept":
        facts["content_diff"] = _difference((answer and answer.content) or {}, outcome.content or {})
    return facts


def _declined(hook: str, problem: str) -> ElicitationOutcome:
    return ElicitationOutcome("decline", reason=f"the hook {hook!r} {problem}")


_PRE: Final = _Stage(
    "pre", _sound_pre, lambda hook, problem: PreOutcome("deny", f"the hook {hook!r} {problem}"), _pre_facts
)
_POST: Final = _Stage("post", _sound_post, lambda _hook, problem: PostOutcome(reason=problem), _post_facts)
_ELICITATION: Final = _Stage("elicitation", _sound_elicitation, _declined, _elicitation_facts)
_ELICITATION_RESULT: Final = _Stage("elicitation_result", _sound_elicitation_result, _declined, _elicitation_facts)


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
