"""What every message passes before a tool does: the caller's right, and arguments that the tool knows.

The API refuses as well; here a refusal says to a model, or to the person behind it, what to do about it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel

from soong.orchestrator.mcp.api import ServerState
from soong.shared.core.inert import inert
from soong.shared.core.value import Value
from soong.shared.engine.tasks.problems import Unknown

READ, RUN, APPROVE = "read", "run", "approve"

MAX_NAME_CHARS: Final = 80
_HOW_TO: Final = {
    RUN: "serve without --read-only, or over HTTP send a token that has it (`soong tokens create --right run`)",
    APPROVE: "serve with `soong mcp serve --approve`, or over HTTP send a token that has it",
}
_FACTS: Final = re.compile(
    r" \[type=\w+, input_value=.*, input_type=\w+\]$|^ *For \w+ information visit .*$", re.MULTILINE
)
_HEAD: Final = re.compile(r"\d+ validation errors? for \w+")


class CallCheck(Value):
    """Middleware of the server. ``rights`` and ``arguments`` are by the names of its tools."""

    rights: Mapping[str, str]
    arguments: Mapping[str, Sequence[str]]

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Show and run only tools that the caller has the right for."""
        if ctx.method == "tools/list":
            return self._shown(await call_next(ctx), _rights_of(ctx))
        if ctx.method != "tools/call":
            return await call_next(ctx)
        params = ctx.params or {}
        problem = self._problem(params.get("name"), params.get("arguments"), _rights_of(ctx))
        return _failure(problem) if problem else _in_plain_words(await call_next(ctx))

    def _shown(self, result: HandlerResult, rights: frozenset[str]) -> HandlerResult:
        sent = _as_sent(result)
        return {**sent, "tools": [one for one in sent["tools"] if self.rights[one["name"]] in rights]}

    def _problem(self, name: object, arguments: object, rights: frozenset[str]) -> str:
        """Say what speaks against a call; empty when nothing does."""
        if not isinstance(name, str) or name not in self.rights:
            visible = [one for one, right in self.rights.items() if right in rights]
            wanted = str(name)[:MAX_NAME_CHARS]
            return f"there is no tool {wanted!r}; {Unknown(wanted, visible).text()}"
        right, known = self.rights[name], self.arguments[name]
        if right not in rights:
            return f"{name} needs the right {right!r}, which you do not have: {_HOW_TO[right]}"
        unknown = [one for one in arguments if one not in known] if isinstance(arguments, Mapping) else []
        if unknown:
            argument = str(unknown[0])[:MAX_NAME_CHARS]
            return f"{name} has no argument {argument!r}; {Unknown(argument, known).text()}"
        return ""


def _rights_of(ctx: ServerRequestContext[ServerState, Any]) -> frozenset[str]:
    return frozenset({READ}) | ctx.lifespan_context.rights_of(ctx.request)


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=inert(text, keeps_blanks=True))], is_error=True)


def _in_plain_words(result: HandlerResult) -> HandlerResult:
    """Return a failure without what only a programmer of this server can use."""
    sent = _as_sent(result)
    if not sent.get("isError"):
        return result
    return {**sent, "content": [{**one, "text": _plain(one["text"])} for one in sent["content"] if "text" in one]}


def _as_sent(result: HandlerResult) -> dict[str, Any]:
    """Return a result as it goes over the wire, whether or not that has been made of it."""
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return result or {}


def _plain(text: str) -> str:
    said = _HEAD.sub("the arguments are not valid:", _FACTS.sub("", text.removeprefix("Error executing tool ")))
    return "\n".join(line for line in said.splitlines() if line.strip())
