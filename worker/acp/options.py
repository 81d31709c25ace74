"""Which of the options that an agent offers says exactly what was decided.

No option that grants more than one call is ever chosen: a session grant is ours and answers the next question. So an
agent that offers no such option, or one whose id stands for two things, cannot be allowed anything.
"""

from collections import Counter
from collections.abc import Sequence

from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, RequestPermissionResponse


def option_once(options: Sequence[PermissionOption]) -> str | None:
    """Return the id of the option that allows this call alone; None when there is none."""
    return _only(options, "allow_once")


def allowed(option_id: str) -> RequestPermissionResponse:
    """Return the answer that chooses an option."""
    return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option_id))


def refused(options: Sequence[PermissionOption]) -> RequestPermissionResponse:
    """Return the answer that refuses: this call rather than all such calls, for the next may be another question."""
    chosen = _only(options, "reject_once") or _only(options, "reject_always")
    if chosen is None:
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
    return allowed(chosen)


def _only(options: Sequence[PermissionOption], kind: str) -> str | None:
    count = Counter(option.option_id for option in options)
    return next((one.option_id for one in options if one.kind == kind and count[one.option_id] == 1), None)
