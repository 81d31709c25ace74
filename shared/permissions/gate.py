"""The two ends of a question as pure functions: the request made of a call, and the check of the decision on it.

The waiting between them belongs to the caller (``soong.shared.agents.runtime.permission_gate``).
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ForgedError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.permissions.policy import Policy, PolicyVerdict
from soong.shared.permissions.request import Choice, Decision, PermissionRequest
from soong.shared.permissions.rules import CallFacts, Effect, offered_scope
from soong.shared.permissions.signing import prove
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.definition import Risk, Target
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType

MAX_SHOWN_CHARS = 4_000
"""Longer texts of an argument summary, target or place are cut, with a mark for the length of the rest."""
MAX_PREVIEW_CHARS = 32_000
MAX_UNKNOWN_EFFECTS = 20
MAX_ITEMS = 100
MAX_DEPTH = 8


def request_of(
    call: GateCall,
    policy: Policy,
    verdict: PolicyVerdict,
    *,
    token: str,
    redactor: Redactor,
    home: str,
    now_us: int,
    env: Sequence[str] = (),
    unknown_effects: Sequence[JsonObject] = (),
) -> PermissionRequest:
    """Make the question of a call that the policy wants asked, redacted for people, bound to the real input.

    ``env`` names the variables that programs of the run get; only a command is asked for with them. Only the last
    ``unknown_effects`` of the run are shown.
    """
    facts = CallFacts.of(call)
    target = call.target
    summary = _summary(redactor.mapping(call.permission_input), MAX_DEPTH)
    scope = scope_of(call, policy, home)  # no grant is offered for one with a secret
    request = PermissionRequest(
        id=new_id("req"),
        identity=call.identity,
        tool_call_id=call.tool_call_id,
        tool=call.definition.name,
        permission=str(call.permission),
        tags=tuple(sorted(facts.tags)),
        arguments=summary if isinstance(summary, Mapping) else {},
        input_digest=call.input_digest,
        target_kind=target.kind,
        scope=scope if redactor.text(scope) == scope else "",
        shown=_shown(redactor.text(target.shown)),
        precondition=target.precondition,
        cwd=_shown(redactor.text(call.cwd)),
        host=target.host,
        env=tuple(env) if target.kind == "command" else (),
        is_dangerous=facts.is_dangerous,
        risk=call.risk.name.lower(),
        risk_summary=verdict.reason,
        preview=_shown(redactor.text(target.preview), MAX_PREVIEW_CHARS),
        hook_result=call.hook_result,
        suggested=Choice.DENY if facts.is_dangerous or call.risk is Risk.CRITICAL else Choice.ALLOW_ONCE,
        created_us=now_us,
        fence=call.fence,
        is_outward=facts.is_outward,
        unknown_effects=tuple(redactor.mapping(entry) for entry in unknown_effects[-MAX_UNKNOWN_EFFECTS:]),
    )
    return replace(request, proof=prove(token, request))


def scope_of(call: GateCall, policy: Policy, home: str) -> str:
    """Return what a session grant for this call would cover; empty where none may be given (PER-08, PER-20)."""
    if policy.asks_each_time(CallFacts.of(call)):
        return ""
    target = call.target
    if target.is_sensitive and target.kind == "path" and target.scope:
        # A yes to one key is no yes to the other keys of its folder.
        target = replace(target, scope=target.shown)
    return offered_scope(target, home)


def facts_of(request: PermissionRequest) -> CallFacts:
    """Return what a policy may know of a request; for the owner, who looks at its deny rules again."""
    kind = request.target_kind
    target = Target(
        kind=kind if kind in {"path", "command", "host", "resource"} else "none",  # type: ignore[arg-type]  # just checked
        scope=request.scope,
        shown=request.shown,
        host=request.host,
    )
    return CallFacts(
        tool=request.tool,
        tags=frozenset(request.tags),
        is_read=False,
        is_dangerous=request.is_dangerous,
        is_open_world=request.is_outward or "network" in request.tags,
        risk=Risk[request.risk.upper()] if request.risk.upper() in Risk.__members__ else Risk.CRITICAL,
        target=target,
        hook_asks=True,
        step=request.identity.step_key,
    )


def check_binding(decision: Decision, request: PermissionRequest, *, now_us: int) -> Verdict:
    """Turn a decision whose signature holds into the verdict on the call that ``request`` was made of.

    ``request`` is the question as this call would ask it now, under the id of the question that was decided, so that a
    decision for another input, scope or state of the target does not fit.
    Raises: ForgedError, it was signed for something else.
    """
    bound = {
        "request_id": request.id,
        "session_id": request.identity.session_id,
        "run_id": request.identity.run_id,
        "tool_call_id": request.tool_call_id,
        "tool": request.tool,
        "input_digest": request.input_digest,
    }
    wrong = [name for name, value in bound.items() if getattr(decision, name) != value]
    if wrong:
        raise ForgedError(f"decision {decision.id!r} was made for another {', '.join(wrong)}", what="foreign_decision")
    if decision.error is not None or not decision.choice.is_allowed:
        error = decision.error or ErrorType.PERMISSION_DENIED
        return replace(_refused(error, decision.reason, decision), author=decision.author)
    if has_expired(decision, now_us=now_us):
        return stale("the permission given has expired unused; call again for a new question", decision)
    if decision.precondition != request.precondition:
        changed = "the target has changed since it was shown; look at it and call again"
        return _refused(ErrorType.PATH_CONFLICT, changed, decision)
    if decision.scope != request.scope:
        return stale("the permission was given for another scope; call again for a new question", decision)
    rule = f"grant {decision.tool}:{decision.scope}" if decision.author == "grant" else ""
    return Verdict(is_allowed=True, author=decision.author, rule=rule, reason=decision.reason, decision_id=decision.id)


def has_expired(decision: Decision, *, now_us: int) -> bool:
    """Say whether a permission came too late to be used; a refusal never does."""
    is_refusal = decision.error is not None or not decision.choice.is_allowed
    return not is_refusal and decision.expires_us <= now_us


def verdict_of_policy(verdict: PolicyVerdict) -> Verdict:
    """Return the gate's verdict when the policy alone allows or denies."""
    is_allowed = verdict.effect is Effect.ALLOW
    return Verdict(
        is_allowed=is_allowed,
        author="rule",
        rule=f"{verdict.rule} ({verdict.source})",
        reason=verdict.reason,
        error=None if is_allowed else verdict.error or ErrorType.PERMISSION_DENIED,
    )


