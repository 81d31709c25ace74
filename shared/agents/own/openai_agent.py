"""Agents of the OpenAI Agents SDK as steps (BYO-02).

The SDK's runner runs the agent. Its models are wrapped: a request is sent by the SDK's own model, as a turn of the run,
and recorded with all of its items. Its function tools are wrapped in copies, those of the agents that it hands off to
as well.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import agents
from agents.items import TResponseOutputItem
from agents.usage import Usage
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelRequest, ModelResponsePart, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.messages import ModelResponse as RecordedAnswer
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings as RunSettings
from pydantic_ai.tools import ToolDefinition as ToolForModel
from pydantic_ai.usage import RequestUsage
from pydantic_core import from_json, to_jsonable_python

from soong.shared.agents.own.port import LONGEST, HostRun, LibraryModel, OwnRequest, OwnTool, dependencies, value_of
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.engine.tasks.functions import RegisteredAgent, StepContext
from soong.shared.tools.results import rendering

_ITEMS = TypeAdapter(list[TResponseOutputItem])
_HOSTED = (
    agents.CodeInterpreterTool,
    agents.FileSearchTool,
    agents.HostedMCPTool,
    agents.ImageGenerationTool,
    agents.WebSearchTool,
)
"""Tools that the provider runs within a request."""
RECORD = "openai_agents"
"""In the details of a recorded answer: its items, as the SDK has them."""


def check(agent: agents.Agent[Any]) -> frozenset[str]:
    """Return the names of the tools of the agent and of those that it hands off to.
    Raises: InvalidConfigError, a part of them cannot be kept.
    """
    names: set[str] = set()
    for one in _team(agent):
        for tool in one.tools:
            if isinstance(tool, agents.FunctionTool):
                names.add(tool.name)
            elif not isinstance(tool, _HOSTED):
                words = f"the tool {tool.name!r} of the agent {one.name!r} acts outside of the run's gate"
                raise InvalidConfigError(f"{words}; make it a function tool, or offer a tool of Soong")
        if one.mcp_servers:
            words = f"the agent {one.name!r} has MCP servers of its own"
            raise InvalidConfigError(f"{words}; name them in config.toml, and their tools in the step's allowed_tools")
    return frozenset(names)


def _team(agent: agents.Agent[Any]) -> list[agents.Agent[Any]]:
    """Return an agent and those that it can hand off to. Raises: InvalidConfigError."""
    found, left = list[agents.Agent[Any]](), list[Any]([agent])
    while left:
        one = left.pop()
        if not isinstance(one, agents.Agent):
            words = f"the agent {agent.name!r} hands off by `handoff()`, whose agent cannot be served"
            raise InvalidConfigError(f"{words}; list the agent itself in `handoffs`")
        if not any(one is other for other in found):
            found.append(one)
            left += one.handoffs
    return found


def open_agent(registered: RegisteredAgent, context: StepContext, model: Any) -> "OpenAIAgent":
    if model is not None:
        words = f"the agent {registered.name!r} of the OpenAI Agents SDK sends its requests itself"
        raise InvalidConfigError(f"{words}: set the model of the agent, and leave `model` out of the step")
    return OpenAIAgent(registered, context)


def _model_of(agent: agents.Agent[Any]) -> agents.Model:
    return agent.model if isinstance(agent.model, agents.Model) else agents.MultiProvider().get_model(agent.model)


class OpenAIAgent:
    """Implements :class:`soong.shared.agents.own.port.OwnAgent`."""

    has_fallbacks = False
    limits, outputs = (agents.MaxTurnsExceeded,), (agents.ModelBehaviorError,)

    def __init__(self, registered: RegisteredAgent, context: StepContext) -> None:
        self.name = registered.name
        self._registered, self._context = registered, context
        used = _model_of(registered.agent)
        name = str(getattr(used, "model", type(used).__name__))
        self.model_name = f"openai:{name}"
        self.model = LibraryModel(self, name, "openai", getattr(used, "_client", None))

    async def run(self, prompt: str, inputs: JsonObject, host: HostRun) -> Json:
        async with AsyncExitStack() as stack:
            context = await dependencies(self._registered, inputs, self._context, stack)
            agent = self._served(host)
            # Traces would leave by a way of their own; the run has its events.
            config = agents.RunConfig(tracing_disabled=True)
            result = await agents.Runner.run(agent, prompt, context=context, max_turns=None, run_config=config)
        output: Json = to_jsonable_python(result.final_output)
        return output

    def _served(self, host: HostRun) -> agents.Agent[Any]:
        """Return copies of the agent and of those that it hands off to, which are served by the run."""
        offered = [_offered(host, tool) for tool in host.tools]
        team = _team(self._registered.agent)
        copies = {
            id(one): one.clone(
                model=_SdkModel(_model_of(one), host, self.model_name),
                tools=[*(self._own(host, tool) for tool in one.tools), *offered],
            )
            for one in team
        }
        for one in team:
            copies[id(one)].handoffs = [copies[id(other)] for other in one.handoffs]
        return copies[id(self._registered.agent)]

    def _own(self, host: HostRun, tool: Any) -> Any:
        """Return a copy of a function tool whose calls are those of the run."""
        if not isinstance(tool, agents.FunctionTool):
            return tool
        invoke, served = tool.on_invoke_tool, copy.copy(tool)
        is_readonly = tool.name in self._registered.readonly and tool.needs_approval is False
        limit = LONGEST if tool.timeout_seconds is None else timedelta(seconds=tool.timeout_seconds)

        async def call(context: Any, arguments: str) -> Any:
            async def make(changed: JsonObject | None) -> Any:
                value = await invoke(context, arguments if changed is None else dump(changed))
                is_structured = isinstance(value, dict | list) or hasattr(value, "model_dump")
                return to_jsonable_python(value, fallback=str) if is_structured else str(value)

            own = OwnTool(make, tool.description, is_readonly, limit)
            return value_of(await host.call(context.tool_call_id, tool.name, _object(arguments), own)) or ""

        served.on_invoke_tool, served.needs_approval = call, False  # the gate asks
        served.timeout_seconds = None
        return served


def _offered(host: HostRun, tool: ToolForModel) -> agents.Tool:
    """Return a tool of Soong as a function tool."""

    async def call(context: Any, arguments: str) -> str:
        result = await host.call(context.tool_call_id, tool.name, _object(arguments), None)
        content = rendering.for_model(result).content
        return content if isinstance(content, str) else dump(content)

    schema = dict(tool.parameters_json_schema)
    return agents.FunctionTool(tool.name, tool.description or "", schema, call, strict_json_schema=False)


def _object(arguments: str) -> JsonObject:
    """Return arguments as they are shown where no answer of a model has them; the tool judges them."""
    with suppress(ValueError):
        found = from_json(arguments or "{}")
        return found if isinstance(found, Mapping) else {}
    return {}


class _SdkModel(agents.Model):
    """The model as the runner sees it: what it is asked becomes a turn of the run."""

    def __init__(self, wrapped: agents.Model, host: HostRun, name: str) -> None:
        self._wrapped, self._host, self._name = wrapped, host, name

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: agents.ModelSettings, *more: Any, **named: Any
    ) -> agents.ModelResponse:
        async def send(settings: RunSettings) -> RecordedAnswer:
            given = {name: settings.get(name) for name in ("temperature", "max_tokens", "parallel_tool_calls")}
            own = model_settings.resolve(agents.ModelSettings(**given))  # type: ignore[arg-type]  # the same types
            answer = await self._wrapped.get_response(system_instructions, input, own, *more, **named)
            return _recorded(answer, self._name.partition(":")[2])

        answer = await self._host.request(_request_of(system_instructions, input, send))
        return _restored(answer)

    def stream_response(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError  # the runner is not asked to stream


def _request_of(system: Any, given: str | Sequence[Any], send: Any) -> OwnRequest:
    """Return a request with the items that are new since the last answer."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    made = [place for place, item in enumerate(items) if _is_of_an_answer(item)]
    new = items[made[-1] + 1 :] if made else items
    texts = [item["content"] for item in new if item.get("role") == "user"]
    return OwnRequest(
        [ModelRequest(parts=[UserPromptPart(dump(to_jsonable_python(items)))], instructions=system)],
        ModelRequestParameters(),
        tuple(text if isinstance(text, str) else dump(to_jsonable_python(text)) for text in texts),
        system or "",
        {item["call_id"]: str(item["output"]) for item in new if item.get("type") == "function_call_output"},
        send,
    )


