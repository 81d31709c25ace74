"""What a run's log says of consent: the facts of a call and the decision on it, kept apart (PER-19).

A call that was asked for has its facts in ``permission_requested`` and its decision, by the owner, in
``permission_decided``; one that the policy settled has both in one ``permission_decided``, written with whatever its
run writes next.
"""

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.permissions.policy import PolicyVerdict
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.rules import Effect
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import GateCall


def asked(request: PermissionRequest, verdict: PolicyVerdict, call: GateCall, redactor: Redactor) -> NewEvent:
    """Return the event of a question: what is asked, by which rule, on which facts.

    What hooks made of the call is in no node of the run: where the question has only a summary of it, the event has
    all of it, without secrets.
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
    """Return what ``permission_decided`` says of a call that the policy allowed or denied by itself."""
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
