"""Hooks around a call: Pre before permission, Post after execution, in the order they were given (EXE-02, EXE-13).

Around what an MCP server asks a person during a call there are two of their own (MCP-01.m).

Hooks come from the SDK or the user's configuration, never from the project that is worked on. Owns what several hooks
want together; what one may want is :mod:`soong.shared.tools.hooks.hook`.
"""

from msgspec.structs import replace

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.elicitation import ElicitationAnswer
from soong.shared.tools.hooks.hook import (
    DEFAULT_HOOK_TIMEOUT,
    STRENGTH,
    AnyHook,
    ElicitationHook,
    ElicitationOutcome,
    ElicitationResultHook,
    HookCall,
    HookServices,
    Matcher,
    NamedHook,
    PostHook,
    PostOutcome,
    PreAction,
    PreHook,
    PreOutcome,
    derived_fields,
)
from soong.shared.tools.hooks.run import ask_elicitation, ask_elicitation_result, ask_post, ask_pre
from soong.shared.tools.result import ContentBlock, ToolResult

__all__ = [
    "DEFAULT_HOOK_TIMEOUT",
    "NO_HOOKS",
    "AnyHook",
    "ElicitationHook",
    "ElicitationOutcome",
    "ElicitationResultHook",
    "HookCall",
    "HookServices",
    "Hooks",
    "Matcher",
    "NamedHook",
    "PostHook",
    "PostOutcome",
    "PostResult",
    "PreAction",
    "PreHook",
    "PreOutcome",
    "PreResult",
    "derived_fields",
    "with_context",
]


class PreResult(Value):
    """All Pre hooks of a call together. ``decided_by`` names the hook whose ``action`` and ``reason`` these are."""

    action: PreAction
    reason: str
    call_input: JsonObject
    is_rewritten: bool = False
    context: tuple[str, ...] = ()
    decided_by: str = ""


class PostResult(Value):
    """All Post hooks of a call together. ``content`` is None when no hook replaced it."""

    content: tuple[ContentBlock, ...] | None = None
    context: tuple[str, ...] = ()

    def applied_to(self, result: ToolResult) -> ToolResult:
        """Return the result with what hooks may change of it, and nothing else changed."""
        content = result.content if self.content is None else self.content
        return with_context(replace(result, content=content), self.context)


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
            outcome = await ask_pre(named, call, wires)
            so_far = _joined(so_far, outcome, named.name)
            if so_far.action in ("deny", "stop"):
                break
        return so_far

    async def after(self, call: HookCall, result: ToolResult, wires: HookServices) -> PostResult:
        """Tell the Post hooks; each sees what the one before made of the content.

        One that fails, is too slow or answers nonsense changes nothing and is noted.
        """
        so_far = PostResult()
        for named in self.post:
            if named.on.covers(call.definition):
                outcome = await ask_post(named, call, so_far.applied_to(result), wires)
                content = so_far.content if outcome.content is None else outcome.content
                so_far = PostResult(content, so_far.context + outcome.context)
        return so_far

    async def before_elicitation(self, call: HookCall, wires: HookServices) -> ElicitationOutcome:
        """Ask the hooks before a person is asked. The first yes is the answer, unless a later hook declines.

        A hook that fails, is too slow or answers nonsense declines. After a refusal no other hook is asked.
        """
        so_far = ElicitationOutcome()
        for named in self.elicitation:
            if not named.on.covers(call.definition):
                continue
            outcome = await ask_elicitation(named, call, wires)
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
                answer = await ask_elicitation_result(named, call, answer, wires)
        return answer


NO_HOOKS = Hooks()


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
