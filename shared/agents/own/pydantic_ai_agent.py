"""Agents of Pydantic AI as steps (BYO-01).

The agent runs as it is, with one capability more: it wraps the model that serves each request and the toolset of the
agent. So output tools and validators, retries, dependencies, dynamic instructions, history processors and the agent's
own capabilities keep their meaning.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    ToolReturn,
    ToolReturnContent,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_ai.toolsets.external import TOOL_SCHEMA_VALIDATOR
from pydantic_core import to_jsonable_python

from soong.shared.agents.model import provider_model
from soong.shared.agents.own.port import (
    LONGEST,
    RAISED,
    HostRun,
    OwnModel,
    OwnRequest,
    OwnTool,
    UnfitAgentError,
    dependencies,
    failing_requests,
    value_of,
)
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.engine.tasks.functions import RegisteredAgent, StepContext
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.tools.results import rendering

RETRY: Final = "model_retry"
"""In the details of a failure: the tool asks its model for another call."""
FAILED: Final = "tool_failed"
_RETURN: Final = TypeAdapter(ToolReturn)
_CONTENT: Final[TypeAdapter[Any]] = TypeAdapter(ToolReturnContent)


def check(agent: AbstractAgent[Any, Any]) -> frozenset[str] | None:
    """Return the names of the agent's own tools; None where only a run knows them.
    Raises: InvalidConfigError, a tool of it is executed elsewhere.
    """
    names: set[str] = set()
    others: list[AbstractToolset[Any]] = []

    def look(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, ExternalToolset):
            raise InvalidConfigError(
                f"the agent {agent.name!r} has an ExternalToolset, whose calls wait for a program outside of the run; "
                "make them function tools, or a step of their own"
            )
        if isinstance(toolset, FunctionToolset):
            names.update(toolset.tools)
        else:
            others.append(toolset)

    for toolset in agent.toolsets:
        toolset.apply(look)
    return None if others else frozenset(names)


def open_agent(registered: RegisteredAgent, context: StepContext, model: Model[Any] | None) -> "PydanticAgent":
    return PydanticAgent(registered, context, model)


class PydanticAgent:
    """Implements :class:`soong.shared.agents.own.port.OwnAgent`."""

    has_fallbacks = True
    limits, outputs = (UsageLimitExceeded,), (UnexpectedModelBehavior,)

    def __init__(self, registered: RegisteredAgent, context: StepContext, model: Model[Any] | None) -> None:
        """Open the agent for a run; ``model`` replaces its own. Raises: InvalidConfigError, it has no model here."""
        self.name = registered.name
        self._registered, self._context = registered, context
        own = model or registered.agent.model
        if own is None:
            words = f"the agent {self.name!r} has no model; give it one, or name one in the step's `model`"
            raise InvalidConfigError(words)
        used = provider_model(own) if isinstance(own, str) else own
        self._given = None if used is registered.agent.model else used
        self.model_name = own if isinstance(own, str) else f"{used.system}:{used.model_name}"
        self.model = _AgentModel(used, self)

    async def run(self, prompt: str, inputs: JsonObject, host: HostRun) -> Json:
        async with AsyncExitStack() as stack:
            deps = await dependencies(self._registered, inputs, self._context, stack)
            result = await self._registered.agent.run(
                prompt,
                deps=deps,
                model=self._given,
                run_id=self._context.identity.run_id,
                toolsets=[_OfferedTools(host)],
                capabilities=[_InRun(host, self._registered.readonly)],
                infer_name=False,
            )
        if isinstance(result.output, DeferredToolRequests):
            called = ", ".join(call.tool_name for call in result.output.calls)
            raise UnfitAgentError(f"ended with calls that wait for others: {called}; a step cannot wait for them")
        output: Json = to_jsonable_python(result.output, bytes_mode="base64")
        return output


@dataclass
class _InRun(AbstractCapability[Any]):
    """Serves one run of the agent by the run of its step."""

    host: HostRun
    readonly: frozenset[str]

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _CallsOfRun(toolset, self.host, self.readonly, count(1))

    def get_wrapper_model(self, model: Model[Any]) -> Model[Any]:
        return _RequestsOfRun(model, self.host)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Approve what asks for approval: the gate of the run asks, when the call is made."""
        del ctx
        return DeferredToolResults(approvals={call.tool_call_id: True for call in requests.approvals})


# -- requests
class _RequestsOfRun(WrapperModel):
    """The model as the agent sees it: what it is asked becomes a turn of the run."""

    def __init__(self, wrapped: Model[Any], host: HostRun) -> None:
        super().__init__(wrapped)
        self._host = host

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        asked = self.wrapped, model_settings, None
        return await self._host.request(request_of(messages, model_request_parameters, asked))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        asked = self.wrapped, model_settings, run_context
        answer = await self._host.request(request_of(messages, model_request_parameters, asked))
        yield CompletedStreamedResponse(answer, model_request_parameters=model_request_parameters, replay_events=True)


class _AgentModel(WrapperModel, OwnModel):
    """The model of the run: sends a request as the agent asked for it, with the step's settings over the agent's."""

    def __init__(self, wrapped: Model[Any], agent: PydanticAgent) -> None:
        super().__init__(wrapped)
        self.agent = agent

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        model, of_agent, _ = self.pending.origin
        settings = _merged(of_agent, model_settings)
        with failing_requests(self.model_name):
            answer: ModelResponse = await model.request(messages, settings, model_request_parameters)
        return answer

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        del run_context
        model, of_agent, context = self.pending.origin
        settings = _merged(of_agent, model_settings)
        with failing_requests(self.model_name):
            async with model.request_stream(messages, settings, model_request_parameters, context) as stream:
                yield stream


