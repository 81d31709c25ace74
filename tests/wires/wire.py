"""One wire of each provider: the model's name, and how an agent is run over it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmock.pytest_plugin import LLMock
from llmock.scenarios import Behavior
from llmock.testing import LLMockServer
from llmock.verdict import Verdict, judge
from msgspec.structs import replace

from soong.shared.agents.loop import run_agent
from soong.shared.agents.model import resolve_model
from soong.shared.agents.ports import AgentEnd, AgentTask, AnswerView
from soong.shared.agents.run_models import Fallbacks, RunModel
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.tools.definition import Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from tests.unit.agents.parts import Notebook, RuleGate, make_task

MODELS: Final = {
    "openai-chat": "openai-chat:gpt-5",
    "openai-responses": "openai-responses:gpt-5",
    "anthropic": "anthropic:claude-sonnet-5-5",
    "google": "google:gemini-2.5-flash",
    "ollama": "ollama:llama3",
}


async def _look(_context: ToolContext, call_input: JsonObject) -> Json:
    return f"in {call_input['path']}: one file"


PATH: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "depth": {"type": "integer"},
        "names": {"type": "array", "items": {"type": "string"}},
        "pattern": {"type": "string"},
    },
    "required": ["path"],
}
LOOK: Final = ToolDefinition("code.list_dir", "List a folder.", PATH, _look, Permission.READONLY)


@dataclass(frozen=True, slots=True)
class Wires:
    """The server, what it is to do, and what it saw."""

    server: LLMockServer

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which the providers' clients find the server."""
        return {**LLMock(self.server).env(), "OLLAMA_BASE_URL": self.server.base_url("openai"), "OLLAMA_API_KEY": "k"}

    def will(self, *behaviors: Behavior) -> None:
        """Do these things in order, at most one of each sort for one request."""
        self.server.state.scenarios.add(*behaviors)

    @property
    def requests(self) -> list[Any]:
        return self.server.state.journal.records(wait=2.0)

    @property
    def verdict(self) -> Verdict:
        """Return what the server thinks of its client."""
        return judge(self.requests)

    async def run(
        self,
        wire: str,
        task: AgentTask | None = None,
        *,
        notebook: Notebook | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        view: AnswerView | None = None,
        fallbacks: Sequence[str] = (),
    ) -> AgentEnd:
        """Run an agent over a wire, with one tool. ``fallbacks`` are models by their names."""
        task = replace(task or make_task(), tools=(LOOK,))
        notebook = notebook or Notebook()
        scope = RunScope(task.identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
        pipeline = ToolPipeline(task.tools, scope, RuleGate(), notebook)
        model = resolve_model(MODELS[wire])
        async with AsyncExitStack() as stack:  # connections are of this test's loop

            async def opened(name: str) -> RunModel:
                return RunModel(name, await stack.enter_async_context(resolve_model(name)))

            await stack.enter_async_context(model)
            return await run_agent(
                task,
                model,
                pipeline,
                notebook,
                notebook,
                SystemClock(),
                sleep=sleep,
                view=view,
                fallbacks=Fallbacks(tuple(fallbacks), opened),
            )
