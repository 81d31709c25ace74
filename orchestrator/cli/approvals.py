"""``soong approvals``: the questions that wait for a person, and the answers to them, from any terminal (PER-13).

An answer is a row that counts once, on any terminal: the session's owner decides by it. Exit codes:
0 done, 1 decided already, 2 usage or no such question, 3 not allowed.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from soong.orchestrator.cli.console import emit, output, say
from soong.shared.core.clock import SystemClock
from soong.shared.core.settings import Settings, load_settings

if TYPE_CHECKING:
    from soong.orchestrator.approvals.approval import Approval
    from soong.shared.permissions.request import Choice, Question
    from soong.shared.storage.store import Store

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

MANY = 1000
SHOWN = 50

_JSON = typer.Option(False, "--json", help="Print JSON.")
_ID = typer.Argument(..., metavar="ID", help="The question's id, or enough of its end or beginning to be the only one.")
_REASON = typer.Option("", "--reason", help="The reason, which the agent receives.")
_WAIT = typer.Option(5.0, "--wait", min=0, help="Seconds to wait for the decision to take effect.")


@app.callback()
def approvals() -> None:
    """List, show and answer the questions that wait for a person."""


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
    from soong.shared.permissions.request import Choice

    choice = Choice.ALLOW_FOR_SESSION if for_session else Choice.ALLOW_ONCE
    raise typer.Exit(asyncio.run(_answer(question, choice, reason, wait_s)))


@app.command()
def deny(question: str = _ID, *, reason: str = _REASON, wait_s: float = _WAIT) -> None:
    """Deny the call; the run continues and gets the reason."""
    from soong.shared.permissions.request import Choice

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


async def find_question(store: "Store", text: str) -> "Question":
    """Return the question of that id, or the only one that begins or ends so; what waits goes before what is closed.

    Raises:
        NotFoundError: there is none.
        UsageError: there are several.
    """
    from soong.orchestrator.approvals.approval import question_of
    from soong.orchestrator.cli.ids import fits, only
    from soong.shared.core.errors import NotFoundError

    try:
        return await question_of(store.consent, text)
    except NotFoundError:
        found: Sequence[Question] = ()
        for include_closed in (False, True):
            listed = await store.consent.questions(include_closed=include_closed, limit=MANY)
            found = found or [one for one in listed if fits(one.request.id, text)]
        if not found:
            raise
    return only(found, text, "questions", "soong approvals list")


async def _list(session_id: str, *, is_all: bool, is_json: bool) -> None:
    from soong.orchestrator.cli.approvals_text import list_text
    from soong.orchestrator.cli.ids import opened_store
    from soong.orchestrator.schemas.approval import ApprovalSchema

    async with opened_store(load_settings()) as store:
        if session_id:
            session_id = (await store.sessions.session(session_id)).id
        limit = SHOWN if is_all else MANY
        questions = await store.consent.questions(session_id=session_id, include_closed=is_all, limit=limit)
    if is_json:
        emit([ApprovalSchema.of(question).model_dump() for question in questions], is_ascii=True)
    else:
        output(list_text(questions, SystemClock().now_us()))


async def _show(text: str, *, is_full: bool, is_json: bool) -> None:
    from soong.orchestrator.cli.approvals_text import show_text
    from soong.orchestrator.schemas.approval import ApprovalDetail

    approval = await read_approval(load_settings(), text)
    if is_json:
        emit(ApprovalDetail.of_approval(approval).model_dump(), is_ascii=True)
    else:
        output(show_text(approval, SystemClock().now_us(), is_full=is_full))


async def read_approval(settings: Settings, text: str) -> "Approval":
    """Read all about the question that a person names. Raises: NotFoundError, UsageError, UnavailableError."""
    from soong.orchestrator.approvals.approval import approval_of
    from soong.orchestrator.approvals.decide import TargetChecker
    from soong.orchestrator.cli.ids import opened_store
    from soong.orchestrator.client.catalog import Catalogue
    from soong.shared.permissions.configured import configured_write_roots

    async with opened_store(settings) as store:
        question = await find_question(store, text)
        catalogue = Catalogue.of(settings)
        target_checker = TargetChecker(catalogue.tools, settings.runs, configured_write_roots(catalogue.config))
        return await approval_of(store, question, target_checker)


async def _answer(text: str, choice: "Choice", reason: str, wait_s: float) -> int:
    from soong.orchestrator.cli.approvals_answer import opened_answering

    settings = load_settings()
    async with opened_answering(settings) as answering:
        question = await find_question(answering.store, text)
        said = await answering.answer(question, choice, reason, wait_s=wait_s, home=str(Path.home()))
    say(said.sentence)
    return said.exit_code
