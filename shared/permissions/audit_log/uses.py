"""Whether each decision that was used was one, and was used for what it was given (auditor of the ledger).

A worker writes that it used a decision. What it wrote is compared with the decision's own row, which it cannot write.
"""

from collections.abc import Mapping

from soong.shared.core.errors import ForgedError
from soong.shared.core.value import Value
from soong.shared.permissions.keys import SigningKey
from soong.shared.permissions.request import Decision
from soong.shared.permissions.signing import verify


class Use(Value):
    """One consumption. ``decision`` is None when no row of that id is one; ``input_digest`` is the call's own."""

    decision_id: str
    run_id: str
    tool_call_id: str
    consumed_us: int
    decision: Decision | None
    input_digest: str | None


def problem(use: Use, keys: Mapping[str, SigningKey]) -> str:
    """Return what is wrong with a use, in a sentence; empty when it holds."""
    decision = use.decision
    if decision is None:
        return "there is no such decision"
    if (decision.run_id, decision.tool_call_id) != (use.run_id, use.tool_call_id):
        return f"it was given to call {decision.tool_call_id} of run {decision.run_id}"
    if not decision.choice.is_allowed or decision.error is not None:
        return "it says no"
    if use.consumed_us >= decision.expires_us:
        return "it had expired"
    if use.input_digest is not None and use.input_digest != decision.input_digest:
        return "the call's input is another than the one that was allowed"
    key = keys.get(decision.key_id)
    if key is None:
        return f"its key {decision.key_id} is unknown"
    try:
        verify(decision, key.public_key)
        if key.revoked_us is None or use.consumed_us > key.revoked_us:  # used before: nothing can take that back
            key.check(decision)
    except ForgedError as error:
        return str(error)
    return ""
