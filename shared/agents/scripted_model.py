"""The ``script`` model: runs a step's scripted agent instead of asking a provider (DIS-08, DIS-13).

A real implementation of the model seam. It gets the messages of any model (the prompt with the step's inputs, and the
results of its calls) and answers with tool calls and a final output; the function gets a result's structured data
instead of its text. Its state can be lost: given a longer history than it has, it runs the function again from its
start, and gives it the recorded results as long as it makes the recorded calls.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any, Final, cast

from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.profiles import DEFAULT_PROFILE, ModelProfile
from pydantic_ai.settings import ModelSettings

from soong.shared.agents.messages import calls_of
from soong.shared.agents.provider_schema import SCRIPTED
from soong.shared.agents.script_turns import CallOutcome, CheapTurns, ScriptTurns, WantedCall
from soong.shared.core.errors import ScriptFailedError, ToolCallError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.step_work import begin_thread, call_in_thread
from soong.shared.engine.tasks.functions import ScriptedAgent
from soong.shared.sandbox.redact import MARK
from soong.shared.tools.execution import shown_arguments
from soong.shared.tools.naming import NameTable, unmangle

MODEL_NAME: Final = "script"
MAX_SHOWN_CHARS: Final = 300


class LocalModel(Model[Any]):
    """A model that asks no provider. Subclasses answer."""

    def __init__(self, name: str, system: str = SCRIPTED) -> None:
        super().__init__()
        self._name, self._system = name, system

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return self._system

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        del model_settings
        return await self.answer(messages, model_request_parameters)

    async def answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        raise NotImplementedError


class ScriptedModel(LocalModel):
    """One run's model. Not shared: it keeps the function where it waits. Its user calls :meth:`close`."""

    def __init__(self, script: ScriptedAgent) -> None:
        super().__init__(MODEL_NAME)
        self._script = script
        self._turns: ScriptTurns | CheapTurns | None = None
        self._wanted: Sequence[WantedCall] | None = ()
        self._is_cheap = self._script.is_cheap is True
        self._answers = 0
        """How many answers the function has given."""

    @cached_property
    def profile(self) -> ModelProfile:
        """The library's safe values; working them out for each run takes it as long as a turn of a script."""
        return DEFAULT_PROFILE

    async def answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        """Answer with the calls of the function's next turn, or with its output.
        Raises: ScriptFailedError, the function raised, or does not make the recorded calls.
        """
        if self._turns is None and callable(self._script.is_cheap):
            self._is_cheap = self._script.is_cheap(_facts(messages)[0])
        if self._is_cheap:
            self._advance(messages)
        else:
            await call_in_thread(self._script.name, partial(self._advance, messages))
        parts: list[ModelResponsePart]
        if self._wanted is not None:
            parts = [
                ToolCallPart(_provider_name(call.tool), dict(call.arguments), f"t{self._answers}c{index}")
                for index, call in enumerate(self._wanted, 1)
            ]
        else:
            output = None if self._turns is None else self._turns.output
            if parameters.output_tools:
                final = cast("dict[str, object]", output)
                parts = [ToolCallPart(parameters.output_tools[0].name, final, f"t{self._answers}c1")]
            else:
                parts = [TextPart(output if isinstance(output, str) else dump(output))]
        return ModelResponse(parts=parts, model_name=MODEL_NAME)

    async def confirm(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> None:
        """Hold the calls of the last message to those that the function makes in their place, before these are run.
        Raises: ScriptFailedError, the function raised, or makes others.
        """
        *before, last = messages
        await self.answer(before, parameters)
        _check_recorded(self._answers, calls_of(last), self._wanted or ())

    def close(self) -> None:
        """End the function, if it still waits for a call, without waiting for its end."""
        if self._turns is None or self._wanted is None:
            return
        if self._is_cheap:
            self._turns.close()
        else:
            _ = begin_thread(self._script.name, self._turns.close)

    def _advance(self, messages: Sequence[ModelMessage]) -> None:
        """Run the function up to the turn after the history; ``_wanted`` is then None when it has ended."""
        answers = [index for index, message in enumerate(messages) if isinstance(message, ModelResponse)]
        if self._turns is None or self._answers != len(answers):
            if self._turns is not None:
                self._turns.close()
            turns = CheapTurns if self._is_cheap else ScriptTurns
            self._turns, self._wanted, self._answers = turns(self._script, *_facts(messages)), (), 0
        for turn in range(self._answers, len(answers) + 1):
            if turn:
                _check_recorded(turn, calls_of(messages[answers[turn - 1]]), self._wanted or ())
            if self._wanted is not None:
                outcomes = _outcomes(messages, answers[turn - 1], self._wanted) if turn else ()
                assert self._turns is not None
                self._wanted = self._turns.advance(outcomes)
            self._answers += 1


def _check_recorded(turn: int, recorded: Sequence[ToolCallPart], wanted: Sequence[WantedCall]) -> None:
    """Hold the calls of a turn to those that the history has in their place. Raises: ScriptFailedError."""
    if not wanted and all(part.tool_name == "final_result" for part in recorded):
        return  # its output was not taken, and is given again
    for number in range(max(len(recorded), len(wanted))):
        was = recorded[number] if number < len(recorded) else None
        now = wanted[number] if number < len(wanted) else None
        is_same_tool = was is not None and now is not None and was.tool_name == _provider_name(now.tool)
        if was is None or now is None or not is_same_tool or not is_recorded(was.args, shown_arguments(now.arguments)):
            name = "" if was is None else unmangle(was.tool_name) if "__" in was.tool_name else was.tool_name
            then = "the end" if was is None else _shown(name, was.args)
            came = "the end" if now is None else _shown(now.tool, now.arguments)
            words = f"call {number + 1} of turn {turn} differs from the recorded one: recorded {then}, came {came}"
            raise ScriptFailedError(f"{words}; a scripted agent must be deterministic", type="replay_differs")


def is_recorded(recorded: object, came: object) -> bool:
    """Say whether arguments are the recorded ones; any text matches a secret that the record lacks."""
    if isinstance(recorded, str) and MARK in recorded:
        pattern = ".*".join(map(re.escape, recorded.split(MARK)))
        return isinstance(came, str) and re.fullmatch(pattern, came, re.DOTALL) is not None
    if isinstance(recorded, Mapping) and isinstance(came, Mapping):
        return recorded.keys() == came.keys() and all(is_recorded(recorded[key], came[key]) for key in recorded)
    if isinstance(recorded, list) and isinstance(came, list | tuple):
        return len(recorded) == len(came) and all(map(is_recorded, recorded, came))
    return recorded == came


def _shown(tool: str, arguments: object) -> str:
    return f"{tool} {dump(cast(Json, arguments))}"[:MAX_SHOWN_CHARS]


def _facts(messages: Sequence[ModelMessage]) -> tuple[dict[str, Any], JsonObject]:
    """Return inputs and folders: the last text of the first prompt, as ``opening_nodes`` writes it."""
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                facts = json.loads(str(part.content[-1]))
                return facts["inputs"], facts["run_dirs"]
    return {}, {}


def _outcomes(messages: Sequence[ModelMessage], answer: int, wanted: Sequence[WantedCall]) -> list[CallOutcome]:
    following = messages[answer + 1] if answer + 1 < len(messages) else None
    parts = following.parts if isinstance(following, ModelRequest) else ()
    given = {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}
    calls = calls_of(messages[answer])
    return [_outcome(call.tool, given.get(part.tool_call_id)) for call, part in zip(wanted, calls, strict=True)]


def _outcome(tool: str, given: ToolReturnPart | None) -> CallOutcome:
    if given is None:
        return CallOutcome(error=ToolCallError(tool, "failed", "not_run", "it has no result"))
    metadata = cast("Mapping[str, Any]", given.metadata or {})
    error, value = metadata.get("error"), metadata.get("data")
    if error is None:
        return CallOutcome(cast(Json, given.content) if value is None else value)
    status = "denied" if given.outcome == "denied" else "failed"
    return CallOutcome(error=ToolCallError(tool, status, str(error["type"]), str(error["message"]), value))


@lru_cache(maxsize=1024)
def _provider_name(tool: str) -> str:
    return NameTable([tool]).to_provider(tool)


class UnusableModelError(AgentRunError):
    """The model was not asked, and another process might be able to."""


class UnusableModel(LocalModel):
    """Answers each request with the reason, so that the run continues with a fallback."""

    def __init__(self, name: str, reason: str) -> None:
        provider, _, model = name.partition(":")
        super().__init__(model, provider)
        self.reason = reason

    async def answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        del messages, parameters
        raise UnusableModelError(self.reason)
