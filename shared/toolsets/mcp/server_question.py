"""One question of a server, read: what a person, a hook and a callback are shown of it, and what answers it.

A server's words are shown as its words. A page is shown with its host and opened by nobody but the person.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.mcp_config import McpServerConfig
from soong.shared.core.value import Value
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url, normal_host
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.definition import CallQuestion, Target
from soong.shared.tools.elicitation import question_tool
from soong.shared.toolsets.mcp.forms import ElicitationForm, FieldValue, FormRefusedError, form_of

MAX_MESSAGE_CHARS: Final = 4_000
MAX_URL_CHARS: Final = 2_000
_SHOWN_CHARS: Final = 200


class ServerQuestion(Value):
    """One question. ``url`` is the page of one that wants the person to open it, which has no form.

    ``repeats_call``: the server has refused the call for now, and a yes has it made again (MCP-01.k).
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
        """Return the question as it is asked; ``problem`` says what was wrong with the answer before."""
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


def message_of(params: object) -> str:
    """Return a server's words as they may be shown."""
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
    if (
        shown != url
        or len(url) > MAX_URL_CHARS
        or not (parts.scheme == "https" or (parts.scheme == "http" and is_local))
    ):
        raise FormRefusedError("the page that it wants to be opened is not an https address that can be shown")
    if parts.username is not None or parts.password is not None:
        raise FormRefusedError("the address of the page that it wants to be opened hides its host behind a name")
    return url, host
