"""The seam between an agent's own loop and the run that serves it.

An agent of another library runs its own loop. It reaches its run through a :class:`HostRun` alone: a request to its
model and a call of a tool wait there for their answer. In a run that was taken up from its record, recorded answers
and results are given at once, until the loop is where it was.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from datetime import timedelta
from inspect import isawaitable
from typing import Any, Final, Protocol

import msgspec
from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition as ToolForModel

from soong.shared.agents.scripted_model import LocalModel
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import RegisteredAgent, StepContext
from soong.shared.tools.result import ToolResult
from soong.shared.tools.results import rendering

LONGEST: Final = timedelta(days=1)
"""The time of a tool that sets none; the longest time of the deployment holds as well."""
RAISED: Final = "raised"
"""In the details of a failure: a tool of the agent's own raised, which its loop handles itself."""
KEY: Final = "soong_request"
MAX_TOOL_CHARS: Final = 64
_MORE: Final = frozenset({"data_left_out", "hook_context", "permission_reason"})
"""Facts of a result whose value is not all that the agent is to read."""
_NOT_IN_A_NAME: Final = re.compile(r"[^a-z0-9_-]+|^-")


class OwnRequest(Value):
    """A request of an agent's own loop.

    ``texts`` are the prompts that the agent's code adds to the history since its last answer: they are recorded, and
    must be the recorded ones when the run is taken up. ``answered`` are texts by which the agent itself answers calls
    of the last answer that it does not make (arguments that it refuses), by the calls' ids. ``origin`` is what the
    adapter's model needs to send the request. ``key`` is what finds the recorded answer where an agent asks several
    things at the same time: it is in the answer's metadata under KEY. Empty: answers are given in their order.
    """

    messages: list[ModelMessage]
    parameters: ModelRequestParameters
    texts: tuple[str, ...] = ()
    system: str = ""
    answered: Mapping[str, str] = msgspec.field(default_factory=dict)
    origin: Any = None
    key: str = ""


class OwnTool(Value):
    """A call of an agent's own tool. ``make`` makes it: as the agent asked, or with the arguments that a hook wrote."""

    make: Callable[[JsonObject | None], Awaitable[Any]]
    description: str = ""
    is_readonly: bool = False
    timeout: timedelta | None = None


class HostRun(Protocol):
    """A run as an agent's own loop sees it. Neither method returns when the run has ended: the loop is cancelled."""

    @property
    def tools(self) -> Sequence[ToolForModel]:
        """The tools of Soong that the step offers to the agent, by the names under which it calls them."""
        ...

    async def request(self, request: OwnRequest) -> ModelResponse:
        """Return the answer to a request: the recorded one, or that of the model, which is recorded first."""
        ...

    async def call(self, call_id: str, tool: str, arguments: JsonObject, own: OwnTool | None) -> ToolResult:
        """Return the result of a call: the recorded one, or that of the run's pipeline. ``own`` None: a tool of Soong.

        ``tool`` is the agent's name for it.
        """
        ...


class OwnModel(Model[Any]):
    """The model of a run of such an agent: sends ``pending``, as the agent asked for it."""

    agent: "OwnAgent"
    pending: OwnRequest


class LibraryModel(LocalModel, OwnModel):
    """The model of a run whose requests the agent's library sends: ``pending.origin`` takes settings and answers."""

    def __init__(self, agent: "OwnAgent", name: str, system: str, client: Any = None) -> None:
        super().__init__(name, system)
        self.agent, self.client = agent, client

    def rename(self, name: str, system: str) -> None:
        """Take the name and provider of the model that the next request is sent to."""
        self._name, self._system = name, system

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        del messages, model_request_parameters
        with failing_requests(self.model_name):
            answer: ModelResponse = await self.pending.origin(model_settings or {})
        return answer


class RequestFailedError(ModelAPIError):
    """A request of the library failed in a way that another attempt does not fix."""


@contextmanager
def failing_requests(model: str) -> Iterator[None]:
    """Raise the errors of the library's client as those that the loop knows: it tries again what may pass."""
    try:
        yield
    except (AgentRunError, UserError):
        raise
    except Exception as error:
        status, words = getattr(error, "status_code", None), words_of(error)
        if isinstance(status, int):
            raise ModelHTTPError(status, model, words) from error
        may_pass = isinstance(error, OSError) or "Connection" in words or "Timeout" in type(error).__name__
        raise (ModelAPIError if may_pass else RequestFailedError)(model, words) from error


class OwnAgent(Protocol):
    """An agent of one library, for one run.

    ``name`` is the registered one, ``model_name`` is ``provider:name``. ``has_fallbacks``: another model of Soong can
    be sent its requests. ``limits`` and ``outputs`` are the errors by which its library says that a limit of its own is
    reached, and that no usable output came.
    """

    name: str
    model_name: str
    has_fallbacks: bool

    @property
    def model(self) -> OwnModel: ...
    @property
    def limits(self) -> tuple[type[Exception], ...]: ...
    @property
    def outputs(self) -> tuple[type[Exception], ...]: ...

    async def run(self, prompt: str, inputs: JsonObject, host: HostRun) -> Json:
        """Run the agent to its end and return its output as JSON. Raises: any error of the agent."""
        ...


class OwnToolError(Exception):
    """A tool of the agent's own raised; its words are the text. Raised where the agent's loop awaits the call."""


class UnfitAgentError(Exception):
    """The agent cannot do its step as it is, or has ended in a way that a step cannot take."""


def value_of(result: ToolResult) -> Json:
    """Return what an agent gets of a call of its own tool: its value, or what a model reads of a failure.
    Raises: OwnToolError, the tool raised.
    """
    if result.error is not None and result.error.details.get(RAISED):
        raise OwnToolError(result.error.message)
    is_whole = result.error is None and _MORE.isdisjoint(result.metadata)
    return result.data if is_whole else str(rendering.for_model(result).content)


def own_tool_name(tool: str) -> str:
    """Return the last part of the canonical name of an agent's own tool."""
    return _NOT_IN_A_NAME.sub("_", tool.lower())[:MAX_TOOL_CHARS] or "_"


async def dependencies(
    registered: RegisteredAgent, inputs: JsonObject, context: StepContext, stack: AsyncExitStack
) -> Any:
    """Return what the agent's ``deps`` gives for a run; what it opens is closed with ``stack``."""
    given = None if registered.deps is None else registered.deps(inputs, context)
    given = await given if isawaitable(given) else given
    return await stack.enter_async_context(given) if isinstance(given, AbstractAsyncContextManager) else given
