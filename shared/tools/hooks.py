"""Hooks around a call: Pre before permission, Post after execution (EXE-02, EXE-13).

A Pre hook sees the validated input and may deny, rewrite, force an ask, add context or stop the run; what it says about
allowing replaces nobody's consent. A Post hook may add context or replace what the model sees, never whether the call
succeeded. Hooks come from the SDK or the user's configuration, never from the project that is worked on.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

from shared.identity import RunIdentity
from shared.jsontext import Json, JsonObject
from shared.tools.definition import ToolDefinition
from shared.tools.naming import name_matches
from shared.tools.result import ContentBlock, ToolResult

DEFAULT_HOOK_TIMEOUT = timedelta(seconds=60)

PreAction: TypeAlias = Literal["none", "allow", "ask", "deny", "stop"]


@dataclass(frozen=True, slots=True)
class HookCall:
    """What a hook is told. ``call_input`` is the validated input with what earlier hooks made of it."""

    identity: RunIdentity
    tool_call_id: str
    definition: ToolDefinition
    call_input: JsonObject


@dataclass(frozen=True, slots=True)
class PreOutcome:
    """What a Pre hook wants. ``call_input`` replaces the input and is validated again; None leaves it as it is."""

    action: PreAction = "none"
    reason: str = ""
    call_input: JsonObject | None = None
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PostOutcome:
    """What a Post hook wants. ``content`` replaces what the model gets."""

    content: tuple[ContentBlock, ...] | None = None
    context: tuple[str, ...] = ()


class PreHook(Protocol):
    async def __call__(self, call: HookCall, /) -> PreOutcome: ...


class PostHook(Protocol):
    async def __call__(self, call: HookCall, result: ToolResult, /) -> PostOutcome: ...


@dataclass(frozen=True, slots=True)
class Matcher:
    """Which tools a hook is about: a glob over the canonical name and tags that must all be there."""

    pattern: str = "*"
    tags: frozenset[str] = frozenset()

    def covers(self, tool: ToolDefinition) -> bool:
        return self.tags <= tool.tags and name_matches(self.pattern, tool.name)


@dataclass(frozen=True, slots=True)
class NamedPreHook:
    name: str
    hook: PreHook
    on: Matcher = Matcher()
    timeout: timedelta = DEFAULT_HOOK_TIMEOUT


@dataclass(frozen=True, slots=True)
class NamedPostHook:
    name: str
    hook: PostHook
    on: Matcher = Matcher()
    timeout: timedelta = DEFAULT_HOOK_TIMEOUT


@dataclass(frozen=True, slots=True)
class PreResult:
    """All Pre hooks of a call together: deny and stop beat ask, ask beats allow. ``notes`` is one event a hook run."""

    action: PreAction
    reason: str
    call_input: JsonObject
    is_rewritten: bool = False
    context: tuple[str, ...] = ()
    notes: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class PostResult:
    result: ToolResult
    notes: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a run, asked in this order. Built from configuration when the run starts."""

    pre: tuple[NamedPreHook, ...] = ()
    post: tuple[NamedPostHook, ...] = ()

    async def before(self, call: HookCall) -> PreResult:
        """Ask the Pre hooks one after another; each sees what the one before made of the input.

        A hook that fails or is too slow denies. After a denial or a stop no further hook is asked.
        """
        so_far = PreResult("none", "", call.call_input)
        for named in self.pre:
            if not named.on.covers(call.definition):
                continue
            outcome = await _ask_pre(named, replace(call, call_input=so_far.call_input))
            so_far = _joined(so_far, outcome, named.name)
            if so_far.action in ("deny", "stop"):
                break
        return so_far

    async def after(self, call: HookCall, result: ToolResult) -> PostResult:
        """Ask the Post hooks; one that fails or is too slow changes nothing and is noted."""
        notes: list[JsonObject] = []
        for named in self.post:
            if not named.on.covers(call.definition):
                continue
            outcome, failure = await _ask_post(named, call, result)
            notes.append({"hook": named.name, "stage": "post", "outcome": failure or _post_word(outcome)})
            metadata = {**result.metadata, **_context(result.metadata, outcome.context)}
            content = result.content if outcome.content is None else outcome.content
            result = replace(result, content=content, metadata=metadata)
        return PostResult(result, tuple(notes))


NO_HOOKS = Hooks()


async def _ask_pre(named: NamedPreHook, call: HookCall) -> PreOutcome:
    try:
        async with asyncio.timeout(named.timeout.total_seconds()):
            return await named.hook(call)
    except TimeoutError:
        return PreOutcome("deny", f"the hook {named.name!r} gave no answer in {named.timeout.total_seconds():g} s")
    except Exception as error:  # noqa: BLE001  # a hook is foreign code; one that fails denies (EXE-13)
        return PreOutcome("deny", f"the hook {named.name!r} failed with {type(error).__name__}")


async def _ask_post(named: NamedPostHook, call: HookCall, result: ToolResult) -> tuple[PostOutcome, str]:
    try:
        async with asyncio.timeout(named.timeout.total_seconds()):
            return await named.hook(call, result), ""
    except TimeoutError:
        return PostOutcome(), "timeout"
    except Exception as error:  # noqa: BLE001  # a hook is foreign code; the call has happened and its result stands
        return PostOutcome(), f"failed with {type(error).__name__}"


_STRENGTH: Sequence[PreAction] = ("none", "allow", "ask", "deny", "stop")


def _joined(so_far: PreResult, outcome: PreOutcome, hook: str) -> PreResult:
    call_input = so_far.call_input if outcome.call_input is None else outcome.call_input
    changed = call_input != so_far.call_input
    action = max(so_far.action, outcome.action, key=_STRENGTH.index)
    note: dict[str, Json] = {"hook": hook, "stage": "pre", "outcome": outcome.action, "reason": outcome.reason}
    if changed:
        note["input_diff"] = _difference(so_far.call_input, call_input)
    return PreResult(
        action=action,
        reason=outcome.reason if action == outcome.action and outcome.reason else so_far.reason,
        call_input=call_input,
        is_rewritten=so_far.is_rewritten or changed,
        context=so_far.context + outcome.context,
        notes=(*so_far.notes, note),
    )


def _difference(before: JsonObject, after: JsonObject) -> dict[str, Json]:
    """Return the top-level fields that changed, each as [before, after]; None stands for an absent one."""
    names = sorted(before.keys() | after.keys())
    return {name: [before.get(name), after.get(name)] for name in names if before.get(name) != after.get(name)}


def _context(metadata: object, context: tuple[str, ...]) -> dict[str, Json]:
    before = metadata.get("hook_context", ()) if isinstance(metadata, dict) else ()
    return {"hook_context": [*before, *context]} if context else {}


def _post_word(outcome: PostOutcome) -> str:
    return "none" if outcome.content is None else "replaced"
