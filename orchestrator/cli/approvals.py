"""``soong approvals``: the questions that wait for a person, and the answers to them, from any terminal (PER-13).

An answer is a row that counts once, on any terminal: the session's owner decides by it. Exit codes:
0 done, 1 decided already, 2 usage or no such question, 3 not allowed.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from soong.orchestrator.approvals.approval import question_of, status_of_question
from soong.orchestrator.approvals.decide import offers_session
from soong.orchestrator.approvals.provenance import provenance_here
from soong.orchestrator.approvals.remote_responder import refusal_reason
from soong.orchestrator.cli.console import emit, output, say, visible
from soong.orchestrator.cli.ids import deployment, opened_store
from soong.orchestrator.cli.question_text import list_text, short_id, show_text
from soong.orchestrator.client.program import program
from soong.orchestrator.operations.ids import find_question
from soong.shared.core import timing
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import AlreadyDecidedError, InvalidConfigError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.request import Answer, Choice, Provenance, Question
from soong.shared.storage.store import Store

if TYPE_CHECKING:
    from soong.orchestrator.approvals.approval import Approval

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

MANY = 1000
SHOWN = 50

_JSON = typer.Option(False, "--json", help="Print JSON.")
_ID = typer.Argument(..., metavar="ID", help="The question's id, or enough of its end or beginning to be the only one.")
_REASON = typer.Option("", "--reason", help="The reason, which the agent receives.")
_WAIT = typer.Option(5.0, "--wait", min=0, help="Seconds to wait for the decision to take effect.")

CHANNEL: Final = "cli"


@app.command("list")
def list_questions(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only those of this session."),
    is_all: bool = typer.Option(False, "--all", help=f"Closed ones too, the last {SHOWN}, with who answered."),
    is_json: bool = _JSON,
) -> None:
    """List what waits, oldest first; what is decided, withdrawn or expired has left the list."""
    asyncio.run(_list(session, is_all=is_all, is_json=is_json))


@app.command()
def show(
    question: str = _ID,
    *,
    is_full: bool = typer.Option(False, "--full", help="Every byte of the input, nothing cut."),
    is_json: bool = _JSON,
) -> None:
    """Show one question: who asks, for what, and the target as it is now. Whatever an agent wrote is shown inert."""
    asyncio.run(_show(question, is_full=is_full, is_json=is_json))


@app.command()
def allow(
    question: str = _ID,
    *,
    for_session: bool = typer.Option(False, "--session", help="Allow this tool there for the rest of the session."),
    reason: str = _REASON,
    wait_s: float = _WAIT,
) -> None:
    """Allow the call, once."""
    choice = Choice.ALLOW_FOR_SESSION if for_session else Choice.ALLOW_ONCE
    raise typer.Exit(asyncio.run(_answer(question, choice, reason, wait_s)))


@app.command()
def deny(question: str = _ID, *, reason: str = _REASON, wait_s: float = _WAIT) -> None:
    """Deny the call; the run continues and gets the reason."""
    raise typer.Exit(asyncio.run(_answer(question, Choice.DENY, reason, wait_s)))


@app.command()
def watch(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only that session's questions."),
    is_json: bool = typer.Option(False, "--json", help="Answer nothing: print questions and their ends as JSON lines."),
) -> None:
    """Show questions as they come and answer them here; Ctrl-C leaves, and answers nothing."""
    from soong.orchestrator.cli.approvals_watch import watch_questions

    raise typer.Exit(asyncio.run(watch_questions(load_settings(), session, is_json=is_json)))


async def _list(session_id: str, *, is_all: bool, is_json: bool) -> None:
    from soong.orchestrator.schemas.approval import ApprovalSchema

    async with opened_store(load_settings()) as store:
        if session_id:
            session_id = (await store.sessions.session(session_id)).id
        limit = SHOWN if is_all else MANY
        questions = await store.consent.questions(session_id=session_id, include_closed=is_all, limit=limit)
    if is_json:
        emit([ApprovalSchema.of_question(question).model_dump() for question in questions], is_ascii=True)
    else:
        output(list_text(questions, SystemClock().now_us()))


async def _show(text: str, *, is_full: bool, is_json: bool) -> None:
    from soong.orchestrator.schemas.approval import ApprovalDetail

    approval = await read_approval(load_settings(), text)
    if is_json:
        emit(ApprovalDetail.of_question(approval.question, approval).model_dump(), is_ascii=True)
    else:
        output(show_text(approval, SystemClock().now_us(), is_full=is_full))


async def read_approval(settings: Settings, text: str) -> "Approval":
    """Read all about the question that a person names. Raises: NotFoundError, UsageError, UnavailableError."""
    from soong.orchestrator.approvals.approval import approval_of
    from soong.orchestrator.approvals.decide import TargetChecker
    from soong.orchestrator.client.catalog import Catalogue
    from soong.shared.permissions.configured import configured_write_roots

    async with opened_store(settings) as store:
        question = await find_question(store, text)
        catalogue = Catalogue.of(settings)
        target_checker = TargetChecker(catalogue.tools, settings.runs, configured_write_roots(catalogue.config))
        return await approval_of(store, question, target_checker)


async def _answer(text: str, choice: Choice, reason: str, wait_s: float) -> int:

    settings = load_settings()
    async with opened_answering(settings) as answering:
        question = await find_question(answering.store, text)
        said = await answering.answer(question, choice, reason, wait_s=wait_s, home=str(Path.home()))
    say(said.sentence)
    return said.exit_code


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
