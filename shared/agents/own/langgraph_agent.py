"""Compiled LangGraph graphs as steps (BYO-02).

A graph holds its models and tools in closures, where nobody can exchange them. So the methods by which LangChain calls
every model and every tool ask who serves the current context: outside of a served graph, and within the call of a
tool, nobody does, and they are LangChain's own.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar, copy_context
from itertools import count
from typing import Any, NamedTuple, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, messages_from_dict, messages_to_dict
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import BaseTool
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from pydantic_ai.messages import ModelRequest, ModelResponse, ModelResponsePart, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_jsonable_python

from soong.shared.agents.own.port import (
    KEY,
    LONGEST,
    RAISED,
    HostRun,
    LibraryModel,
    OwnRequest,
    OwnTool,
    UnfitAgentError,
    dependencies,
    value_of,
)
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import in_thread
from soong.shared.core.jsontext import Json, JsonObject, digest, dump
from soong.shared.engine.tasks.functions import RegisteredAgent, StepContext
from soong.shared.tools.result import ErrorType, ToolError

RECORD = "langgraph"
"""In the details of a recorded answer: its message, as LangChain has it."""


class _Service(NamedTuple):
    """The run that serves the current context, on its event loop."""

    agent: "GraphAgent"
    host: HostRun
    loop: asyncio.AbstractEventLoop
    numbers: "count[int]"
    waits: "set[asyncio.Task[Any]]"
    """For which threads of the graph wait."""


_SERVICE: ContextVar[_Service | None] = ContextVar("soong_graph_service", default=None)


def check(graph: Pregel[Any, Any, Any, Any]) -> frozenset[str] | None:
    """Return the names of the tools in the graph's tool nodes; None where it has none."""
    nodes = [node.bound for node in graph.nodes.values() if isinstance(node.bound, ToolNode)]
    return frozenset(name for node in nodes for name in node.tools_by_name) if nodes else None


def open_agent(registered: RegisteredAgent, context: StepContext, model: Any) -> "GraphAgent":
    if model is not None:
        words = f"the graph {registered.name!r} sends its requests itself"
        raise InvalidConfigError(f"{words}: set the models of the graph, and leave `model` out of the step")
    return GraphAgent(registered, context)


class GraphAgent:
    """Implements :class:`soong.shared.agents.own.port.OwnAgent`."""

    has_fallbacks = False
    limits, outputs = (GraphRecursionError,), ()

    def __init__(self, registered: RegisteredAgent, context: StepContext) -> None:
        self.name, self.model_name = registered.name, f"langgraph:{registered.name}"
        self.registered, self._context = registered, context
        self.model = LibraryModel(self, registered.name, "langgraph")

    async def run(self, prompt: str, inputs: JsonObject, host: HostRun) -> Json:
        if host.tools:
            words = "cannot be offered tools: the models of a graph know those that it was built with"
            raise UnfitAgentError(f"{words}; leave `allowed_tools` out of the step")
        graph = self.registered.agent
        state: dict[str, Any] = {name: value for name, value in inputs.items() if name in graph.channels}
        if "messages" in graph.channels:
            state["messages"] = [HumanMessage(prompt)]
        async with AsyncExitStack() as stack:
            context = await dependencies(self.registered, inputs, self._context, stack)
            service = _Service(self, host, asyncio.get_running_loop(), count(1), set())
            token = _SERVICE.set(service)
            try:
                # The record of the run is what it continues from: a checkpoint would begin it in the middle.
                result = await graph.copy({"checkpointer": None}).ainvoke(state, context=context)
            finally:
                _SERVICE.reset(token)
                for one in tuple(service.waits):
                    one.cancel()
        return self._output(result)

    def _output(self, state: Any) -> Json:
        """Return a graph's structured response; else the text of its last message; else its state."""
        if not isinstance(state, dict) or "messages" not in state:
            return to_jsonable_python(state)  # type: ignore[no-any-return]  # JSON
        if "structured_response" in state:
            return to_jsonable_python(state["structured_response"])  # type: ignore[no-any-return]
        rest = {name: value for name, value in state.items() if name != "messages"}
        return to_jsonable_python(rest) if rest else str(state["messages"][-1].text)

    # -- requests
    async def answer(self, service: _Service, model: BaseChatModel, messages: list[Any], send: Any) -> ChatGeneration:
        """Have one request of a model of the graph be a turn of the run; ``send`` returns the model's own result."""
        about = model._get_ls_params()  # noqa: SLF001  # what LangChain tells its tracers of a model
        name, provider = str(about.get("ls_model_name", "")), str(about.get("ls_provider", ""))
        asked = [{"type": one["type"], **one["data"], "id": None} for one in messages_to_dict(messages)]
        key = digest({"model": name, "messages": to_jsonable_python(asked, fallback=str)})

        async def recorded(_settings: Any) -> ModelResponse:
            generation = (await send()).generations[0][0]
            return _recorded(generation.message, name, provider, key)

        begins = not any(isinstance(one, AIMessage) for one in messages)
        self.model.rename(name, provider)
        request = OwnRequest(
            [ModelRequest(parts=[UserPromptPart(dump(to_jsonable_python(asked, fallback=str)))])],
            ModelRequestParameters(),
            tuple(str(one.text) for one in messages if isinstance(one, HumanMessage)) if begins else (),
            "\n\n".join(str(one.text) for one in messages if one.type == "system"),
            {},
            recorded,
            key,
        )
        return ChatGeneration(message=_restored(await service.host.request(request)))

    # -- calls
    async def call(self, service: _Service, tool: BaseTool, given: Any, call_id: str | None, make: Any) -> Any:
        """Have one call of a tool of the graph be a call of the run; ``make`` calls the tool with a changed input."""

        async def made(changed: JsonObject | None) -> Any:
            value = await make({**given, **changed} if changed and isinstance(given, dict) else given)
            if isinstance(value, ToolMessage):
                return {"content": value.content, "status": value.status, "artifact": value.artifact}
            if type(value).__name__ == "Command":
                words = f"{tool.name} returns a Command, which a run cannot record; return a value"
                raise ToolError(ErrorType.INVALID_OUTPUT, words, details={RAISED: True})
            return to_jsonable_python(value, fallback=str)

        arguments = to_jsonable_python(given if isinstance(given, dict) else {"input": given}, fallback=str)
        is_readonly = tool.name in self.registered.readonly
        own = OwnTool(made, tool.description, is_readonly, LONGEST)
        name = call_id or f"own{next(service.numbers)}"
        result = await service.host.call(name, tool.name, arguments, own)
        value = value_of(result)
        if not call_id:
            return value
        kept = {"content": value, "status": "error"} if isinstance(value, str) else cast("dict[str, Any]", value)
        return ToolMessage(**kept, name=tool.name, tool_call_id=call_id)


