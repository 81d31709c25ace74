"""``soong approvals``: the questions that wait for a person, and the answers to them, from any terminal (PER-13).

An answer is a row that counts once, on any terminal: the session's owner decides by it. Exit codes:
0 done, 1 decided already, 2 usage or no such question, 3 not allowed.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import typer

from soong.orchestrator.cli.options import CommandTable
from soong.orchestrator.client.home_api import ApiProblemError, Document
from soong.orchestrator.client.program import program
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.terminal.api import MOST_OF_A_PAGE, Api, attached
from soong.orchestrator.terminal.console import confirm, emit, number_of, say, short_id, visible, why_nobody_is_asked
from soong.orchestrator.terminal.console import show as show_result
from soong.orchestrator.terminal.held_service import Interrupts
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError, UsageError
from soong.shared.core.jsontext import Json

app = CommandTable()

MANY = 1000
SHOWN = 50

_JSON = typer.Option(False, "--json", help="Print JSON.")
_IDS: Any = typer.Argument(
    [], metavar="ID", help="The questions' ids, or enough of the end or beginning of each to be the only one."
)
_OF_TASK = typer.Option("", "--task", metavar="ID", help="All questions of this task that wait.")
_OF_TOOL = typer.Option("", "--tool", metavar="NAME", help="All questions for this tool that wait.")
_SURE = typer.Option(False, "--yes", "-y", help="Do not ask before several are answered.")
_ID = typer.Argument(..., metavar="ID", help="The question's id, or enough of its end or beginning to be the only one.")
_REASON = typer.Option("", "--reason", help="The reason, which the agent receives.")
_WAIT = typer.Option(5.0, "--wait", min=0, help="Seconds to wait for the decision to take effect.")

_PAST: Final = {"allow_once": "allowed once", "allow_for_session": "allowed for the session", "deny": "denied"}


@app.command("list")
async def list_questions(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only those of this session."),
    is_all: bool = typer.Option(False, "--all", help=f"Closed ones too, the last {SHOWN}, with who answered."),
    is_json: bool = _JSON,
) -> None:
    """List what waits, oldest first; what is decided, withdrawn or expired has left the list."""
    from soong.orchestrator.terminal.question_text import list_text  # of the engine, which an answer does not need

    async with Api() as api:
        session_id = await api.find("session", session) if session else ""
        query = {"session": session_id, "state": "all" if is_all else "pending"}
        questions = await api.pages("/v1/approvals", limit=SHOWN if is_all else MANY, **query)
        questions = questions[::-1] if is_all else questions  # oldest first
    show_result(questions, lambda: list_text(questions, time.time_ns() // 1000), is_json=is_json, is_ascii=True)


@app.command()
async def show(
    question: str = _ID,
    *,
    is_full: bool = typer.Option(False, "--full", help="Every byte of the input, nothing cut."),
    is_json: bool = _JSON,
) -> None:
    """Show one question: who asks, for what, and the target as it is now. Texts of an agent are shown inert."""
    from soong.orchestrator.terminal.question_text import show_text

    async with Api() as api:
        shown = await api.get(f"/v1/approvals/{await api.find('approval', question)}")
    now_us = time.time_ns() // 1000
    show_result(shown, lambda: show_text(shown, now_us, is_full=is_full), is_json=is_json, is_ascii=True)


@app.command()
async def allow(
    questions: list[str] = _IDS,
    *,
    task: str = _OF_TASK,
    tool: str = _OF_TOOL,
    is_sure: bool = _SURE,
    for_session: bool = typer.Option(False, "--session", help="Allow this tool there for the rest of the session."),
    reason: str = _REASON,
    wait_s: float = _WAIT,
) -> None:
    """Allow the call, once; several calls, named or chosen by options, after one look at all of them."""
    choice = "allow_for_session" if for_session else "allow_once"
    await _answer(questions, task, tool, choice, reason, wait_s, is_sure=is_sure)


@app.command()
async def deny(
    questions: list[str] = _IDS,
    *,
    task: str = _OF_TASK,
    tool: str = _OF_TOOL,
    is_sure: bool = _SURE,
    reason: str = _REASON,
    wait_s: float = _WAIT,
) -> None:
    """Deny the call, or several calls; the run continues and gets the reason."""
    await _answer(questions, task, tool, "deny", reason, wait_s, is_sure=is_sure)


@app.command()
async def watch(
    *,
    session: str = typer.Option("", "--session", metavar="ID", help="Only that session's questions."),
    is_json: bool = typer.Option(False, "--json", help="Answer nothing: print questions and their ends as JSON lines."),
) -> None:
    """Show questions as they come and answer them here; Ctrl-C leaves, and answers nothing."""
    interrupts = Interrupts()
    interrupts.listen()
    # To answer takes a service; to look, the rows of a home without one are enough.
    api = Api(attached=lambda _: attached(may_start=False), is_held=not is_json)
    watching = asyncio.create_task(_stream(api, session) if is_json else _answer_here(api, session))
    interrupted = asyncio.create_task(interrupts.wait(1))
    try:
        await asyncio.wait({watching, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
    finally:
        await cancelled(watching, interrupted)
        await api.close()


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


async def _answer(
    names: Sequence[str], task: str, tool: str, choice: str, reason: str, wait_s: float, *, is_sure: bool
) -> None:
    """Answer questions, each as it was shown, and report each outcome within ``wait_s``. Raises: typer.Exit with the
    worst one; SoongError.
    """
    reason = reason.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    async with Api(may_start=False) as api:
        questions = await _chosen(api, names, task, tool, choice, is_sure=is_sure)
        worst = AnswerExitCode.DONE
        for question in questions:
            body: dict[str, Json] = {"choice": choice, "input_digest": question["input_digest"], "reason": reason}
            path = f"/v1/approvals/{question['id']}/answer"
            try:
                answered = await api.reply(
                    "POST", path, query={"wait": min(round(timing.PATIENCE_S), round(wait_s))}, body=body
                )
            except SoongError as error:
                code, sentence = refused(question, error)
            else:
                code, sentence = outcome_of(answered.document, choice)
            say(sentence)
            worst = max(worst, code)
    raise typer.Exit(worst)


async def _chosen(
    api: Api, names: Sequence[str], task: str, tool: str, choice: str, *, is_sure: bool
) -> Sequence[Document]:
    """Return the named questions, or those of a task and tool that wait; several after one yes."""
    if bool(names) is bool(task or tool):
        raise UsageError("name the questions to answer, or choose them with --task and --tool")
    if names:
        found = [await api.get(f"/v1/approvals/{await api.find('approval', name)}") for name in names]
    else:
        task_id = await api.find("task", task) if task else ""
        waiting = await api.pages("/v1/approvals", limit=MANY, state="pending")
        found = [
            one for one in waiting[::-1] if task_id in {"", one["identity"]["task_id"]} and tool in {"", one["tool"]}
        ]
        if not found:
            raise UsageError("no question of these waits")
    if not names or len(found) > 1:
        from soong.orchestrator.terminal.question_text import list_text

        verb = "deny" if choice == "deny" else "allow"
        shown = list_text(found, time.time_ns() // 1000)
        confirm(f"{verb} {number_of(len(found), 'call')}", shown, is_sure=is_sure)
    return found


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


async def _answer_here(api: Api, session_id: str) -> None:
    if nobody := why_nobody_is_asked():
        raise UsageError(f"{nobody}; use --json to look, `soong approvals allow ID` to answer")
    from soong.orchestrator.approvals.approval import check_person_now
    from soong.orchestrator.terminal.prompt import responder_here  # rich, where somebody is asked

    check_person_now("answer")
    me = await _living(api)

    if session_id:
        session = await api.get(f"/v1/sessions/{session_id}")
        if refusal := refusal_of(session, me["principal"]):
            raise UsageError(f"session {session_id!r} cannot be answered for: {refusal}")
    for_whom = f"session {session_id}" if session_id else f"every session of {me['principal']!r}"
    say(f"questions of {for_whom} are shown here; Ctrl-C leaves and answers nothing")
    await responder_here(api, session_id, lambda _held: None, lambda sentence: say(f"  {sentence}")).run()


def refusal_of(session: Document, principal: str) -> str:
    """Say why somebody may not answer for a session; empty when they may. Its owner checks the same again."""
    if session["approval_mode"] == "deny":
        return "its session is answered by its policy alone"
    if session["approval_mode"] == "prompt" and principal != session["principal"]:
        return f"its session is answered by {session['principal']!r}, and you are {principal!r} (SOONG_PRINCIPAL)"
    return ""


async def _living(api: Api) -> Document:
    """Return who we are, once there is a service."""
    is_told = False
    while True:
        try:
            return await api.get("/v1/me")
        except UnavailableError:
            if not is_told:
                say("no service is running; waiting for one …")
            is_told = True
            await asyncio.sleep(timing.POLL_ROWS_S)


async def _stream(api: Api, session_id: str) -> None:
    if session_id:
        await api.get(f"/v1/sessions/{session_id}")
    lines = QuestionLines(api, session_id)
    while True:
        await lines.poll()
        await asyncio.sleep(timing.POLL_ROWS_S)


@dataclass(slots=True)
class QuestionLines:
    """Prints each question once when it comes and once when it is closed, as JSON lines."""

    api: Api
    session_id: str
    _waiting: dict[str, Document] = field(default_factory=dict)

    async def poll(self) -> None:
        """Print what has changed since the last look; a service that is away is waited for."""
        try:
            page = await self.api.get("/v1/approvals", session=self.session_id, limit=MOST_OF_A_PAGE)
            now = {one["id"]: one for one in page["items"]}
            left = [await self.api.get(f"/v1/approvals/{one}") for one in self._waiting.keys() - now.keys()]
        except UnavailableError:
            return
        for question in sorted(left, key=lambda one: str(one["asked"])):
            if question["state"] != "pending":
                asked = self._waiting.pop(question["id"])
                _print("closed", {name: question[name] for name in asked})
        for key, question in now.items():
            if key not in self._waiting:
                _print("asked", question)
        self._waiting |= now


def _print(event: str, question: Document) -> None:
    emit({"event": event, **question}, is_line=True, is_ascii=True)
