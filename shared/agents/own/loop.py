"""The run of an agent that has its own loop: that loop runs as it is, and the run serves it (BYO-01, BYO-02).

Each request of the agent becomes a turn of the run: paced, charged, streamed and recorded like that of any agent. Each
call of a tool goes through the run's pipeline. A run that another process takes up runs the agent again from its start
and gives it the recorded answers and results; from the first that is missing on, it continues. So the agent's own code
must do the same again between them.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, cast

from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition as ToolForModel

from soong.shared.agents.loop import AgentLoop
from soong.shared.agents.messages import answer_of, calls_of, opening_nodes, user_node
from soong.shared.agents.model_request import ProviderFailedError
from soong.shared.agents.own.port import (
    KEY,
    RAISED,
    OwnModel,
    OwnRequest,
    OwnTool,
    OwnToolError,
    UnfitAgentError,
    own_tool_name,
)
from soong.shared.agents.ports import AgentEnd, RunTranscript
from soong.shared.agents.scripted_model import MAX_SHOWN_CHARS, is_recorded
from soong.shared.agents.turn import ToolOffer
from soong.shared.core.foreign import await_foreign, place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.log_lines import note_raised
from soong.shared.core.step_work import begin_task, cancelled_soon
from soong.shared.engine.runs.events import NewNode, Node, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.permissions.rules import METADATA_KEY
from soong.shared.tools.definition import Permission, Target, ToolContext, ToolDefinition
from soong.shared.tools.execution import parsed
from soong.shared.tools.limits import UnfitError, plain
from soong.shared.tools.naming import NameTable
from soong.shared.tools.pipeline import ToolPipeline
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schedule import plan_groups
from soong.shared.tools.schema import validate


@dataclass(slots=True)
class OwnAgentLoop(AgentLoop):
    """Implements :class:`soong.shared.agents.own.port.HostRun`."""

    _recorded: deque[tuple[str, ModelResponse]] = field(default_factory=deque)
    """The recorded answers that the agent has not got yet, each with the texts of its request."""
    _asked: str | None = None
    """The texts of a recorded request without an answer; None: no such request."""
    _results: dict[str, tuple[str, ToolResult]] = field(default_factory=dict)
    """By the calls' ids, with their tools."""
    _parts: dict[str, ToolCallPart] = field(default_factory=dict)
    _made: dict[str, tuple[OwnTool, ToolCall]] = field(default_factory=dict)
    """The calls of the agent's own tools that are under way, by id."""
    _end: "asyncio.Future[AgentEnd]" = field(init=False)
    """The end of the run where it is not that of the agent."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _write: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reads: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        # `slots` makes a new class, which the argumentless form of super() does not know.
        AgentLoop.__post_init__(self)
        self._end = asyncio.get_running_loop().create_future()
        self._reads = asyncio.Semaphore(self.task.limits.parallel_reads)
        self.names = NameTable(tool.name for tool in self.task.tools)
        self.offer = ToolOffer(self.task, self.names)

    @property
    def own(self) -> OwnModel:
        return cast(OwnModel, self.model)

    async def run(self, transcript: RunTranscript) -> AgentEnd:
        nodes = await transcript.nodes() if self.task.is_resumed else ()
        if nodes:
            await self._take_up(nodes, transcript)
        agent = begin_task(self.own.agent.name, self._output())
        try:
            await asyncio.wait({agent, self._end}, return_when=asyncio.FIRST_COMPLETED)
            return self._end.result() if self._end.done() else await agent
        finally:
            if not agent.done():
                await cancelled_soon(agent)

    async def _output(self) -> AgentEnd:
        """Run the agent, and return the run's end."""
        inputs, agent = self.task.inputs, self.own.agent
        given = inputs.get("prompt")
        prompt = given if isinstance(given, str) else self.task.instructions or dump(inputs)
        try:
            output = plain(await await_foreign(lambda: agent.run(prompt, inputs, self)))
        except UnfitError as error:
            return self._failed(EndReason.FAILED, f"the output of {agent.name!r} is not JSON: {error}")
        except UnfitAgentError as error:
            return self._failed(EndReason.FAILED, f"the agent {agent.name!r} {error}", type="invalid_input")
        except Exception as error:  # noqa: BLE001  # the agent's edge: whatever it raises is the step's failure
            return self._raised(error)
        if self._recorded:
            return self._differs(f"it ended, and {len(self._recorded)} recorded answers are left")
        schema = self.task.output_schema
        if schema is not None and (found := validate(schema, output)):
            words = f"the output of {agent.name!r} breaks the step's schema: {'; '.join(map(str, found))}"
            return self._failed(EndReason.FAILED, words, type="invalid_output", is_retryable=True)
        return self.talk.end(self.task, self.incidents, self.requests.usage, EndReason.COMPLETED, output)

    def _raised(self, error: Exception) -> AgentEnd:
        """Return the end of a run whose agent raised; the lines of the run have what a tool of its own raised."""
        agent, words = self.own.agent, str(error)
        if not isinstance(error, OwnToolError):
            words = _raised_words(error)
        is_limit = isinstance(error, agent.limits)
        kind = "limit_exceeded" if is_limit else "execution_failed"
        kind = "invalid_output" if isinstance(error, agent.outputs) else kind
        words = f"the agent {agent.name!r} failed: {words}"
        return self._failed(EndReason.FAILED, words, type=kind, is_retryable=not is_limit)

    # -- a run that another process had
    async def _take_up(self, nodes: Sequence[Node], transcript: RunTranscript) -> None:
        tools = {str(node.payload.get("tool_call_id")): str(node.payload.get("tool", "")) for node in nodes}
        results = await self._restore(nodes)
        texts: list[str] = []
        for node in nodes:
            if node.kind is NodeKind.USER:
                texts += map(str, cast("Sequence[str]", node.payload["texts"])[:1])
            elif node.kind is NodeKind.ASSISTANT:
                answer = answer_of(node.payload["message"])
                self._recorded.append(("\n\n".join(texts), answer))
                self._parts |= {part.tool_call_id: part for part in calls_of(answer)}
                texts = []
        self._asked = "\n\n".join(texts) if texts else None
        await self._settle_unfinished(transcript, self.names)
        for result in (*results, *self.talk.answered):
            part = self._parts.get(result.tool_call_id)
            tool = tools.get(result.tool_call_id) or (self._tool_name(part, self.names) if part else "")
            self._results[result.tool_call_id] = tool, result

    # -- requests
    @property
    def tools(self) -> Sequence[ToolForModel]:
        return self.offer.parameters.function_tools

    async def request(self, request: OwnRequest) -> ModelResponse:
        async with self._turn:
            try:
                answer = self._given(request) or await self._answered(request)
            except Exception as error:  # noqa: BLE001  # of the run, not of the agent: a lost lease, a database away
                await self._break(error)
            if isinstance(answer, AgentEnd):
                await self._break(answer)
            return answer

    def _given(self, request: OwnRequest) -> ModelResponse | AgentEnd | None:
        """Return the recorded answer; None: there is none."""
        for place, (_, answer) in enumerate(self._recorded) if request.key else ():
            if (answer.metadata or {}).get(KEY) == request.key:
                del self._recorded[place]
                return answer
        if request.key or not self._recorded:
            return None
        recorded, answer = self._recorded.popleft()
        return answer if is_recorded(recorded, came := _joined(request)) else self._differs(_other(recorded, came))

    async def _answered(self, request: OwnRequest) -> ModelResponse | AgentEnd:
        """Record what the agent asks, have the model answer, and record that before anything follows from it."""
        if self._asked is not None and not request.key and not is_recorded(self._asked, came := _joined(request)):
            return self._differs(_other(self._asked, came))
        if self._asked is None:
            self._note_request(request)
        self._asked = None
        self.own.pending = request
        answer = await self._next_answer()
        if isinstance(answer, ModelResponse):
            parts = calls_of(answer)
            self._parts |= {part.tool_call_id: part for part in parts}
            await self.talk.flush([self._call(part, self.names) for part in parts])
        return answer

    def _note_request(self, request: OwnRequest) -> None:
        outputs = {tool.name for tool in request.parameters.output_tools}
        for call_id, text in request.answered.items():
            part = self._parts.get(call_id)
            if part is not None and call_id not in self._results:
                name = part.tool_name if part.tool_name in outputs else self._tool_name(part, self.names)
                words = f"answered by the agent itself: {text}"
                self.talk.refuse(name, ToolResult(call_id, (TextBlock(words),), words[:MAX_SHOWN_CHARS]))
        if not self.talk.messages:
            task = self.task
            system, user = opening_nodes(request.system, task.instructions, task.inputs, task.run_dirs)
            # The agent gets the prompt alone; the rest tells another attempt that it has the same work.
            given = {**user.payload, "texts": [_joined(request)], "step": user.payload["texts"]}
            self.talk.begin((system, NewNode(user.kind, given)))
            return
        for text in request.texts:
            self.talk.add_node(user_node(text))

    async def _ask_with_room(self) -> ModelResponse:
        """Send what the agent asks; a history that is too long is the agent's business. Raises: ProviderFailedError."""
        request = self.own.pending
        while True:
            try:
                return await self._ask(request.messages, request.parameters, self.view)
            except ProviderFailedError as error:
                if not self.own.agent.has_fallbacks or not await self.requests.fall_back(error):
                    raise

    # -- calls
    async def call(self, call_id: str, tool: str, arguments: JsonObject, own: OwnTool | None) -> ToolResult:
        part = self._parts.get(call_id) or ToolCallPart(tool, dict(arguments), call_id)
        name = self._own_name(tool) if own is not None else self.names.to_canonical(tool)
        recorded, result = self._results.get(call_id, (name, None))
        if recorded != name:
            await self._break(self._differs(f"recorded a call of {recorded}, came {name}"))
        if result is not None:
            return result
        call = self.talk.call_of(part, name)
        if own is not None:
            self._define(name, own)
            self._made[call_id] = own, call
        try:
            # A task of its own: a person can abort this call alone.
            return await asyncio.ensure_future(self._executed(call))
        except Exception as error:  # noqa: BLE001  # of the run, not of the tool: a lost lease, a database away
            await self._break(error)
        finally:
            self._made.pop(call_id, None)

    async def _executed(self, call: ToolCall) -> ToolResult:
        """Make a call: reads run at the same time, writes one after another."""
        (group,) = plan_groups([call], self.executor.resolve)
        async with self._reads if group.kind.is_parallel else self._write:
            await self.talk.flush([call])
            result = await self.early.execute(call)
        self._account(result, call.tool)
        self._results[call.id] = call.tool, result
        return result

    def _define(self, name: str, own: OwnTool) -> None:
        """Make a tool of the agent's own one of the run, for the agent alone."""
        cast(ToolPipeline, self.executor).add(
            ToolDefinition(
                name=name,
                description=own.description or name,
                input_schema={"type": "object"},
                handler=self._handle,
                permission=Permission.READONLY if own.is_readonly else Permission.WRITE,
                timeout=own.timeout,
                open_world=False,  # what is allowed of it, is allowed by the agent's name
                target=lambda _context, _input: Target("resource", scope=self.own.agent.name, shown=name),
                metadata={METADATA_KEY: True},
            )
        )

    async def _handle(self, context: ToolContext, call_input: JsonObject) -> Json:
        own, call = self._made[context.tool_call_id]
        changed = None if call_input == parsed(call.arguments) else call_input
        try:
            return cast(Json, await await_foreign(lambda: own.make(changed)))
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise ToolError(ErrorType.EXECUTION_FAILED, _raised_words(error), details={RAISED: True}) from error

    def _own_name(self, tool: str) -> str:
        return f"{self.own.agent.name}.{own_tool_name(tool)}"

    def _tool_name(self, part: ToolCallPart, names: NameTable) -> str:
        canonical = names.to_canonical(part.tool_name)
        return self._own_name(part.tool_name) if canonical == part.tool_name else canonical

    # -- ends
    def _differs(self, words: str) -> AgentEnd:
        problem = f"the agent {self.own.agent.name!r} does not do again what is recorded: {words}; between its requests"
        problem += " it must be deterministic; `soong tasks fork` makes a plan that begins the step again"
        return self._failed(EndReason.FAILED, problem, type="replay_differs")

    async def _break(self, end: AgentEnd | Exception) -> NoReturn:
        """End the run; the first end counts. The agent's loop, which waits here, is cancelled."""
        if not self._end.done() and isinstance(end, AgentEnd):
            self._end.set_result(end)
        elif not self._end.done():
            self._end.set_exception(cast(Exception, end))
            self._end.exception()  # read here, should nobody wait any more
        await asyncio.get_running_loop().create_future()
        raise AssertionError  # it is cancelled before


def _raised_words(error: Exception) -> str:
    note_raised(error)
    return words_of(error) + (f" (at {place})" if (place := place_of(error)) else "")


def _joined(request: OwnRequest) -> str:
    return "\n\n".join(request.texts)


def _other(recorded: str, came: str) -> str:
    return f"the recorded prompt is {recorded[:MAX_SHOWN_CHARS]!r}, came {came[:MAX_SHOWN_CHARS]!r}"
