"""The session's two callbacks as its one: questions of MCP servers go to a callback of their own (MCP-01.l).

Its answer is a permission decision like any other, signed by the owner and audited; the values of the form are the
words of its reason.
"""

from typing import assert_never

from soong.orchestrator.approvals.responders import MAX_REASON_CHARS, NoCallbackError
from soong.shared.core.foreign import shown
from soong.shared.core.jsontext import dump
from soong.shared.permissions.elicitation import ElicitationCallback, ElicitationRequest
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest
from soong.shared.tools.elicitation import CANCEL, ElicitationAnswer


def answering(
    permission: PermissionCallback | None, elicitation: ElicitationCallback | None
) -> PermissionCallback | None:
    """Return the callback that has questions of servers answered by ``elicitation``, and all others by the other."""
    if elicitation is None:
        return permission

    async def answer(request: PermissionRequest) -> PermissionDecision:
        if request.takes_words:
            return decision_of(await elicitation(ElicitationRequest.of(request)))
        if permission is None:
            raise NoCallbackError("the session has a callback for what MCP servers ask, and none for permissions")
        return await permission(request)

    return answer


def decision_of(answer: ElicitationAnswer) -> PermissionDecision:
    """Return an answer as it is signed.

    Raises:
        TypeError: it is something else, or its content is not JSON.
        ValueError: its content is too long.
    """
    given: object = answer  # of a stranger's function: types are not believed
    if not isinstance(given, ElicitationAnswer) or given.action not in ("accept", "decline", "cancel"):
        raise TypeError(f"{shown(given)} is not an ElicitationAnswer")
    match given.action:
        case "accept":
            words = "" if given.content is None else dump(dict(given.content))
            if len(words) > MAX_REASON_CHARS:
                raise ValueError(f"the content has more than {MAX_REASON_CHARS} characters")
            return PermissionDecision(Choice.ALLOW_ONCE, words)
        case "decline":
            return PermissionDecision(Choice.DENY, given.reason)
        case "cancel":
            return PermissionDecision(Choice.DENY, f"{CANCEL}: {given.reason}" if given.reason else CANCEL)
        case _:
            assert_never(given.action)
