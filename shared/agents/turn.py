"""One turn: the tools of a request, and the meaning of its answer.

Owns the judgement of a final answer against the step's schema, and of calls that fail again and again. The loop acts on
an answer.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition as ToolForModel

from soong.shared.agents.messages import arguments_of, calls_of, text_of
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.provider_schema import check_offer
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, JsonObject, parse_strict
from soong.shared.core.value import Value
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.naming import NameTable
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ToolResult
from soong.shared.tools.schema import repaired, validate

FINAL_TOOL: Final = "final_result"
"""How a model gives its output when there is a schema for it. No tool of ours mangles to it: theirs have a dot."""
CONTINUE: Final = (
    "Your answer was cut at the limit of output tokens. Continue exactly where it stopped, and repeat nothing."
)
CUT_RESULT: Final = "your answer was cut at the limit of output tokens; give the result again, in fewer words"

CHECKED_AT_ONCE: Final = 32

TOLD_AFTER: Final = 3
MAX_SHOWN_CHARS: Final = 300

_Key = tuple[str, str, str, str]


def parameters_of(
    tools: Sequence[ToolDefinition], names: NameTable, output: JsonObject | None
) -> ModelRequestParameters:
    """Return the tools of a request: the surface only, in its order, under the provider's names (ETS-01)."""
    offered = [
        ToolForModel(
            name=names.to_provider(tool.name),
            description=f"{tool.description}\n\n{tool.prompt}" if tool.prompt else tool.description,
            parameters_json_schema=dict(tool.input_schema),
            strict=False,  # the schema is ours: sent as it is
        )
        for tool in tools
    ]
    if output is None:
        return ModelRequestParameters(function_tools=offered)
    final = ToolForModel(
        name=FINAL_TOOL,
        description="Give the step's result. Call it once, alone, when everything else is done.",
        parameters_json_schema=dict(output),
        strict=False,
        kind="output",
    )
    return ModelRequestParameters(
        function_tools=offered, output_tools=[final], output_mode="tool", allow_text_output=False
    )


class ModelAnswer(Value):
    """The meaning of an answer. With ``calls`` the turn continues; else it ends with ``output`` or ``problem``.

    ``finals`` are the calls of FINAL_TOOL among the answer's. An answer that ``is_cut`` reached the model's limit of
    output tokens: it is incomplete, and ``problem`` asks for the rest.
    """

    calls: tuple[ToolCallPart, ...]
    finals: tuple[ToolCallPart, ...]
    output: Json = None
    problem: str = ""
    is_cut: bool = False


def judge(response: ModelResponse, schema: JsonObject | None, cut: Sequence[ModelResponse] = ()) -> ModelAnswer:
    """Say what a model's answer means; ``cut`` are the answers that it continues."""
    answer = _judged_answer(response, schema, "".join(map(text_of, cut)) if schema is None else "")
    if answer.calls or response.finish_reason != "length":
        return answer  # the pipeline refuses cut calls with incomplete arguments
    ask = CONTINUE if schema is None else CUT_RESULT
    return replace(answer, output=None, problem=ask, is_cut=True)


def _judged_answer(response: ModelResponse, schema: JsonObject | None, before: str) -> ModelAnswer:
    asked = calls_of(response)
    finals = tuple(part for part in asked if part.tool_name == FINAL_TOOL and schema is not None)
    calls = tuple(part for part in asked if part not in finals)
    if calls:
        return ModelAnswer(
            calls, finals, problem=f"call {FINAL_TOOL} alone, after you have seen the other calls' results"
        )
    if finals and schema is not None:
        return _judged(finals, arguments_of(finals[0]), schema)
    text = (before + text_of(response)).strip()
    if schema is None:
        return ModelAnswer((), (), output_of(text)) if text else ModelAnswer((), (), problem="your answer was empty")
    try:
        value = parse_strict(text)
    except InvalidJsonError:
        return ModelAnswer((), (), problem=f"give the result by calling {FINAL_TOOL}")
    return _judged((), value, schema)


def _judged(finals: tuple[ToolCallPart, ...], value: Json, schema: JsonObject) -> ModelAnswer:
    if isinstance(value, str):
        try:
            value = parse_strict(value)
        except InvalidJsonError as error:
            return ModelAnswer((), finals, problem=f"the result is not JSON: {error}")
    value = repaired(schema, value)
    violations = validate(schema, value)
    if violations:
        return ModelAnswer((), finals, problem="the result breaks its schema: " + "; ".join(map(str, violations)))
    return ModelAnswer((), finals, value)


