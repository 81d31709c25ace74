"""One answer from the command line: who may give it, the row that it is, and what became of it (PER-03, PER-15)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from soong.orchestrator.approvals.approval import question_of, status_of_question
from soong.orchestrator.approvals.decide import offers_session
from soong.orchestrator.approvals.provenance import provenance_here
from soong.orchestrator.approvals.remote_responder import refusal_reason
from soong.orchestrator.cli.console import visible
from soong.orchestrator.cli.ids import deployment, opened_store
from soong.orchestrator.cli.question_text import short_id
from soong.orchestrator.client.program import program
from soong.shared.core import timing
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import AlreadyDecidedError, InvalidConfigError
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Answer, Choice, Provenance, Question
from soong.shared.storage.store import Store

CHANNEL: Final = "cli"


class AnswerExitCode(IntEnum):
    """How answering went, for programs. 2 is a wrong use of the command line."""

    DONE = 0
    DECIDED = 1
    NOT_ALLOWED = 3


class AnswerOutcome(Value):
    """The report of an answer."""

    exit_code: AnswerExitCode
    sentence: str


@dataclass(slots=True)
class AnswerCommand:
    """Answers questions by rows. ``notifier`` is None where no service lives that could hear it."""

    store: Store
    notifier: Notifier | None
    settings: Settings
    clock: Clock = field(default_factory=SystemClock)

    async def answer(
        self, question: Question, choice: Choice, reason: str, *, wait_s: float, home: str
    ) -> AnswerOutcome:
        """Answer a question and report the outcome within ``wait_s``."""
        session = await self.store.sessions.session(question.request.identity.session_id)
        if not question.is_pending or question.answer is not None:
            return _decided_already(question)
        provenance = await provenance_here(self.store.sessions)
        refusal = provenance.problem or self._refusal(question, session, choice, home)
        if refusal:
            return AnswerOutcome(AnswerExitCode.NOT_ALLOWED, f"not answered: {refusal}")
        try:
            await self.store.consent.answer(self._row(question, choice, reason, provenance))
        except AlreadyDecidedError:
            return _decided_already(await question_of(self.store.consent, question.request.id))
        if self.notifier is not None:
            await self.notifier.permission_raised(question.request.id, session.id)
        return _outcome(await self._settled(question, wait_s), choice)

    def _row(self, question: Question, choice: Choice, reason: str, provenance: Provenance) -> Answer:
        request = question.request
        clean = reason.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
        now_us, who = self.clock.now_us(), self.settings.principal
        return Answer(request.id, choice, who, CHANNEL, request.input_digest, now_us, clean, provenance=provenance)

    def _refusal(self, question: Question, session: Session, choice: Choice, home: str) -> str:
        """Say why this answer may not be given; the owner would refuse it, and the question would be lost."""
        refusal = refusal_reason(session, self.settings.principal)
        if refusal or not choice.is_grant:
            return refusal
        return no_grant(session, question, home)

    async def _settled(self, question: Question, wait_s: float) -> Question:
        """Return the question once its owner has closed it, or its state when the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            now = await question_of(self.store.consent, question.request.id)
            if not now.is_pending or loop.time() >= deadline_s:
                return now
            await asyncio.sleep(timing.LEAST_PAUSE_S)


def no_grant(session: Session, question: Question, home: str) -> str:
    """Say why no session grant is offered for a call; empty when one is (PER-08, PER-20)."""
    request = question.request
    if not request.offers_session:
        return "no session grant is offered for this call, it is asked each time; allow it once, without --session"
    try:
        policy = policy_for(Policy.from_json(session.policy), request.identity)
    except InvalidConfigError as error:
        return f"the session's policy cannot be read: {error}"
    if not offers_session(policy, request, home):
        return f"{request.scope} is too wide for a session grant, or its policy asks each time; allow it once"
    return ""


@asynccontextmanager
async def opened_answering(settings: Settings) -> AsyncIterator[AnswerCommand]:
    """Open the rows, and the notifier of the living service if there is one.

    Raises:
        UsageError: nothing has run in this home.
        UnavailableError, SchemaVersionError: the rows cannot be used.
    """
    async with opened_store(settings) as store:
        known = await deployment(settings)
        if not known.redis_url:
            yield AnswerCommand(store, None, settings)
            return
        from soong.orchestrator.client.bootstrap import opened_notifier  # Redis, only where somebody could hear it

        async with opened_notifier(known) as notifier:
            yield AnswerCommand(store, notifier, settings)


def _decided_already(question: Question) -> AnswerOutcome:
    sentence = visible(status_of_question(question).sentence)
    return AnswerOutcome(AnswerExitCode.DECIDED, f"already decided: {short_id(question.request.id)} was {sentence}")


def _outcome(question: Question, choice: Choice) -> AnswerOutcome:
    """Say what the owner made of the answer."""
    ending, request = status_of_question(question), question.request
    head = f"{short_id(request.id)} {visible(request.tool)}"
    if question.is_pending:
        later = f"it counts as soon as one runs ({program()} resume {request.identity.task_id})"
        said = f"{choice.traits.past}, and no orchestrator has acted on it yet; {later}"
        return AnswerOutcome(AnswerExitCode.DONE, f"{head}: {said}")
    if question.decision is None or (question.decision.author == "grant" and not choice.is_allowed):
        code = AnswerExitCode.DECIDED
    else:
        code = AnswerExitCode.DONE if ending.is_allowed is choice.is_allowed else AnswerExitCode.NOT_ALLOWED
    return AnswerOutcome(code, f"{head}: {visible(ending.sentence)}")
