"""What permission is asked about one call: its target, traits and risk, from declarations and the input (PER-19).

Everything here looks and changes nothing. What a tool says of itself is foreign code: where it fails, the unsafe side
counts.
"""

from typing import Final, Literal

from soong.shared.core.call_threads import in_thread
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.foreign import call_foreign
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.tools.definition import Target, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import PreResult
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.results.normalize import failure_of
from soong.shared.tools.risk import Classifier, effective_traits, risk_of

REFUSED_BY_TOOL = Verdict(
    is_allowed=False,
    author="rule",
    rule="check_permissions (tool)",
    reason="the tool itself refuses this input",
    error=ErrorType.PERMISSION_DENIED,
)


def refused_by_tool(facts: JsonObject) -> dict[str, Json]:
    """Return what ``permission_decided`` says of a call that its own tool refuses; no gate is asked about it."""
    return {
        "choice": "deny",
        "author": "rule",
        "rule": "check_permissions",
        "source": "tool",
        "reason": REFUSED_BY_TOOL.reason,
        "error": ErrorType.PERMISSION_DENIED.value,
        "facts": facts,
    }


async def target_of(definition: ToolDefinition, context: ToolContext, call_input: JsonObject) -> Target:
    """Compute what a call touches; a tool that looks at files for it does not do so on the loop.

    Raises:
        ToolError: it cannot be determined, or is refused even if permitted.
    """
    if definition.target is None:
        return Target()
    try:
        if not definition.tags.isdisjoint(_LOOKS_AT_FILES):
            return _sound(await in_thread(call_foreign, definition.target, context, call_input))
        return _sound(call_foreign(definition.target, context, call_input))
    except Exception as error:
        failure = failure_of(error)
        raise ToolError(failure.type, failure.message, hint=failure.hint, details=failure.details) from error


def _sound(target: object) -> Target:
    """Hold a target to its types: people are shown it, rules and grants compare it.

    Raises:
        ToolError: ``invalid_output``, it is not a target.
    """
    if not isinstance(target, Target):
        problem = f"the tool says what it touches by a {type(target).__name__}, not a Target"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem)
    wrong = [name for name in _TEXTS if not isinstance(getattr(target, name), str)]
    wrong += [name for name in _FLAGS if not isinstance(getattr(target, name), bool)]
    if wrong or target.kind not in _KINDS:
        problem = f"the tool's target is unsound in {', '.join(wrong) or 'kind'}"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem)
    return target


_LOOKS_AT_FILES: Final = frozenset({"filesystem", "declarative"})
_KINDS: Final = frozenset({"path", "command", "host", "resource", "none"})
_TEXTS: Final = ("kind", "scope", "shown", "host", "precondition", "preview")
_FLAGS: Final = ("is_inside_roots", "is_sensitive")


def gate_call_of(
    definition: ToolDefinition,
    context: ToolContext,
    pre: PreResult,
    target: Target,
    *,
    asks: bool,
    classify: Classifier,
) -> GateCall:
    """Return the question that permission answers.

    Raises:
        ToolError: ``invalid_input``, the input has no digest, or a hook made of a harmless call one that is not.
    """
    call_input = pre.call_input
    traits = effective_traits(definition, call_input)
    try:
        input_digest = digest(call_input)
    except InvalidJsonError as error:
        raise ToolError(ErrorType.INVALID_INPUT, str(error)) from error
    return GateCall(
        identity=context.identity,
        fence=context.fence,
        tool_call_id=context.tool_call_id,
        definition=definition,
        permission_input=call_input,
        input_digest=input_digest,
        traits=traits,
        target=target,
        risk=risk_of(definition, traits, classify),
        cwd=str(context.run_dirs.cwd),
        hook_result="ask" if asks or pre.action == "ask" else "allow" if pre.action == "allow" else "none",
        is_rewritten=pre.is_rewritten,
    )


def own_check(
    definition: ToolDefinition, context: ToolContext, call_input: JsonObject
) -> Literal["ask", "deny"] | None:
    """Return what the tool's own permission check says; it can only tighten."""
    if definition.check_permissions is None:
        return None
    try:
        verdict = call_foreign(definition.check_permissions, context, call_input)
    except Exception:  # noqa: BLE001  # foreign code; a permission check that fails denies
        return "deny"
    return verdict if verdict in ("ask", None) else "deny"


def check_rewrite(definition: ToolDefinition, before: JsonObject, after: JsonObject) -> None:
    """Hold a rewritten input to the place that the call has in its turn (EXE-03).

    Raises:
        ToolError: ``invalid_input``, a call planned in parallel with others would not be safe there any more.
    """
    if definition.traits is None:
        return
    planned, now = effective_traits(definition, before), effective_traits(definition, after)
    if planned.is_concurrency_safe and not now.is_concurrency_safe:
        problem = "a hook rewrote the input into one that may not run in parallel with other calls"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="call it with such an input yourself")