def answered_by_hook() -> Verdict:
    """Return the verdict on a question of a call that a hook has answered and the policy does not refuse."""
    return Verdict(is_allowed=True, author="system", reason="a hook has answered it, and no rule refuses it")


def stale(reason: str, decision: Decision | None = None) -> Verdict:
    """Return the verdict on a decision that does not (any longer) fit its call."""
    return _refused(ErrorType.PERMISSION_STALE, reason, decision)


def withdrawn(reason: str) -> Verdict:
    """Return the verdict when the question was closed without a decision."""
    return _refused(ErrorType.PERMISSION_WITHDRAWN, reason)


def _refused(error: ErrorType, reason: str, decision: Decision | None = None) -> Verdict:
    decision_id = decision.id if decision is not None else ""
    return Verdict(is_allowed=False, author="system", reason=reason, decision_id=decision_id, error=error)


def _summary(value: Json, depth: int) -> Json:
    """Return a value small enough to be read, every cut marked."""
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, Mapping):
        if depth == 0:
            return f"… ({len(value)} entries)"
        kept = {_shown(key): _summary(item, depth - 1) for key, item in list(value.items())[:MAX_ITEMS]}
        return kept if len(value) <= MAX_ITEMS else {**kept, "…": f"{len(value) - MAX_ITEMS} more entries"}
    if isinstance(value, list | tuple):
        if depth == 0:
            return f"… ({len(value)} items)"
        items = [_summary(item, depth - 1) for item in value[:MAX_ITEMS]]
        return items if len(value) <= MAX_ITEMS else [*items, f"… ({len(value) - MAX_ITEMS} more items)"]
    return value


def _shown(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """Return text that every store takes (no lone surrogate, no NUL), cut to a length a person can read."""
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean) - limit} more characters)"


def asked(request: PermissionRequest, verdict: PolicyVerdict, call: GateCall, redactor: Redactor) -> NewEvent:
    """Return the event of a question, with its rule and its facts. A call changed by hooks is in no node of the run:
    the question may have only a summary of it, the event has all of it, without secrets.
    """
    data: dict[str, Json] = {
        "request_id": request.id,
        "tool_call_id": request.tool_call_id,
        "tool": request.tool,
        "scope": request.scope,
        "shown": request.shown,
        "risk": request.risk,
        "rule": f"{verdict.rule} ({verdict.source})",
        "reason": verdict.reason,
        "facts": redactor.mapping(call.facts()),
    }
    if call.is_rewritten and (whole := redactor.mapping(call.permission_input)) != request.arguments:
        data["input"] = whole
    return NewEvent(EventType.PERMISSION_REQUESTED, data, request.created_us)


def settled(call: GateCall, verdict: PolicyVerdict, redactor: Redactor) -> dict[str, Json]:
    """Return the data of ``permission_decided`` for a call that the policy allowed or denied by itself."""
    return {
        "tool_call_id": call.tool_call_id,
        "tool": call.definition.name,
        "choice": "allow" if verdict.effect is Effect.ALLOW else "deny",
        "author": "rule",
        "rule": verdict.rule,
        "source": verdict.source,
        "reason": verdict.reason,
        "error": None if verdict.error is None else str(verdict.error),
        "facts": redactor.mapping(call.facts()),
    }
