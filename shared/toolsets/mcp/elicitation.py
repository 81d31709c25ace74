"""What a server asks a person during a call: a question to the session's one callback, and its answer (MCP-01.d).

A server is shared by the calls of many runs. A question in the answer of a call (a part of its result on the stateless
wire, a request in its HTTP response on the handshake wire) is that call's. Over the pipes of a program a request names
no call: it is routed while exactly one call is under way there, and declined otherwise. Nothing that a server says
opens a page or is believed.
"""

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.core.mcp_config import McpServerConfig
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url, normal_host
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.definition import CallAnswer, CallQuestion, Target, ToolContext
from soong.shared.toolsets.mcp.forms import ElicitationForm, FormAnswerError, FormRefusedError, form_of

if TYPE_CHECKING:
    from mcp_types import ElicitResult

METHOD: Final = "elicitation/create"
ASK_S: Final = 600.0
"""How long a person may take: the run keeps its slot, and the server its call, for as long."""
MAX_ROUNDS: Final = 3
"""How often a person is asked for words that the form takes."""
MAX_QUESTIONS: Final = 10
"""More questions of one call are declined."""
MAX_MESSAGE_CHARS: Final = 4_000
MAX_URL_CHARS: Final = 2_000
_SHOWN_CHARS: Final = 200

Action = Literal["accept", "decline", "cancel"]


@dataclass(slots=True, eq=False)
class CallElicitations:
    """The questions of a server during one call. ``declined`` are the messages of those that no person accepted."""

    server_id: str
    config: McpServerConfig
    tool: ToolContext
    declined: list[str] = field(default_factory=list)
    asked: int = 0
    _asking: "set[asyncio.Task[ElicitResult]]" = field(default_factory=set)
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)

    async def answer(self, params: Any) -> "ElicitResult":
        """Return what a person answers; a call that ends meanwhile has been cancelled there too."""
        # In the context of the call: the SDK calls from the task of the connection, which another run has opened.
        task = asyncio.get_running_loop().create_task(self._answered(params), context=self._context)
        self._asking.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # its call is over
                return _result("cancel")
            task.cancel()
            raise
        finally:
            if task.done():
                self._asking.discard(task)

    async def close(self) -> None:
        """Withdraw what is still asked."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def refuse(self, said: str, why: str) -> "ElicitResult":
        """Decline without asking anybody, and say so in the run's log."""
        self.declined.append(said)
        await self._note(said, "decline", why)
        return _result("decline")

    async def _answered(self, params: Any) -> "ElicitResult":
        said = inert_text(str(getattr(params, "message", "")))[:MAX_MESSAGE_CHARS]
        self.asked += 1
        if self.asked > MAX_QUESTIONS:
            return await self.refuse(said, f"the server has asked {MAX_QUESTIONS} times in this call")
        try:
            asked = _Asked.of(self, params, said)
        except FormRefusedError as error:
            return await self.refuse(said, str(error))
        action, content, why = await self._asked(asked)
        if action != "accept":
            self.declined.append(said)
        await self._note(said, action, why)
        return _result(action, content)

    async def _asked(self, asked: "_Asked") -> tuple[Action, Any, str]:
        problem = ""
        try:
            async with asyncio.timeout(ASK_S):
                for _ in range(MAX_ROUNDS):
                    answer = await self.tool.ask(asked.question(problem))
                    if not answer.is_accepted:
                        return "decline", None, _why_not(answer)
                    try:
                        return "accept", asked.content(answer.reason), "a person accepted"
                    except FormAnswerError as error:
                        problem = str(error)
        except TimeoutError:
            return "decline", None, f"nobody answered within {ASK_S:g} s"
        return "decline", None, f"after {MAX_ROUNDS} answers that do not fit the form: {problem}"

    async def _note(self, said: str, action: Action, why: str) -> None:
        message = f"the server asks a person ({action}: {inert_text(why)}): {said[:500]}"
        await self.tool.progress.report(message, {"elicitation": action, "reason": inert_text(why)[:500]})


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question of a server, read. ``url`` is the page of one that wants the person to open it."""

    call: CallElicitations
    message: str
    form: ElicitationForm | None
    url: str = ""
    host: str = ""

    @classmethod
    def of(cls, call: CallElicitations, params: Any, message: str) -> "_Asked":
        """Raises: FormRefusedError."""
        if getattr(params, "mode", "form") == "url":
            return cls(call, message, None, *_page(str(getattr(params, "url", ""))))
        return cls(call, message, form_of(getattr(params, "requested_schema", None) or {}, message))

    def content(self, words: str) -> Any:
        """Raises: FormAnswerError."""
        return None if self.form is None else self.form.answer_of(words)

    def question(self, problem: str) -> CallQuestion:
        server, config = self.call.server_id, self.call.config
        trust = "trusted" if config.trusted else "not trusted"
        lines = [f"The MCP server {server} ({trust}) asks during this call. These are its words:"]
        lines += [f"| {line}" for line in self.message.splitlines()]
        asked: JsonObject
        if self.form is None:
            lines += [f"It wants you to open a page of {self.host}. Soong does not open it:", f"| {self.url}"]
            lines += ["allow once tells the server that you agree; deny declines"]
            asked = {"server": server, "message": self.message, "url": self.url}
        else:
            lines += [f"| {one.line}" for one in self.form.fields]
            lines += ["Give no secrets: the answer goes to the server and is recorded.", f"How: {self.form.how}"]
            asked = {"server": server, "message": self.message, "fields": [one.line for one in self.form.fields]}
        if problem:
            lines.append(f"Asked again, because the answer does not fit: {inert_text(problem)}")
            asked = {**asked, "problem": problem}
        first = self.message.partition("\n")[0][:_SHOWN_CHARS]
        target = Target(
            "resource",
            shown=f"{server}: {first}",
            host=host_of_url(config.url) if config.url else "",
            preview="\n".join(lines),
        )
        return CallQuestion(f"mcp.{server}.{METHOD}", asked, target)


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
    said = inert_text(str(getattr(params, "message", "")))[:MAX_MESSAGE_CHARS]
    why = f"{len(calls)} calls are under way at the server, and it does not say which one it asks for"
    for one in tuple(calls):
        await one.refuse(said, why)
    return _result("decline")


def _why_not(answer: CallAnswer) -> str:
    return answer.reason or ("a person declined" if answer.is_person else "nobody was asked")


def _page(url: str) -> tuple[str, str]:
    """Return the address of a page and its host, as a person is shown them. Raises: FormRefusedError."""
    shown = inert_text(url)
    try:
        parts = urlsplit(url)
        host = normal_host(parts.hostname or "")
    except (HostRefusedError, ValueError) as error:
        raise FormRefusedError(f"the page that it wants to be opened has no valid address: {error}") from error
    is_local = host in ("127.0.0.1", "localhost", "::1")
    if (
        shown != url
        or len(url) > MAX_URL_CHARS
        or not (parts.scheme == "https" or (parts.scheme == "http" and is_local))
    ):
        raise FormRefusedError("the page that it wants to be opened is not an https address that can be shown")
    if parts.username is not None or parts.password is not None:
        raise FormRefusedError("the address of the page that it wants to be opened hides its host behind a name")
    return url, host


def _result(action: Action, content: Any = None) -> "ElicitResult":
    from mcp_types import ElicitResult

    return ElicitResult(action=action, content=content) if content is not None else ElicitResult(action=action)
