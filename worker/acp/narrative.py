"""A foreign agent's reports on its work, as the nodes and events of its run; its prompts, and its output.

Its messages and thoughts become assistant nodes, each before the call that follows them; its plan and the calls that it
makes without asking become events. Nothing here is verified: the agent reports it.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, cast

from acp import schema
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.acp_agents import AcpAgent, OwnKind
from soong.shared.agents.conversation import UnwrittenLog
from soong.shared.agents.messages import assistant_node, result_node
from soong.shared.agents.ports import AgentTask, AnswerView
from soong.shared.agents.turn import output_of
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, JsonObject, dump, parse_strict
from soong.shared.engine.runs.events import EventType, NewNode, Node, NodeKind
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, TextBlock, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schema import repaired, validate

MAX_TEXT_CHARS: Final = 1024 * 1024
"""The most of one message; the rest is left out."""
MAX_TITLE_CHARS: Final = 1_000
MAX_ENTRIES: Final = 200
_KINDS: Final[Mapping[str, OwnKind]] = {"search": OwnKind.READ, **{kind.value: kind for kind in OwnKind}}
_STOPPED: Final = frozenset({"completed", "failed"})

Progress = schema.ToolCallStart | schema.ToolCallProgress | schema.ToolCallUpdate

_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
GO_ON: Final = (
    "The connection to you was interrupted and is back. Continue the step where you stopped. What you were about to do "
    "and did not do is asked again when you do it. If you had finished, give your last answer again."
)

PROMPT_AFTER_NO: Final = (
    "Your turn ended because something that you asked for was refused. Do not try it again in another way. Finish the "
    "step with what you have, and say what was refused."
)
"""For agents that end their turn at a no, as Codex does."""


def kind_of(stated: str | None) -> OwnKind:
    """Return what a call of a stated kind is for the gate; one that nobody knows is the last of them."""
    kind = _KINDS.get(stated or "", OwnKind.OTHER)
    return OwnKind.OTHER if kind is OwnKind.RUN else kind


@dataclass(slots=True)
class AgentCall:
    """One tool call of the agent's own, as it has been reported so far. ``is_asked``: it went through the gate."""

    id: str
    title: str = ""
    kind: str = ""
    status: str = ""
    content: Sequence[Any] = ()
    paths: tuple[str, ...] = ()
    input: Any = None
    output: Any = None
    is_asked: bool = False
    _text: str | None = None
    """Its text at its end; content, input and output are then dropped."""

    @property
    def is_over(self) -> bool:
        return self.status in _STOPPED

    def close(self) -> None:
        """Keep of an ended call only what is still read: a run may make many."""
        self._text = self.text()
        self.content, self.input, self.output = (), None, None

    def take(self, said: Progress) -> None:
        """Take the fields of an update; those that it leaves out stay."""
        if not self.is_asked:  # what was shown to the gate is what was decided on
            self.title = (said.title or self.title)[:MAX_TITLE_CHARS]
            self.kind = said.kind or self.kind
            if said.locations is not None:
                self.paths = tuple(place.path for place in said.locations)
            self.input = self.input if said.raw_input is None else said.raw_input
        self.status = said.status or self.status
        self.content = self.content if said.content is None else said.content
        self.output = self.output if said.raw_output is None else said.raw_output

    def arguments(self) -> dict[str, Json]:
        """Return the input of its question: all that the agent has shown of it."""
        diffs: list[Json] = [
            {"path": one.path, "old": one.old_text, "new": one.new_text}
            for one in self.content
            if isinstance(one, schema.FileEditToolCallContent)
        ]
        raw: Json = self.input if isinstance(self.input, dict) else {} if self.input is None else {"raw": self.input}
        return {
            "title": self.title,
            "kind": self.kind or "other",
            "paths": list(self.paths),
            "diffs": diffs,
            "text": self.text(),
            "input": raw,
        }

    def text(self) -> str:
        if self._text is not None:
            return self._text
        return "\n".join(text for one in self.content if (text := _text_of(one)))[:12_000]


def _text_of(content: Any) -> str:
    block = content.content if isinstance(content, schema.ContentToolCallContent) else None
    return block.text if isinstance(block, schema.TextContentBlock) else ""


