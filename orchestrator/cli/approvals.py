"""``soong approvals``: the questions that wait for a person, and the answers to them, from any terminal (PER-13).

An answer is a row that counts once, on any terminal: the session's owner decides by it. Exit codes:
0 done, 1 decided already, 2 usage or no such question, 3 not allowed.
"""

import time
from enum import IntEnum
from typing import Final

import typer

from soong.orchestrator.cli.api import Api
from soong.orchestrator.cli.console import emit, output, say, visible
from soong.orchestrator.cli.question_text import list_text, short_id, show_text
from soong.orchestrator.client.home_api import ApiProblemError, Document
from soong.orchestrator.client.program import program
from soong.shared.core import timing
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

MANY = 1000
SHOWN = 50

_JSON = typer.Option(False, "--json", help="Print JSON.")
_ID = typer.Argument(..., metavar="ID", help="The question's id, or enough of its end or beginning to be the only one.")
_REASON = typer.Option("", "--reason", help="The reason, which the agent receives.")
_WAIT = typer.Option(5.0, "--wait", min=0, help="Seconds to wait for the decision to take effect.")

_PAST: Final = {"allow_once": "allowed once", "allow_for_session": "allowed for the session", "deny": "denied"}


@app.command("list")
def list_questions(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only those of this session."),
    is_all: bool = typer.Option(False, "--all", help=f"Closed ones too, the last {SHOWN}, with who answered."),
    is_json: bool = _JSON,
) -> None:
    """List what waits, oldest first; what is decided, withdrawn or expired has left the list."""
    with Api() as api:
        session_id = api.find("session", session) if session else ""
        query = {"session": session_id, "state": "all" if is_all else "pending"}
        questions = api.pages("/v1/approvals", limit=SHOWN if is_all else MANY, **query)
        questions = questions[::-1] if is_all else questions  # oldest first
    if is_json:
        emit(questions, is_ascii=True)
    else:
        output(list_text(questions, time.time_ns() // 1000))


@app.command()
def show(
    question: str = _ID,
    *,
    is_full: bool = typer.Option(False, "--full", help="Every byte of the input, nothing cut."),
    is_json: bool = _JSON,
) -> None:
    """Show one question: who asks, for what, and the target as it is now. Whatever an agent wrote is shown inert."""
    with Api() as api:
        shown = api.get(f"/v1/approvals/{api.find('approval', question)}")
    if is_json:
        emit(shown, is_ascii=True)
    else:
        output(show_text(shown, time.time_ns() // 1000, is_full=is_full))


@app.command()
def allow(
    question: str = _ID,
    *,
    for_session: bool = typer.Option(False, "--session", help="Allow this tool there for the rest of the session."),
    reason: str = _REASON,
    wait_s: float = _WAIT,
) -> None:
    """Allow the call, once."""
    _answer(question, "allow_for_session" if for_session else "allow_once", reason, wait_s)


@app.command()
def deny(question: str = _ID, *, reason: str = _REASON, wait_s: float = _WAIT) -> None:
    """Deny the call; the run continues and gets the reason."""
    _answer(question, "deny", reason, wait_s)


@app.command()
def watch(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only that session's questions."),
    is_json: bool = typer.Option(False, "--json", help="Answer nothing: print questions and their ends as JSON lines."),
) -> None:
    """Show questions as they come and answer them here; Ctrl-C leaves, and answers nothing."""
    import asyncio

    from soong.orchestrator.cli.approvals_watch import watch_questions
    from soong.shared.core.settings import load_settings

    raise typer.Exit(asyncio.run(watch_questions(load_settings(), session, is_json=is_json)))


class AnswerExitCode(IntEnum):
    """How answering went, for programs. 2 is a wrong use of the command line."""

    DONE = 0
    DECIDED = 1
    NOT_ALLOWED = 3


_REFUSED: Final = {
    "already_decided": AnswerExitCode.DECIDED,
    "gone": AnswerExitCode.DECIDED,
    "forbidden": AnswerExitCode.NOT_ALLOWED,
    "not_yours": AnswerExitCode.NOT_ALLOWED,
    "choice_not_offered": AnswerExitCode.NOT_ALLOWED,
}


def _answer(text: str, choice: str, reason: str, wait_s: float) -> None:
    """Answer a question and report the outcome within ``wait_s``. Raises: typer.Exit; SoongError."""
    reason = reason.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    with Api() as api:
        question = api.get(f"/v1/approvals/{api.find('approval', text)}")
        body: dict[str, Json] = {"choice": choice, "input_digest": question["input_digest"], "reason": reason}
        path = f"/v1/approvals/{question['id']}/answer"
        try:
            answered = api.call(
                "POST", path, query={"wait": min(round(timing.PATIENCE_S), round(wait_s))}, body=body, may_start=False
            )
        except SoongError as error:
            code, sentence = refused(question, error)
        else:
            code, sentence = outcome_of(answered, choice)
    say(sentence)
    raise typer.Exit(code)


def refused(question: Document, error: SoongError) -> tuple[AnswerExitCode, str]:
    """Report an answer that was not taken. Raises: the error, where it is of another kind."""
    problem = error.__cause__
    code = _REFUSED.get(problem.code) if isinstance(problem, ApiProblemError) else None
    if code is None or not isinstance(problem, ApiProblemError):
        raise error
    if code is AnswerExitCode.DECIDED:
        sentence = visible(str(problem.document.get("sentence", problem)))
        return code, f"already decided: {short_id(question['id'])} was {sentence}"
    return code, f"not answered: {visible(str(problem)).removeprefix('not answered: ')}"


def outcome_of(question: Document, choice: str) -> tuple[AnswerExitCode, str]:
    """Say what the owner made of an answer."""
    head, decision = f"{short_id(question['id'])} {visible(question['tool'])}", question["decision"]
    if question["state"] == "pending":
        later = f"it counts as soon as one runs ({program()} resume {question['identity']['task_id']})"
        said = f"{_PAST[choice]}, and no orchestrator has acted on it yet; {later}"
        return AnswerExitCode.DONE, f"{head}: {said}"
    is_allowed = decision is not None and decision["choice"] != "deny"
    if decision is None or (decision["author"] == "grant" and choice == "deny"):
        code = AnswerExitCode.DECIDED
    else:
        code = AnswerExitCode.DONE if is_allowed is (choice != "deny") else AnswerExitCode.NOT_ALLOWED
    return code, f"{head}: {visible(question['sentence'])}"
