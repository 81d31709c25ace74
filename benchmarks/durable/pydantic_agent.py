"""The agent of :mod:`folder` with Pydantic AI, in its cheapest form.

A subclass of ``Model`` costs less than ``FunctionModel``, which estimates tokens, and a coroutine less than a plain
function, which runs on a thread. There are no instructions and no instrumentation. This module imports neither ours nor
a neighbor: Celery's workers import it as well as DBOS' program.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model

AsyncTool: TypeAlias = Callable[[str], Awaitable[list[str]]]


class ScriptModel(Model):
    """Asks for the listings one after another, then answers with their number."""

    @property
    def model_name(self) -> str:
        return "script"

    @property
    def system(self) -> str:
        return "script"

    async def request(self, messages: list[ModelMessage], *_: Any, **__: Any) -> ModelResponse:
        done = _listings(messages)
        if done < _wanted(messages[0]):
            return ModelResponse([ToolCallPart("list_dir", {"path": "."}, f"call_{done}")])
        return ModelResponse([TextPart(str(done))])


def agent_of(
    list_dir: Callable[[str], list[str]], recorded: Callable[[AsyncTool], AsyncTool] | None = None, **more: Any
) -> Agent[None, str]:
    """Return the agent. ``recorded`` wraps its tool, and ``more`` is passed to Pydantic AI."""

    async def listed(path: str) -> list[str]:
        """List a directory."""
        return list_dir(path)

    return Agent(ScriptModel(), tools=[Tool(recorded(listed) if recorded else listed, name="list_dir")], **more)


def _wanted(message: ModelMessage) -> int:
    return next(int(str(part.content)) for part in message.parts if isinstance(part, UserPromptPart))


def _listings(messages: Sequence[ModelMessage]) -> int:
    returned = (part for message in messages for part in message.parts if isinstance(part, ToolReturnPart))
    return sum(part.outcome == "success" for part in returned)