def output_of(text: str) -> Json:
    """Return the object or array that a text is, or the text."""
    if text[0] in "{[":
        try:
            return parse_strict(text)
        except InvalidJsonError:
            return text
    return text


@dataclass(slots=True)
class ToolOffer:
    """The offer of one run. ``names`` are the provider's, of all tools: they stay when some are found later."""

    task: AgentTask
    names: NameTable

    @property
    def parameters(self) -> ModelRequestParameters:
        """Return those of the next request, with what a search has found."""
        return parameters_of(self.task.deferred.offered(self.task.tools), self.names, self.task.output_schema)

    def check(self, model: Model[Any]) -> None:
        """Find out whether a model can take all that the run may offer it. Raises: SchemaUnsupportedError."""
        check_offer(model, self.parameters, self.names)
        hidden = [tool for tool in self.task.tools if self.task.deferred.hint(tool.name)]
        for start in range(0, len(hidden), CHECKED_AT_ONCE):
            part = parameters_of(hidden[start : start + CHECKED_AT_ONCE], self.names, None)
            check_offer(model, part, self.names)


@dataclass(slots=True)
class RepeatedFailures:
    """Warns a model that makes the same failing call again and again, and then ends its run (DIS-07).

    The same call is the same tool with the same arguments that ends in the same error; or any call of a tool whose
    calls were denied, since each may bother a person. Turns in a row are counted; a turn without it, or a call that
    succeeds, resets the count. ``limit`` is how many turns end the run; 0: none does.
    """

    limit: int
    _turns: dict[_Key, int] = field(default_factory=dict)
    _shown: dict[_Key, str] = field(default_factory=dict)
    _denied: dict[str, int] = field(default_factory=dict)
    """In how many turns calls of a tool were denied and none was permitted."""
    _denied_now: frozenset[str] = frozenset()

    def take(self, calls: Iterable[ToolCall], results: Iterable[ToolResult]) -> None:
        """Take the calls of one turn with their results, in the same order."""
        failed: dict[_Key, str] = {}
        made = list(zip(calls, results, strict=True))
        self._take_denials([(call.tool, result) for call, result in made])
        for call, result in made:
            if result.error is not None:
                key = (call.tool, _text(call.arguments), str(result.error.type), result.error.message)
                failed[key] = f"{call.tool} failed with {result.error.type}: {result.error.message[:MAX_SHOWN_CHARS]}"
        self._turns = {key: self._turns.get(key, 0) + 1 for key in failed}
        self._shown = failed

    def restore(self, turns: Iterable[Sequence[tuple[str, ToolResult]]]) -> None:
        """Count the denials of turns that the run had before this process took it up: tools with their results."""
        for turn in turns:
            self._take_denials(turn)

    def _take_denials(self, made: Sequence[tuple[str, ToolResult]]) -> None:
        denied = {tool for tool, result in made if result.error is not None and result.error.type.is_denial}
        permitted = {tool for tool, result in made if result.error is None}
        for tool in permitted:
            self._denied.pop(tool, None)
        self._denied_now = frozenset(denied - permitted)
        for tool in self._denied_now:
            self._denied[tool] = self._denied.get(tool, 0) + 1

    @property
    def warning(self) -> str:
        """The warning for the model's next request; empty without one."""
        return "\n".join(filter(None, (self._failure_warning(), self._denial_warning())))

    def _denial_warning(self) -> str:
        told = [tool for tool in sorted(self._denied_now) if self._denied[tool] >= TOLD_AFTER]
        if not told:
            return ""
        return (
            f"Calls of {', '.join(told)} were denied again and again. Do not ask for more of them, not with other "
            "arguments either: finish with what you have, and say what was denied."
        )

    def _failure_warning(self) -> str:
        told = [f"{self._shown[key]} ({turns} times)" for key, turns in self._turns.items() if turns >= TOLD_AFTER]
        if not told:
            return ""
        return (
            "You repeat a call that fails in the same way each time, with the same arguments: "
            + "; ".join(told)
            + ". It will not succeed. Change the arguments, use another tool, or finish with what you have."
        )

    @property
    def end(self) -> str:
        """Why the run ends now; empty while it continues."""
        for key, turns in self._turns.items():
            if self.limit and turns >= self.limit:
                return f"the same call failed {turns} turns in a row: {self._shown[key]}"
        over = next((tool for tool in sorted(self._denied_now) if 0 < self.limit <= self._denied[tool]), "")
        return over and f"calls of {over} were denied in {self._denied[over]} turns, and the agent asked for more"


def _text(arguments: object) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)[:MAX_SHOWN_CHARS]
