"""A terminal that answers questions: a client of the operations, as the console is (PER-13)."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from soong.orchestrator.client.home_api import ApiProblemError, Document, Query
from soong.orchestrator.client.responder import QuestionResponder
from soong.orchestrator.terminal.api import MOST_OF_A_PAGE, Api
from soong.orchestrator.terminal.console import visible
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.permissions.request import Choice

SETTLED: Final = frozenset({"already_decided", "gone"})


class SkipQuestionError(Exception):
    """Raised by a callback that wants to be shown another question first; this one stays open."""


class ResponderClosedError(Exception):
    """Raised by a callback that can be asked nothing any more, and says why; the question stays open."""


class TypedAnswer(NamedTuple):
    choice: Choice
    reason: str = ""


@dataclass
class TerminalResponder(QuestionResponder[Document]):
    """Asks a callback one question at a time. Without a ``session_id`` those of all sessions that it may answer.

    ``notify`` gets a sentence when a question is answered elsewhere or goes away while it is shown; ``on_waiting`` gets
    all that waits, oldest first.
    """

    api: Api
    session_id: str
    callback: Callable[[Document], Awaitable[TypedAnswer]]
    notify: Callable[[str], None]
    on_waiting: Callable[[Sequence[Document]], None]
    _tag: str = ""
    _put_off: list[str] = field(default_factory=list)
    """Questions that are to be shown after the others, in the order in which they were put off."""
    _refusals: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Answer until cancelled, or until the callback can be asked nothing more.
        Raises: SoongError when nothing may be answered here.
        """
        try:
            await super().run()
        finally:
            if self._waiting and (left := await self._left()):
                stay = "1 question stays" if left == 1 else f"{left} questions stay"
                hint = "`soong approvals list` shows what waits, `soong approvals allow|deny ID` answers"
                self.notify(f"{stay} open; {hint}")

    async def _poll(self) -> Mapping[str, Document]:
        query: Query = {
            "session": self.session_id,
            "attend": True,
            "wait": round(timing.PATIENCE_S),
            "limit": MOST_OF_A_PAGE,
        }
        seen = {"if-none-match": self._tag} if self._tag else {}
        while True:
            try:
                reply = await self.api.reply("GET", "/v1/approvals", query=query, headers=seen)
            except UnavailableError:
                await asyncio.sleep(timing.POLL_ROWS_S)
                continue
            self._tag = reply.headers["etag"]
            return self._waiting if not reply.document else self._ours(reply.document["items"])

    def _ours(self, questions: Sequence[Document]) -> Mapping[str, Document]:
        """Return what may be answered here; what its orchestrator settles by itself is left to it."""
        for one in questions:
            why = one["may_not_because"]
            if self.session_id and why and "without asking" not in why and why not in self._refusals:
                self._refusals.add(why)
                self.notify(f"questions are not answered here: {visible(why)}")
        return {one["id"]: one for one in questions if one["may_answer"]}

    def _take(self, waiting: Mapping[str, Document]) -> None:
        super()._take(waiting)
        self.on_waiting([*self._open.values()])

    def _lane(self, question: Document) -> Hashable:
        session, grant = question["identity"]["session_id"], question["session_grant"]
        return (session, question["tool"], grant) if grant else (session, "", question["id"])

    async def _gone(self, question: Document) -> None:
        try:
            sentence = (await self.api.get(f"/v1/approvals/{question['id']}"))["sentence"]
        except SoongError:  # it is gone either way
            sentence = "it has been settled"
        self.notify(f"the question about {visible(question['tool'])} was settled elsewhere: {visible(sentence)}")

    def _first(self, free: Sequence[str]) -> str:
        """Return the oldest; one of those that were put off comes when no other is left."""
        self.on_waiting([*self._open.values()])
        self._put_off = [one for one in self._put_off if one in free]
        return min(free, key=lambda one: self._put_off.index(one) if one in self._put_off else -1)

    async def _answer(self, question: Document) -> None:
        try:
            answer = await self.callback(question)
        except SkipQuestionError:
            self._put_off = [*(one for one in self._put_off if one != question["id"]), question["id"]]
            return
        except ResponderClosedError as error:
            self._is_over = True
            self.notify(str(error))
            return
        self._gave(question["id"], question, answer.choice)
        await self._send(question, answer)

    async def _send(self, question: Document, answer: TypedAnswer) -> None:
        """Send an answer, however long the service is away."""
        tool = visible(question["tool"])
        body = {"choice": str(answer.choice), "input_digest": question["input_digest"], "reason": answer.reason}
        while True:
            try:
                await self.api.reply("POST", f"/v1/approvals/{question['id']}/answer", query={"wait": 0}, body=body)
            except UnavailableError:
                await asyncio.sleep(timing.POLL_ROWS_S)
                continue
            except SoongError as error:
                problem = error.__cause__
                if isinstance(problem, ApiProblemError) and problem.code in SETTLED:
                    state = visible(str(problem.document.get("state", "settled")))
                    self.notify(f"the question about {tool} was already {state}; your answer was not needed")
                else:  # asked again it would fail again: the owner ends the question by time
                    self.notify(f"the answer about {tool} could not be stored: {visible(str(error))}")
            return

    async def _left(self) -> int:
        """Return how many questions stay open: what ended with their task, after the last look, does not."""
        try:
            async with asyncio.timeout(timing.POLL_ROWS_S):
                found = await self.api.get("/v1/approvals", session=self.session_id, limit=MOST_OF_A_PAGE)
        except (SoongError, TimeoutError):
            return len(self._open)
        return sum(one["may_answer"] for one in found["items"])
