"""Tools for permission questions: list, show, and answer, by the person at the client where it can ask (PER-13).

An answer needs a person's credential: the right `approve` of the caller. Where no choice is passed and the client can
ask its user (elicitation), the client shows the question, and the model takes no part in the answer.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import BaseModel, Field

from soong.orchestrator.mcp.api import SoongContext, api_of, cut, lines, path, picked, preview, told, without_empty
from soong.orchestrator.mcp.shapes import AnswerResult, ApprovalLine, ApprovalList
from soong.orchestrator.mcp.task_tools import shortened
from soong.orchestrator.schemas.base import step_id_of
from soong.shared.core import timing
from soong.shared.core.inert import inert

MAX_PREVIEW_CHARS: Final = 6_000

ApprovalId = Annotated[str, Field(max_length=80, description="The question's id, `req_…`.")]
Choice = Literal["allow_once", "allow_for_session", "deny"]


class PersonsAnswer(BaseModel):
    """What a person decides about a question."""

    choice: Choice = Field(
        description="allow_once: this call. allow_for_session: also later calls within what is shown."
    )
    reason: str = Field(default="", max_length=2_000, description="The reason; the agent reads it.")


class PersonsYesOrNo(PersonsAnswer):
    """The same, where no session grant is offered."""

    choice: Literal["allow_once", "deny"] = Field(description="allow_once: this call.")


async def list_approvals(
    ctx: SoongContext,
    session: Annotated[str, Field(max_length=80, description="Only of this session.")] = "",
    seconds: Annotated[
        int, Field(ge=0, le=timing.TOOL_WAIT_S, description="Wait at most so long for the first one.")
    ] = 0,
    limit: Annotated[int, Field(ge=1, le=50, description="At most so many.")] = 10,
    cursor: Annotated[str, Field(max_length=80, description="`next` of the page before.")] = "",
) -> Annotated[CallToolResult, ApprovalList]:
    """List the permission questions of Soong agents that wait for a person: what each wants to do, what is offered."""
    query: dict[str, str | int] = {"session": session, "wait": seconds, "limit": limit, "cursor": cursor}
    document = (await (await api_of(ctx)).call("GET", "/v1/approvals", query=query)).document
    items = [approval_line(one) for one in document["items"]]
    shape = ApprovalList(items=items, next=document["next"])
    each = ["\n".join((question_text(one), _how_to_answer(one))) for one in items]
    more = f"next page: cursor={shape.next}" if shape.next else ""
    return told(lines(each or "no question waits for a person", more), shape)


async def show_approval(ctx: SoongContext, approval: ApprovalId) -> Annotated[CallToolResult, ApprovalLine]:
    """Show one permission question of a Soong agent: who asks, the target, the diff or command, and how it ended."""
    document = (await (await api_of(ctx)).call("GET", path("approvals", approval))).document
    shape = approval_line(document)
    parents = " < ".join(f"{one['role']} {one['definition']} ({one['run_id']})" for one in document["parents"])
    taint = "the run has read untrusted content" if document["is_tainted"] else ""
    text = lines(question_text(shape), f"parents: {parents}" if parents else "", taint, document["sentence"])
    return told(lines(text, _how_to_answer(shape)), shape)


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
    api = await api_of(ctx)
    line = approval_line((await api.call("GET", path("approvals", approval))).document)
    if not line.may_answer:
        raise ToolError(f"this question is not yours to answer: {line.may_not_because}")
    offers_session = "allow_for_session" in line.choices
    return Elicit(inert(question_text(line), keeps_blanks=True), PersonsAnswer if offers_session else PersonsYesOrNo)


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
) -> Annotated[CallToolResult, AnswerResult]:
    """Answer a permission question of a Soong agent with the user's decision: allow_once, allow_for_session or deny.

    The user decides, not you. Without `choice` the client shows the question to the user, where it can.
    """
    if not isinstance(said, AcceptedElicitation):
        raise ToolError("the user closed the question without an answer; it still waits")
    if choice and not input_digest:
        raise ToolError("`input_digest` is missing; pass that of the question as list_approvals showed it to the user")
    api = await api_of(ctx)
    where = path("approvals", approval)
    digest = input_digest or (await api.call("GET", where)).document["input_digest"]
    body = without_empty({"choice": said.data.choice, "input_digest": digest, "reason": said.data.reason})
    document = (await api.call("POST", f"{where}/answer", query={"wait": 2 * timing.RENEW_EVERY_S}, body=body)).document
    answer = document["answer"] or {}
    shape = picked(
        AnswerResult,
        document,
        choice=answer.get("choice") or said.data.choice,
        answered_by=answer.get("principal", ""),
    )
    return told(f"{shape.id}: {shape.sentence}", shape)


def approval_line(document: Mapping[str, Any]) -> ApprovalLine:
    """Return a question as the tools show it."""
    who = document["identity"]
    return picked(
        ApprovalLine,
        document,
        task=who["task_id"],
        step=step_id_of(who["step_key"]),
        who=f"{who['role']} {who['definition']} ({who['model'] or 'no model'}), run {who['run_id']}",
        target=document["target"]["shown"],
        risk=f"{document['risk']}: {document['risk_summary']}",
        preview=cut(document["preview"], MAX_PREVIEW_CHARS),
        arguments=shortened(document["arguments"]),
        session_grant=document["session_grant"] if "allow_for_session" in document["choices"] else "",
    )


def question_text(line: ApprovalLine) -> str:
    """Return a question as a person reads it."""
    return lines(
        f"{line.id}: {line.tool} asks for permission{' (dangerous)' if line.is_dangerous else ''}",
        f"  who: {line.who}",
        f"  task: {line.task}, step {line.step or '-'}",
        f"  target: {line.target}",
        f"  risk: {line.risk}",
        f"  for this session it would cover: {line.session_grant}" if line.session_grant else "",
        _indented(line.preview or preview(line.arguments)),
    )


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _how_to_answer(line: ApprovalLine) -> str:
    if line.may_answer:
        return f"  answers: {', '.join(line.choices)}; input_digest {line.input_digest}"
    return f"  you cannot answer it: {line.may_not_because}"