def _merged(of_agent: ModelSettings | None, of_run: ModelSettings | None) -> ModelSettings:
    """Return the settings of a request: what the step says, then what the agent says, then Soong's cache."""
    given: Any = {**(of_run or {}), **(of_agent or {})}
    given |= {name: value for name, value in (of_run or {}).items() if name != "cache"}
    return given  # type: ignore[no-any-return]  # a mapping of the same keys


def request_of(messages: list[ModelMessage], parameters: ModelRequestParameters, asked: Any) -> OwnRequest:
    """Return a request with what is new in it since the agent's last answer."""
    answers = [place for place, message in enumerate(messages) if isinstance(message, ModelResponse)]
    new = messages[answers[-1] + 1 :] if answers else messages
    parts = [part for message in new if isinstance(message, ModelRequest) for part in message.parts]
    system = [part.content for part in parts if isinstance(part, SystemPromptPart)]
    system += [message.instructions for message in new if isinstance(message, ModelRequest) and message.instructions]
    return OwnRequest(
        messages,
        parameters,
        tuple(_text_of(part) for part in parts if isinstance(part, UserPromptPart | RetryFeedbackPart)),
        "\n\n".join(system),
        {part.tool_call_id: part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)},
        asked,
    )


def _text_of(part: UserPromptPart | RetryFeedbackPart) -> str:
    """Return the text of a part of a prompt, as the record has it: without the bytes of a file."""
    content: Any = [part.content] if isinstance(part.content, str) else part.content
    files = [f"[{type(one).__name__}]" if hasattr(one, "media_type") else one for one in content]
    return "\n".join(one if isinstance(one, str) else dump(to_jsonable_python(one, fallback=str)) for one in files)


# -- calls
class _OfferedTools(AbstractToolset[Any]):
    """The tools of Soong that the step offers to the agent. Their calls never come here: the run makes them."""

    def __init__(self, host: HostRun) -> None:
        self._host = host

    @property
    def id(self) -> str | None:
        return None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        del ctx
        return {
            tool.name: ToolsetTool(toolset=self, tool_def=tool, max_retries=0, args_validator=TOOL_SCHEMA_VALIDATOR)
            for tool in self._host.tools
        }

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: Any) -> Any:
        raise NotImplementedError(name)


@dataclass
class _CallsOfRun(WrapperToolset[Any]):
    """The agent's complete toolset, whose calls are those of the run."""

    host: HostRun
    readonly: frozenset[str]
    numbers: "count[int]"
    """For calls that no answer of the model made."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        about = tool.tool_def
        call_id = ctx.tool_call_id or f"own{next(self.numbers)}"
        given: JsonObject = to_jsonable_python(tool_args, fallback=str, serialize_unknown=True)
        if isinstance(tool.toolset, _OfferedTools):
            result = await self.host.call(call_id, about.name, given, None)
            return rendering.for_model(result).content if result.ok else _value_of(result)
        is_readonly = about.name in self.readonly and about.kind != "unapproved"

        async def make(changed: JsonObject | None) -> Any:
            arguments = tool_args if changed is None else tool.args_validator.validate_python(dict(changed))
            try:
                return _kept(await self._approved(name, arguments, ctx, tool, is_readonly))
            except (ModelRetry, ToolFailed) as error:
                kind = RETRY if isinstance(error, ModelRetry) else FAILED
                raise ToolError(ErrorType.EXECUTION_FAILED, error.message, details={kind: True}) from error
            except (ApprovalRequired, CallDeferred) as error:
                words = "a tool among readonly asks for approval, or defers its call: a step cannot wait for the answer"
                raise ToolError(ErrorType.EXECUTION_FAILED, words, details={RAISED: True}) from error

        limit = LONGEST if about.timeout is None else timedelta(seconds=about.timeout)
        own = OwnTool(make, about.description or "", is_readonly, limit)
        return _value_of(await self.host.call(call_id, about.name, given, own))

    async def _approved(self, name: str, arguments: Any, ctx: Any, tool: Any, is_readonly: bool) -> Any:
        """Call a tool; the gate has asked for a write, so that one that asks for approval has it."""
        try:
            return await self.wrapped.call_tool(name, arguments, ctx, tool)
        except ApprovalRequired:
            if is_readonly:
                raise
            return await self.wrapped.call_tool(name, arguments, replace(ctx, tool_call_approved=True), tool)


def _kept(value: Any) -> Any:
    """Return a tool's value as JSON from which :func:`_restored` makes it again."""
    adapter: TypeAdapter[Any] = _RETURN if isinstance(value, ToolReturn) else _CONTENT
    return adapter.dump_python(value, mode="json", fallback=str, warnings=False)


def _restored(value: Json) -> Any:
    if isinstance(value, dict) and value.get("kind") == "tool-return":
        try:
            return _RETURN.validate_python(value)
        except ValidationError:
            return value  # a value of the tool's own that has this key
    return _CONTENT.validate_python(value)


def _value_of(result: ToolResult) -> Any:
    """Return what the agent gets of a result. Raises: ModelRetry, ToolFailed, OwnToolError."""
    details = result.error.details if result.error is not None else {}
    if result.error is not None and details.get(RETRY):
        raise ModelRetry(result.error.message)
    if result.error is not None and details.get(FAILED):
        raise ToolFailed(result.error.message)
    value = value_of(result)
    if result.error is not None:
        raise ToolFailed(str(value))
    return _restored(value)