@dataclass(slots=True)
class AgentNarrative(UnwrittenLog):
    """One run's. ``turns`` counts as for a model: what comes after the calls before it have ended is another turn."""

    agent: AcpAgent
    view: AnswerView
    on_turn: Callable[[int], object]
    turns: int = 0
    calls: dict[str, AgentCall] = field(default_factory=dict)
    on_ended: Callable[[AgentCall], object] = lambda _call: None
    _text: str = ""
    _thought: str = ""
    _last_text: str = ""
    """The last message that is complete."""
    _is_between: bool = True
    """The next text of the agent begins a turn."""
    _known: set[str] = field(default_factory=set)
    """Ids of calls that have a node already."""

    def begin(self, nodes: Sequence[NewNode]) -> None:
        self._nodes += nodes

    def restore(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if node.kind is NodeKind.ASSISTANT:
                message = cast("Mapping[str, Any]", node.payload.get("message") or {})
                self._known |= {str(one.get("tool_call_id")) for one in message.get("parts") or ()}
                turn = (message.get("provider_details") or {}).get("turn")
                self.turns = max(self.turns, turn if isinstance(turn, int) else 0)

    # -- what it says
    def say(self, text: str) -> None:
        self._speak()
        if not self._text:
            self.view.take(PartStartEvent(index=0, part=TextPart(text)))
        else:
            self.view.take(PartDeltaEvent(index=0, delta=TextPartDelta(text)))
        self._text = (self._text + text)[:MAX_TEXT_CHARS]

    def think(self, text: str) -> None:
        self._speak()
        self._thought = (self._thought + text)[:MAX_TEXT_CHARS]

    def plan(self, entries: Sequence[schema.PlanEntry]) -> None:
        told: list[Json] = [
            {"content": one.content[:MAX_TITLE_CHARS], "status": one.status, "priority": one.priority}
            for one in entries[:MAX_ENTRIES]
        ]
        self._events = [one for one in self._events if one.type != EventType.AGENT_PLAN]  # the last plan is the plan
        self.note(EventType.AGENT_PLAN, {"entries": told})

    def progress(self, said: Progress) -> AgentCall | None:
        """Take what it says of a call of its own; None for one too many."""
        call = self.calls.get(said.tool_call_id)
        if call is None:
            if len(self.calls) >= 5_000:
                return None
            self._speak()
            call = self.calls[said.tool_call_id] = AgentCall(said.tool_call_id)
        if call.is_over:
            return call  # another call under the id of one that has ended would pass for it
        call.take(said)
        if call.status in _STOPPED:
            self._ended(call)
        return call

    def _ended(self, call: AgentCall) -> None:
        self._is_between = all(one.is_over for one in self.calls.values())
        data: JsonObject = {
            "agent_call_id": call.id[:200],
            "title": call.title,
            "kind": call.kind or "other",
            "status": call.status,
            "asked": call.is_asked,
            "paths": list(call.paths[:MAX_ENTRIES]),
        }
        self.note(EventType.AGENT_CALL, data)
        call.close()
        if not call.is_asked:
            self._add_unasked(call)
        self.on_ended(call)

    def _add_unasked(self, call: AgentCall) -> None:
        """Keep a call that the agent made without asking, as it reports it."""
        own = f"own-{hashlib.sha256(call.id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
        tool = self.agent.tool(kind_of(call.kind))
        arguments: dict[str, Json] = {"title": call.title, "paths": list(call.paths[:MAX_ENTRIES])}
        self._close([ToolCallPart(tool, arguments, own)])
        result = ToolResult(
            own, (TextBlock(call.text() or call.status),), call.title, metadata={"asked": False, "reported_by": "agent"}
        )
        if call.status == "failed":
            failure = ToolFailure(ErrorType.EXECUTION_FAILED, call.text()[:500] or "the agent says that it failed")
            result = refusal(own, failure)
        self._nodes.append(result_node(tool, result))

    # -- what is written
    async def add_call(self, call: ToolCall) -> None:
        """Write what led to a call, before it is made. Raises: LeaseLostError."""
        if call.tool != self.agent.tool(OwnKind.RUN):  # before that it has said nothing
            self._speak()
        if call.id in self._known:
            return
        self._known.add(call.id)
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        self._close([ToolCallPart(call.tool, arguments, call.id)])
        await self.flush([call])

    def end_turn(self, usage: RequestUsage | None = None, cost_usd: Decimal | None = None) -> str:
        said = self._text or self._last_text
        self._close([], usage, cost_usd)
        self._is_between, self._last_text = True, ""
        return said

    def _speak(self) -> None:
        if self._is_between:
            self._is_between = False
            self.turns += 1
            self.view.begin(self.turns)
            self.on_turn(self.turns)

    def _close(
        self, calls: Sequence[ToolCallPart], usage: RequestUsage | None = None, cost_usd: Decimal | None = None
    ) -> None:
        """Make a node of what was said and the calls that follow it."""
        parts: list[ModelResponsePart] = [ThinkingPart(self._thought)] if self._thought else []
        parts += [TextPart(self._text)] if self._text else []
        if not (parts or calls or usage):
            return
        self._last_text = self._text or self._last_text
        self._text = self._thought = ""
        details: dict[str, Any] = {"turn": self.turns}
        if cost_usd is not None:
            details["cost_usd"] = str(cost_usd)
        answer = ModelResponse(
            parts=[*parts, *calls],
            usage=usage or RequestUsage(),
            model_name=f"acp:{self.agent.name}",
            provider_details=details,
        )
        self.view.complete()
        self._nodes.append(assistant_node(answer))


def usage_of_node(node: Node) -> tuple[RequestUsage, Decimal | None]:
    """Return what a node says that its prompt has used: tokens and US dollars."""
    message = node.payload.get("message")
    if node.kind is not NodeKind.ASSISTANT or not isinstance(message, Mapping):
        return RequestUsage(), None
    said, details = message.get("usage"), message.get("provider_details")
    found = cast("Mapping[str, int]", said) if isinstance(said, Mapping) else {}
    cost = details.get("cost_usd") if isinstance(details, Mapping) else None
    read, written, cached = (found.get(name) or 0 for name in ("input_tokens", "output_tokens", "cache_read_tokens"))
    used = RequestUsage(input_tokens=read, output_tokens=written, cache_read_tokens=cached)
    return used, Decimal(str(cost)) if cost is not None else None


def prompt_of(task: AgentTask) -> str:
    """Return the first prompt: the rules, the instructions, the facts, and the form of the result."""
    facts = dump({"inputs": task.inputs, "run_dirs": task.run_dirs})
    parts = [task.system, task.instructions, f"Inputs and folders, as JSON:\n{facts}"]
    if task.output_schema is not None:
        schema = dump(task.output_schema)
        parts.append(f"End with one JSON value in a ```json block, and nothing after it. Its schema:\n{schema}")
    return "\n\n".join(filter(None, parts))


def prompt_to_go_on(unknown: list[JsonObject]) -> str:
    """Return the prompt for an agent that another process takes up; ``unknown`` are effects that nobody knows of."""
    if not unknown:
        return GO_ON
    lines = "\n".join(f"- {one.get('tool')} {one.get('shown') or one.get('message')}" for one in unknown)
    return f"{GO_ON}\nThese may or may not have happened; look before you do one again:\n{lines}"


def read_output(text: str, schema: JsonObject | None) -> tuple[Json, str]:
    """Return the output that a message gives, or what is wrong with it."""
    text = text.strip()
    if schema is None:
        return (output_of(text), "") if text else (None, "your last message was empty")
    problem = "there is no JSON value in your last message"
    for candidate in _candidates(text):
        try:
            value = parse_strict(candidate)
        except InvalidJsonError as error:
            problem = f"the result is not JSON: {error}"
            continue
        value = repaired(schema, value)
        violations = validate(schema, value)
        if not violations:
            return value, ""
        problem = "the result breaks its schema: " + "; ".join(map(str, violations))
    return None, problem


def _candidates(text: str) -> Iterator[str]:
    """Yield what may be the value, the least likely first: the problem of the last is reported."""
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        yield text[start : end + 1]
    yield from _FENCED.findall(text)
    if text.startswith(("{", "[")):
        yield text