def _is_of_an_answer(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _recorded(answer: agents.ModelResponse, name: str) -> RecordedAnswer:
    """Return the form of an answer that is recorded: its texts and calls for people, and all of its items."""
    items = _ITEMS.dump_python(answer.output, mode="json", exclude_unset=True, warnings=False)
    parts = list[ModelResponsePart]()
    for item in items:
        if item["type"] == "message":
            parts += [TextPart(str(part.get("text") or part.get("refusal") or "")) for part in item["content"]]
        elif item["type"] == "function_call":
            parts.append(ToolCallPart(item["name"], item["arguments"], item["call_id"]))
    used = answer.usage
    usage = RequestUsage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.input_tokens_details.cached_tokens,
    )
    details = {RECORD: {"output": items, "response_id": answer.response_id}, "finish_reason": "stop"}
    return RecordedAnswer(parts, usage=usage, model_name=name, provider_name="openai", provider_details=details)


def _restored(answer: RecordedAnswer) -> agents.ModelResponse:
    """Return an answer as the SDK gave it, with the ids that its calls have in the run."""
    kept = (answer.provider_details or {})[RECORD]
    ids = iter([part.tool_call_id for part in answer.parts if isinstance(part, ToolCallPart)])
    items = [{**item, "call_id": next(ids)} if item["type"] == "function_call" else item for item in kept["output"]]
    usage = Usage(
        requests=1,
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
        total_tokens=answer.usage.total_tokens,
    )
    return agents.ModelResponse(_ITEMS.validate_python(items), usage, kept["response_id"])
