"""Tools for permission questions: list, show, and answer, by the person at the client where it can ask (PER-13).

An answer needs a person's credential: the right `approve` of the caller. Without a choice, a client that can ask its
user (elicitation) shows the question, and the model takes no part in the answer.
"""

from typing import Annotated, Final, Literal

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import BaseModel, Field

from soong.orchestrator.approvals.full_input import facts_of
from soong.orchestrator.mcp.api import SoongContext, called, lines_of, shortened, shown, told
from soong.orchestrator.operations import approvals
from soong.orchestrator.operations.approvals import AnswerableApproval, AnswerableApprovalDetail
from soong.orchestrator.operations.documents import Page
from soong.orchestrator.operations.strict import Cursor, InSession
from soong.shared.core import timing
from soong.shared.core.jsontext import inert

MAX_PREVIEW_CHARS: Final = 6_000

ApprovalId = Annotated[str, Field(max_length=80, description="The question's id, `req_…`.")]
Choice = Literal["allow_once", "allow_for_session", "deny"]


class PersonsAnswer(BaseModel):
    """A person's answer to a question."""

    choice: Choice = Field(
        description="allow_once: this call. allow_for_session: also later calls within what is shown."
    )
    reason: str = Field(default="", max_length=2_000, description="The reason; the agent reads it.")


class PersonsYesOrNo(PersonsAnswer):
    """The same, where no session grant is offered."""

    choice: Literal["allow_once", "deny"] = Field(description="allow_once: this call.")


async def list_approvals(
    ctx: SoongContext,
    session: InSession = "",
    seconds: Annotated[
        int, Field(ge=0, le=timing.TOOL_WAIT_S, description="Wait at most so long for the first one.")
    ] = 0,
    limit: Annotated[int, Field(ge=1, le=50, description="At most so many.")] = 10,
    cursor: Cursor = "",
) -> Annotated[CallToolResult, Page[AnswerableApproval]]:
    """List the permission questions of Soong agents that wait for a person: what each wants to do, what is offered."""
    page = await called(ctx, approvals.list_approvals, session=session, wait=seconds, limit=limit, cursor=cursor)
    return shown(page, "" if page["items"] else "no question waits for a person", MAX_PREVIEW_CHARS)


async def show_approval(ctx: SoongContext, approval: ApprovalId) -> Annotated[CallToolResult, AnswerableApprovalDetail]:
    """Show one permission question of a Soong agent: who asks, the target, the diff or command, and how it ended."""
    return shown(await called(ctx, approvals.show_approval, request_id=approval))


async def ask_person(
    ctx: SoongContext, approval: str, choice: str, reason: str
) -> PersonsAnswer | Elicit[PersonsAnswer]:
    """Return the choice that was passed; without one, have the client ask its user. Raises: ToolError."""
    if choice:
        return PersonsAnswer.model_validate({"choice": choice, "reason": reason})
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        raise ToolError(
            "`choice` is missing, and this client cannot ask its user (no elicitation): show the question to the user, "
            "then pass their choice (allow_once, allow_for_session or deny) with its `input_digest`"
        )
    document = await called(ctx, approvals.show_approval, request_id=approval)
    if not document["may_answer"]:
        raise ToolError(f"this question is not yours to answer: {document['may_not_because']}")
    short = shortened(document, MAX_PREVIEW_CHARS)
    facts = [(name, value) for name, value in facts_of(short) if name != "arguments"]
    facts += [(name, short[name]) for name in ("is_tainted", "session_grant", "preview", "arguments")]
    lines = (line for name, value in facts for line in lines_of({name: value}))
    asked = "\n".join((f"{approval}: {short['tool']} asks for permission", *lines))
    offers_session = "allow_for_session" in document["choices"]
    return Elicit(inert(asked, keeps_blanks=True), PersonsAnswer if offers_session else PersonsYesOrNo)


async def answer_approval(
    ctx: SoongContext,
    approval: ApprovalId,
    said: Annotated[ElicitationResult[PersonsAnswer], Resolve(ask_person)],
    choice: Annotated[
        Literal["", "allow_once", "allow_for_session", "deny"],
        Field(description="What the user decided. Empty: the client asks the user itself, where it can."),
    ] = "",
    reason: Annotated[str, Field(max_length=2_000, description="The reason; the agent reads it.")] = "",  # noqa: ARG001  # read by ask_person
    input_digest: Annotated[
        str,
        Field(
            pattern="^([0-9a-f]{64})?$", description="`input_digest` of the question as shown; needed with a choice."
        ),
    ] = "",
) -> Annotated[CallToolResult, AnswerableApproval]:
    """Answer a permission question of a Soong agent with the user's decision: allow_once, allow_for_session or deny.

    The user decides, not you. Without `choice` the client shows the question to the user, where it can.
    """
    if not isinstance(said, AcceptedElicitation):
        raise ToolError("the user closed the question without an answer; it still waits")
    if choice and not input_digest:
        raise ToolError("`input_digest` is missing; pass that of the question as list_approvals showed it to the user")
    digest = input_digest or (await called(ctx, approvals.show_approval, request_id=approval))["input_digest"]
    body = {"choice": said.data.choice, "input_digest": digest, "reason": said.data.reason}
    document = await called(
        ctx, approvals.answer_approval, request_id=approval, wait=2 * timing.RENEW_EVERY_S, body=body
    )
    return told(f"{document['id']}: {document['sentence']}", shortened(document, MAX_PREVIEW_CHARS))
