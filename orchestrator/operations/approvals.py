"""Approvals: the questions that wait, shown in full, and answered once (PER-06, PER-13 to PER-15).

An answer is a row, as everybody's is; the session's owner makes the decision. Answers that the owner would refuse are
refused here, so that a slip of the caller does not cost the question.
"""

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from pydantic import Field

from soong.orchestrator.approvals.approval import Approval, approval_of, question_of, status_of_question
from soong.orchestrator.approvals.decide import TargetChecker, by_policy, offers_session
from soong.orchestrator.approvals.responders import refusal_reason
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Approver, HasLeft, Left, Reader, Service, until_enough
from soong.orchestrator.operations.documents import OperationReply, Page
from soong.orchestrator.operations.feeds import Following
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.orchestrator.operations.strict import Body, Cursor, InSession, Limit, RequestId, StrictRoute, Wait
from soong.orchestrator.schemas.approval import ApprovalDetail, ApprovalSchema, TargetStatusSchema
from soong.orchestrator.schemas.base import Schema
from soong.shared.core import timing
from soong.shared.core.errors import AlreadyDecidedError, InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Answer, Choice, Provenance, Question, RequestState, offered_choices

log = get_logger(__name__)
router = APIRouter(route_class=StrictRoute, tags=["approvals"])
State = Annotated[
    Literal["pending", "all"], Query(description="Those that wait, oldest first; or all of them, newest first.")
]
Attend = Annotated[
    bool,
    Query(
        description="Attend as a responder (right `approve`) for `session`, or for each of your sessions that asks, "
        "until one responder's lease after this call. Attached sessions wait for an attached responder."
    ),
]
Seen = Annotated[str, Header(max_length=200, description="`ETag` of the list that was seen: 304 if it is still so.")]


class Offer(Schema):
    """The answers that the caller of the API may give."""

    choices: list[Choice] = Field(description="The answers that are offered; none once it is answered.")
    may_answer: bool
    may_not_because: str = Field(description="Why the caller may not answer it; empty when it may.")


class AnswerableApproval(ApprovalSchema, Offer):
    """A permission question. An answer names `input_digest`, so that what was shown is what is answered."""


class AnswerableApprovalDetail(ApprovalDetail, Offer):
    """A permission question with everything that its row and its run's log say."""


