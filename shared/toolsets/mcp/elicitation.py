"""A server's question to a person during a call: its call, the hooks around it, the answer (MCP-01.d).

A server is shared by the calls of many runs. A question in the answer of a call (a part of its result on the stateless
wire, a request in its HTTP response on the handshake wire, or its error) is that call's. Over the pipes of a program a
request names no call: it is routed while exactly one call is under way there, and declined otherwise. No word of a
server opens a page or is believed.
"""

import asyncio
import contextvars
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.program_config import McpServerConfig
from soong.shared.core.value import Value
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url, normal_host
from soong.shared.sandbox.redact import inert_text
from soong.shared.tools.definition import CANCEL, CallQuestion, ElicitationAnswer, Target, ToolContext, question_tool
from soong.shared.toolsets.mcp.forms import ElicitationForm, FieldValue, FormAnswerError, FormRefusedError, form_of

if TYPE_CHECKING:
    from mcp_types import ElicitResult


MAX_ROUNDS: Final = 3
"""How often a person is asked for words that the form takes."""
MAX_QUESTIONS: Final = 10
"""More questions of one call are declined."""

MAX_MESSAGE_CHARS: Final = 4_000
MAX_URL_CHARS: Final = 2_000
_SHOWN_CHARS: Final = 200


class ServerQuestion(Value):
    """One question. ``url`` is the page of one that wants the person to open it, which has no form. ``repeats_call``:
    the server has refused the call for now, and a yes has it made again (MCP-01.k).
    """

    server: str
    config: McpServerConfig
    message: str
    form: ElicitationForm | None
    url: str = ""
    host: str = ""
    repeats_call: bool = False

    @classmethod
    def of(
        cls, server: str, config: McpServerConfig, params: object, *, repeats_call: bool = False
    ) -> "ServerQuestion":
        """Read the parameters of a request. Raises: FormRefusedError."""
        message = message_of(params)
        if getattr(params, "mode", "form") == "url":
            url, host = _page(str(getattr(params, "url", "")))
            return cls(server, config, message, None, url, host, repeats_call)
        return cls(server, config, message, form_of(getattr(params, "requested_schema", None) or {}, message))

    def content_of(self, words: str) -> dict[str, FieldValue] | None:
        """Return a person's words as what the server gets. Raises: FormAnswerError."""
        return None if self.form is None else self.form.answer_of(words)

    def checked(self, content: JsonObject | None) -> dict[str, FieldValue] | None:
        """Return what a hook answers as what the server gets, held to the form. Raises: FormAnswerError."""
        return self.content_of(dump(content or {}))

    def question(self, problem: str = "") -> CallQuestion:
        """Return the question as it is asked; ``problem`` is the error of the answer before."""
        lines = [*self._lines()]
        asked: dict[str, Json] = {"server": self.server, "message": self.message}
        if self.form is None:
            asked |= {"mode": "url", "url": self.url, "host": self.host, "repeats_call": self.repeats_call}
        else:
            asked |= {"mode": "form", "schema": self.form.schema}
        if problem:
            lines.append(f"Asked again, because the answer does not fit: {inert_text(problem)}")
            asked["problem"] = problem
        first = self.message.partition("\n")[0][:_SHOWN_CHARS]
        target = Target(
            "resource",
            shown=f"{self.server}: {first}",
            host=host_of_url(self.config.url) if self.config.url else "",
            preview="\n".join(lines),
        )
        return CallQuestion(question_tool(self.server), asked, target)

    def _lines(self) -> list[str]:
        trust = "trusted" if self.config.trusted else "not trusted"
        lines = [f"The MCP server {self.server} ({trust}) asks during this call. These are its words:"]
        lines += [f"| {line}" for line in self.message.splitlines()]
        if self.form is not None:
            lines += [f"| {one.line}" for one in self.form.fields]
            return [*lines, "Give no secrets: the answer goes to the server and is recorded.", f"How: {self.form.how}"]
        lines += [f"It wants you to open a page of {self.host}. Soong does not open it:", f"| {self.url}"]
        if self.repeats_call:
            return [*lines, "allow once, when you have finished there, has the call made again; deny declines"]
        return [*lines, "allow once tells the server that you agree; deny declines"]