def _recorded(message: Any, name: str, provider: str, key: str) -> ModelResponse:
    """Return the form of an answer that is recorded: its text and calls for people, and its message."""
    parts: list[ModelResponsePart] = [TextPart(str(message.text))] if message.text else []
    parts += [ToolCallPart(call["name"], call["args"], call["id"]) for call in message.tool_calls]
    used = message.usage_metadata or {}
    cached = used.get("input_token_details", {}).get("cache_read", 0)
    usage = RequestUsage(
        input_tokens=used.get("input_tokens", 0), output_tokens=used.get("output_tokens", 0), cache_read_tokens=cached
    )
    details = {RECORD: messages_to_dict([message])[0], "finish_reason": "stop"}
    return ModelResponse(
        parts, usage=usage, model_name=name, provider_name=provider, provider_details=details, metadata={KEY: key}
    )


def _restored(answer: ModelResponse) -> AIMessage:
    """Return the message of an answer, with the ids that its calls have in the run."""
    (message,) = messages_from_dict([(answer.provider_details or {})[RECORD]])
    ids = [part.tool_call_id for part in answer.parts if isinstance(part, ToolCallPart)]
    for call, call_id in zip(message.tool_calls, ids, strict=True):  # type: ignore[attr-defined]  # an AIMessage
        call["id"] = call_id
    return message  # type: ignore[return-value]


# -- what LangChain calls
def _unserved(call: Callable[[], Any]) -> Any:
    """Make a call that is LangChain's own, and all that it calls."""

    def bare() -> Any:
        _SERVICE.set(None)
        return call()

    return copy_context().run(bare)


def _bridged(service: _Service, work: Awaitable[Any]) -> Any:
    """Wait on a thread for work on the event loop of the run."""

    async def awaited() -> Any:
        service.waits.add(task := cast("asyncio.Task[Any]", asyncio.current_task()))
        try:
            return await work
        finally:
            service.waits.discard(task)

    return asyncio.run_coroutine_threadsafe(awaited(), service.loop).result()


def _serve(kind: type[Any], name: str, served: Callable[..., Awaitable[Any]], *, is_async: bool) -> None:
    """Put a method in the place of one of LangChain's: it asks who serves the current context."""
    original = getattr(kind, name)

    async def asynchronous(self: Any, *given: Any, **named: Any) -> Any:
        service = _SERVICE.get()
        if service is None:
            return await original(self, *given, **named)

        async def send(*changed: Any) -> Any:
            _SERVICE.set(None)  # of the task that this runs in
            return await original(self, *(changed or given[:1]), *given[1:], **named)

        return await served(service, self, lambda *one: asyncio.create_task(send(*one)), *given, **named)

    def plain(self: Any, *given: Any, **named: Any) -> Any:
        service = _SERVICE.get()
        if service is None:
            return original(self, *given, **named)

        def send(*changed: Any) -> Any:
            return in_thread(_unserved, lambda: original(self, *(changed or given[:1]), *given[1:], **named))

        return _bridged(service, served(service, self, send, *given, **named))

    setattr(kind, name, asynchronous if is_async else plain)


async def _generate(service: _Service, model: BaseChatModel, send: Any, messages: Any, *_: Any, **__: Any) -> LLMResult:
    found = [await service.agent.answer(service, model, one, lambda one=one: send([one])) for one in messages]
    return LLMResult(generations=[[one] for one in found])


async def _run(service: _Service, tool: BaseTool, send: Any, given: Any, *_: Any, **named: Any) -> Any:
    return await service.agent.call(service, tool, given, named.get("tool_call_id"), send)


_serve(BaseChatModel, "agenerate", _generate, is_async=True)
_serve(BaseChatModel, "generate", _generate, is_async=False)
_serve(BaseTool, "arun", _run, is_async=True)
_serve(BaseTool, "run", _run, is_async=False)