class ApprovalView(Value):
    """A question in its session, for one caller. No grant ever covers a folder around ``home``."""

    question: Question
    session: Session
    caller: Caller
    home: str

    @property
    def is_open(self) -> bool:
        """Return whether it waits for its first answer."""
        return self.question.is_pending and self.question.answer is None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The answers on offer; the owner judges a session grant once more by itself (PER-08)."""
        try:
            request = self.question.request
            policy = policy_for(Policy.from_json(self.session.policy), request.identity)
            is_granted = offers_session(policy, request, self.home)
        except InvalidConfigError:
            return (Choice.DENY,)
        return offered_choices(may_grant=is_granted)

    @property
    def no_grant(self) -> str:
        """Say why no session grant is offered (PER-08, PER-20)."""
        if not self.question.request.offers_session:
            return "no session grant is offered for this call, it is asked each time; allow it once"
        scope = self.question.request.scope
        return f"{scope} is too wide for a session grant, or its policy asks each time; allow it once"

    @property
    def refusal(self) -> str:
        """Return why the caller may not answer, whatever the state; empty when it may (PER-13)."""
        if not self.caller.may(Right.APPROVE):
            is_carried = self.caller.token.allows(Right.APPROVE)
            return self.caller.refusal if is_carried else "the token does not carry the right 'approve'"
        session = self.session
        if session.approval_mode is ApprovalMode.DENY:
            return "the session is answered by its policy alone"
        if session.approval_mode is ApprovalMode.PROMPT and session.principal != self.caller.principal:
            return f"its session is answered by {session.principal!r}, and you are {self.caller.principal!r}"
        return ""

    def shape(self) -> AnswerableApproval:
        offer = self._offer()
        if offer["may_answer"] and self._settles_itself:
            offer |= {"may_answer": False, "may_not_because": "its orchestrator decides it without asking"}
        return AnswerableApproval.of_question(self.question, **offer)

    @property
    def _settles_itself(self) -> bool:
        """Whether its run has not proven it, or a rule decides it: its owner has not looked at it yet."""
        request, session = self.question.request, self.session
        try:
            policy = policy_for(Policy.from_json(session.policy), request.identity)
        except InvalidConfigError:  # its owner refuses all that the session asks
            return True
        return not self.question.is_proven or by_policy(session, policy, request) is not None

    def detail(self, approval: Approval) -> AnswerableApprovalDetail:
        # The target is looked at for the user of this machine; for others it need not be where this server is.
        now = TargetStatusSchema.of(approval.now) if self.caller.is_local else None
        return AnswerableApprovalDetail.of_question(self.question, approval, now=now, **self._offer())

    def _offer(self) -> dict[str, Any]:
        refusal = self.refusal or ("" if self.is_open else f"it is {status_of_question(self.question).word}")
        return {
            "choices": list(self.choices) if self.is_open else [],
            "may_answer": not refusal,
            "may_not_because": refusal,
        }


class AnswerBody(Body):
    """One of the three answers, to exactly the input that was shown."""

    choice: Literal["allow_once", "allow_for_session", "deny"]
    input_digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="`input_digest` of the question as it was shown.")
    reason: str = Field(default="", max_length=2_000, description="The reason, which the agent receives.")


class FoundQuestions(Value):
    """A page of questions, and their sessions by id."""

    questions: Sequence[Question]
    sessions: Mapping[str, Session]


@dataclass(slots=True)
class ApprovalsQuery:
    """One page of the list, as its caller wants it. ``seen`` is the tag of the page that the caller has."""

    service: Service
    caller: Caller
    state: str
    session_id: str
    cursor: str
    limit: int
    seen: str
    is_attending: bool
    _told: Sequence[Question] = ()

    async def is_new(self, found: FoundQuestions) -> bool:
        """Say whether there is something to tell; attend to what asks."""
        self._told = [one for one in found.questions if self._is_all or one.answer is None]
        if self.is_attending:
            asking = {one.request.identity.session_id for one in found.questions if one.is_pending}
            await self._stay({self.session_id} if self.session_id else asking, found.sessions)
        return self._tag != self.seen if self.seen else bool(self._told)

    def reply(self, found: FoundQuestions) -> OperationReply:
        headers = {"ETag": self._tag}
        if self._tag == self.seen:
            return OperationReply(None, 304, headers)
        home, sessions = self.service.home, found.sessions
        views = (ApprovalView(one, sessions[one.request.identity.session_id], self.caller, home) for one in self._told)
        shown = [view.shape() for view in views]
        questions = found.questions
        last = questions[0 if self._is_all else -1].request.id if len(questions) >= self.limit else None
        items = [*reversed(shown)] if self._is_all else shown
        return OperationReply(Page[AnswerableApproval].model_construct(items=items, next=last), headers=headers)

    def followed(self) -> AbstractContextManager[Following[FoundQuestions]]:
        """Follow the page; all who want the same one share its readings."""
        key = ("questions", self.session_id, self._is_all, self.cursor, self.limit)
        return self.service.feeds.follow(key, self._load, self.service.subscriptions.questions)

    async def _load(self) -> FoundQuestions:
        store = self.service.store
        found = await store.consent.questions(
            session_id=self.session_id, include_closed=self._is_all, beyond=self.cursor, limit=self.limit
        )
        ids = dict.fromkeys(one.request.identity.session_id for one in found)
        return FoundQuestions(found, {one: await store.sessions.session(one) for one in ids})

    async def _stay(self, session_ids: Collection[str], known: Mapping[str, Session]) -> None:
        """Attend the sessions that wait for a responder and that the caller may answer."""
        store = self.service.store.sessions
        sessions = [known.get(one) or await store.session(one) for one in session_ids]
        attached = (one for one in sessions if one.approval_mode is ApprovalMode.PROMPT)
        ours = [one.id for one in attached if not refusal_reason(one, self.caller.principal)]
        self.service.attending.stay(self.caller.principal, ours)

    @property
    def _is_all(self) -> bool:
        return self.state == "all"

    @property
    def _tag(self) -> str:
        """A tag that is another whenever a question comes, goes, is answered or decided."""
        states = [f"{one.request.id}:{one.state}:{one.answer is not None}" for one in self._told]
        return f'"{hashlib.sha256(",".join(states).encode()).hexdigest()[:32]}"'


@router.get(
    "/v1/approvals",
    response_model=Page[AnswerableApproval],
    responses={304: {"description": "Nothing has changed within `wait` seconds."}},
)
async def list_approvals(
    service: Service,
    caller: Reader,
    has_left: Left,
    state: State = "pending",
    session: InSession = "",
    cursor: Cursor = "",
    limit: Limit = 50,
    wait: Wait = 0,
    attend: Attend = False,
    if_none_match: Seen = "",
) -> OperationReply:
    """List questions of all sessions; what is answered, decided, withdrawn or expired has left the pending ones.

    With `wait` the answer comes as soon as the list differs from the one whose `ETag` is sent as `If-None-Match`
    (without one: as soon as something waits), or after so many seconds. To be waited for, poll with `attend`.
    """
    if attend:
        caller.require(Right.APPROVE)
    wanted = ApprovalsQuery(service, caller, state, session, cursor, limit, if_none_match, attend)
    # An attendance is renewed by looking.
    every_s = min(timing.RENEW_EVERY_S, service.client.settings.responder_lease_s / 3)
    with service.held_open(caller, is_waiting=wait > 0), wanted.followed() as following:
        await until_enough(service, caller, has_left, following, wanted.is_new, wait, every_s)
        return wanted.reply(following.feed.value)


@router.get("/v1/approvals/{request_id}")
async def show_approval(
    service: Service, caller: Reader, has_left: Left, request_id: RequestId, wait: Wait = 0
) -> AnswerableApprovalDetail:
    """Show one question: who asks, with all its parents; the full stored input; its state.

    With `wait` the answer comes as soon as the question is no longer pending, or after so many seconds.
    """
    question = await _settled(service, caller, has_left, request_id, wait)
    shown = await _shown(service, question, caller)
    checker = await service.target_checker() if caller.is_local else TargetChecker((), Path())
    approval = await approval_of(service.store, question, checker)
    return shown.detail(approval)


@router.post(
    "/v1/approvals/{request_id}/answer",
    responses={
        409: {"description": "Somebody was first, or the input is another."},
        410: {"description": "Withdrawn."},
    },
)
async def answer_approval(
    service: Service,
    caller: Approver,
    has_left: Left,
    request_id: RequestId,
    body: AnswerBody,
    wait: Annotated[
        int, Query(ge=0, le=round(timing.PATIENCE_S), description="Seconds to wait for the decision to take effect.")
    ] = 5,
) -> AnswerableApproval:
    """Answer a question. The first answer counts, from any channel; the call waits briefly for the owner's decision."""
    store = service.store
    question = await question_of(store.consent, request_id)
    shown = await _shown(service, question, caller)
    _check_answer(shown, body)
    answer = Answer(
        request_id,
        Choice(body.choice),
        caller.principal,
        caller.channel,
        body.input_digest,
        service.client.clock.now_us(),
        body.reason.replace("\0", ""),
        {"token": caller.token.id},
        Provenance() if caller.peer is None else caller.peer.provenance,
    )
    try:
        await store.consent.answer(answer)
    except AlreadyDecidedError:
        raise _too_late(await question_of(store.consent, request_id)) from None
    await service.client.notifier.permission_raised(request_id, shown.session.id)
    settled = await _settled(service, caller, has_left, request_id, wait)
    return (await _shown(service, settled, caller)).shape()