@dataclass(slots=True, eq=False)
class CallElicitations:
    """The questions of a server during one call. ``declined`` are the messages of those that nobody accepted."""

    server_id: str
    config: McpServerConfig
    tool: ToolContext
    declined: list[str] = field(default_factory=list)
    asked: int = 0
    _asking: "set[asyncio.Task[ElicitResult]]" = field(default_factory=set)
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)

    async def answer(self, params: Any) -> "ElicitResult":
        """Return what is answered; a call that ends meanwhile has been cancelled there too."""
        # In the context of the call: the SDK calls from the task of the connection, which another run has opened.
        task = asyncio.get_running_loop().create_task(self._answered(params), context=self._context)
        self._asking.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # its call is over
                return _result(ElicitationAnswer("cancel"))
            task.cancel()
            raise
        finally:
            if task.done():
                self._asking.discard(task)

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def refuse(self, said: str, why: str) -> "ElicitResult":
        """Decline without asking anybody, and say so in the run's log."""
        return _result(await self._ended(said, ElicitationAnswer("decline", reason=why)))

    async def are_pages_opened(self, data: object) -> bool:
        """Say whether every page that the error of this call names was agreed to; the first no ends it (MCP-01.k)."""
        try:
            pages = pages_of(data)
            if self.asked + len(pages) > MAX_QUESTIONS:
                raise FormRefusedError(f"it names {len(pages)} pages; a call asks {MAX_QUESTIONS} times at most")
            questions = [ServerQuestion.of(self.server_id, self.config, page, repeats_call=True) for page in pages]
        except FormRefusedError as error:
            await self.refuse("a page has to be opened first", str(error))
            return False
        for question in questions:
            self.asked += 1
            if (await self._ended(question.message, await self._settled(question))).action != "accept":
                return False
        return True

    async def _answered(self, params: Any) -> "ElicitResult":
        said = message_of(params)
        self.asked += 1
        if self.asked > MAX_QUESTIONS:
            return await self.refuse(said, f"the server has asked {MAX_QUESTIONS} times in this call")
        try:
            question = ServerQuestion.of(self.server_id, self.config, params)
        except FormRefusedError as error:
            return await self.refuse(said, str(error))
        return _result(await self._ended(said, await self._settled(question)))

    async def _settled(self, question: ServerQuestion) -> ElicitationAnswer:
        """Return the answer of a hook or a person, as the hooks after it leave it."""
        around, asked = self.tool.around_question, question.question()
        try:
            async with asyncio.timeout(timing.PERSON_LIMIT_S):
                said = await around.before(asked)
                answer = await self._asked(question) if said is None else _held(question, said)
                left = await around.after(asked, answer)
                return answer if left is answer else _held(question, left)
        except TimeoutError:
            return ElicitationAnswer("decline", reason=f"nobody answered within {timing.PERSON_LIMIT_S:g} s")

    async def _asked(self, question: ServerQuestion) -> ElicitationAnswer:
        problem = ""
        for _ in range(MAX_ROUNDS):
            answer = await self.tool.ask(question.question(problem))
            if not answer.is_accepted:
                why = answer.reason or ("a person declined" if answer.is_person else "nobody was asked")
                # A person may close a question without a choice.
                is_closed = answer.is_person and answer.reason.strip().partition(":")[0].casefold() == CANCEL
                return ElicitationAnswer("cancel" if is_closed else "decline", reason=why)
            try:
                return ElicitationAnswer("accept", question.content_of(answer.reason), "a person accepted")
            except FormAnswerError as error:
                problem = str(error)
        return ElicitationAnswer("decline", reason=f"after {MAX_ROUNDS} answers that do not fit the form: {problem}")

    async def _ended(self, said: str, answer: ElicitationAnswer) -> ElicitationAnswer:
        """Note how a question ended, in the run's log too."""
        if answer.action != "accept":
            self.declined.append(said)
        why = inert_text(answer.reason)
        message = f"the server asks a person ({answer.action}: {why}): {said[:500]}"
        await self.tool.progress.report(message, {"elicitation": answer.action, "reason": why[:500]})
        return answer


_CURRENT: contextvars.ContextVar[CallElicitations | None] = contextvars.ContextVar("mcp_call", default=None)


@contextmanager
def current(call: CallElicitations) -> Iterator[None]:
    """Let the questions that the SDK's client passes on within this be of that call."""
    token = _CURRENT.set(call)
    try:
        yield
    finally:
        _CURRENT.reset(token)


async def answer_of(calls: "set[CallElicitations]", params: Any) -> "ElicitResult":
    """Answer a question of a server; ``calls`` are those that are under way there."""
    call = _CURRENT.get()
    if call is not None and call in calls:
        return await call.answer(params)
    if len(calls) == 1:
        return await next(iter(calls)).answer(params)
    why = f"{len(calls)} calls are under way at the server, and it does not say which one it asks for"
    for one in tuple(calls):
        await one.refuse(message_of(params), why)
    return _result(ElicitationAnswer("decline"))


def _held(question: ServerQuestion, answer: ElicitationAnswer) -> ElicitationAnswer:
    """Return a hook's answer, held to the form; one that does not fit declines."""
    if answer.action != "accept":
        return replace(answer, content=None)
    try:
        return replace(answer, content=question.checked(answer.content))
    except FormAnswerError as error:
        return ElicitationAnswer("decline", reason=f"the answer of a hook does not fit the form: {error}")


def _result(answer: ElicitationAnswer) -> "ElicitResult":
    from mcp_types import ElicitResult

    if answer.content is None:
        return ElicitResult(action=answer.action)
    return ElicitResult.model_validate({"action": answer.action, "content": dict(answer.content)})


def message_of(params: object) -> str:
    return inert_text(str(getattr(params, "message", "")))[:MAX_MESSAGE_CHARS]


def pages_of(data: object) -> list[Any]:
    """Return the parameters of each page that the error of a call names. Raises: FormRefusedError."""
    from mcp_types import ElicitRequestURLParams
    from pydantic import ValidationError

    listed = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(listed, list) or not listed:
        raise FormRefusedError("it names no page that a person could open")
    try:
        return [ElicitRequestURLParams.model_validate(one) for one in listed]
    except ValidationError as error:
        raise FormRefusedError("it names something other than pages that a person could open") from error


def _page(url: str) -> tuple[str, str]:
    """Return the address of a page and its host, as a person is shown them. Raises: FormRefusedError."""
    shown = inert_text(url)
    try:
        parts = urlsplit(url)
        host = normal_host(parts.hostname or "")
    except (HostRefusedError, ValueError) as error:
        raise FormRefusedError(f"the page that it wants to be opened has no valid address: {error}") from error
    is_local = host in ("127.0.0.1", "localhost", "::1")
    is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_local)
    if shown != url or len(url) > MAX_URL_CHARS or not is_secure:
        raise FormRefusedError("the page that it wants to be opened is not an https address that can be shown")
    if parts.username is not None or parts.password is not None:
        raise FormRefusedError("the address of the page that it wants to be opened hides its host behind a name")
    return url, host