def _check_answer(shown: ApprovalView, body: AnswerBody) -> None:
    """Refuse what the owner would refuse. Raises: ProblemError."""
    if shown.refusal:
        log.warning("http_answer_refused", principal=shown.caller.principal, request=shown.question.request.id)
        whose = {"principal": shown.session.principal}
        raise ProblemError(ProblemCode.NOT_YOURS, f"not answered: {shown.refusal}", whose)
    if not shown.is_open:
        return  # told, and written down, when the row is refused
    if body.input_digest != shown.question.request.input_digest:
        raise ProblemError(ProblemCode.INPUT_CHANGED, "that is not the input which waits; look at the question again")
    if Choice(body.choice) not in shown.choices:
        offered: list[Any] = [str(choice) for choice in shown.choices]
        detail = f"offered are {', '.join(offered)}: {shown.no_grant}"
        raise ProblemError(ProblemCode.CHOICE_NOT_OFFERED, detail, {"choices": offered})


def _too_late(question: Question) -> ProblemError:
    """Return the refusal of a later answer, with by whom, how and when the first was given (PER-15)."""
    answer, decision, sentence = question.answer, question.decision, status_of_question(question).sentence
    facts: dict[str, Json] = {"state": str(question.state), "sentence": sentence}
    if answer is not None:
        facts |= {"by": answer.principal, "channel": answer.channel, "at": rfc3339(answer.answered_us)}
        facts |= {"choice": None if answer.choice is None else str(answer.choice)}
    elif decision is not None:
        facts |= {"by": decision.principal or decision.author, "channel": "", "at": rfc3339(decision.decided_us)}
        facts |= {"choice": str(decision.choice)}
    if question.state in {RequestState.WITHDRAWN, RequestState.EXPIRED}:
        return ProblemError(ProblemCode.GONE, f"nobody waits for an answer: it was {sentence}", facts)
    return ProblemError(ProblemCode.ALREADY_DECIDED, f"somebody was first: {sentence}", facts)


async def _shown(service: Service, question: Question, caller: Caller) -> ApprovalView:
    session = await service.store.sessions.session(question.request.identity.session_id)
    return ApprovalView(question, session, caller, service.home)


async def _settled(service: Service, caller: Caller, has_left: HasLeft, request_id: str, wait_s: int) -> Question:
    """Return a question once it is no longer pending, or its state when the time is over."""
    consent = service.store.consent
    question = await question_of(consent, request_id)
    if not wait_s or not question.is_pending:
        return question

    async def is_closed(now: Question) -> bool:
        return not now.is_pending

    session_id = question.request.identity.session_id
    with (
        service.held_open(caller),
        service.feeds.follow(
            ("question", request_id),
            lambda: question_of(consent, request_id),
            lambda: service.subscriptions.session(session_id),
            is_quick=True,
        ) as following,
    ):
        async with asyncio.timeout(wait_s + 1):
            await until_enough(service, caller, has_left, following, is_closed, wait_s)
        return following.feed.value
