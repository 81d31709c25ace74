"""The ``script`` model: plays a step's script instead of asking a provider (DIS-08).

A real implementation of the model seam. It sees what any model sees (the prompt with the step's inputs and the results
of its calls) and answers with tool calls and a final output; where a model reads a result's text, the script reads the
same result's structured data. It is deterministic and keeps no state that its history does not hold: given a longer
history than it remembers, it plays itself again up to there.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from soong.shared.agents.messages import calls_of
from soong.shared.agents.player import Player, Playing, Wanted, script_budget
from soong.shared.agents.script import Program, parse_script
from soong.shared.core.errors import BudgetExceededError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.engine.tasks.plan.budget import MIB, Budget
from soong.shared.tools.naming import NameTable

MODEL_NAME = "script"

INLINE_CHARS = 4_000
"""A first turn over inputs up to this size is played on the event loop: a thread hop would cost more than it does."""
INLINE_BYTES, INLINE_LOOKUPS = MIB, 2_000
"""What such a turn may make and look up there, which takes milliseconds; one that needs more is played by a thread."""


class ScriptModel(Model[None]):
    """One run's model. Not shared: it remembers how far its script has been played."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        self._player: Player | None = None
        self._playing: Playing | None = None
        self._wanted: Sequence[Wanted] | None = None
        self._budget = script_budget()
        self._turns = 0
        """How many answers the playing has given."""

    @property
    def model_name(self) -> str:
        return MODEL_NAME

    @property
    def system(self) -> str:
        return "soong"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer with the calls of the script's next turn, or with its output.

        Raises:
            TemplateError: the script names what is not there; asking again changes nothing.
        """
        del model_settings  # a script has no temperature
        if len(messages) > 1 or _size(messages[0]) > INLINE_CHARS or not self._begin_here(messages):
            await self._advance_elsewhere(messages)
        wanted = self._wanted
        if wanted is None:
            return self._final(model_request_parameters)
        number = self._turns
        parts = [
            ToolCallPart(_provider_name(call.tool), dict(call.arguments), f"t{number}c{index}")
            for index, call in enumerate(wanted, 1)
        ]
        return ModelResponse(parts=parts, model_name=MODEL_NAME)

    def _begin_here(self, messages: Sequence[ModelMessage]) -> bool:
        """Play the first turn on the event loop; False when it takes more than a moment and was given up."""
        full, self._playing = script_budget(), None
        try:
            self._advance(messages, Budget(full.what, INLINE_BYTES, INLINE_LOOKUPS))
        except BudgetExceededError:
            self._playing = None
            return False
        self._budget.widen(full.total, full.work)
        return True

    async def _advance_elsewhere(self, messages: Sequence[ModelMessage]) -> None:
        """Play on a thread: the loop of the process goes on with its other runs meanwhile."""
        try:
            await asyncio.to_thread(self._advance, messages)
        except asyncio.CancelledError:
            self._budget.stop()  # a thread cannot be cancelled; it ends at the next lookup
            raise

    def _advance(self, messages: Sequence[ModelMessage], budget: Budget | None = None) -> None:
        """Play on to the turn after the history; ``_wanted`` is then None when the script has finished."""
        answers = [index for index, message in enumerate(messages) if isinstance(message, ModelResponse)]
        if self._playing is None or self._turns != len(answers):
            self._budget = script_budget() if budget is None else budget
            self._player = Player(self._program, *_facts(messages), self._budget)
            self._playing, self._turns = self._player.play(), 0
        for turn in range(self._turns, len(answers) + 1):
            results = None if turn == 0 else _results(messages, answers[turn - 1])
            self._wanted = self._send(results)
            self._turns += 1

    def _send(self, results: Sequence[Json] | None) -> Sequence[Wanted] | None:
        """Give the playing its results; turns without calls (a loop over nothing) are passed by."""
        assert self._playing is not None
        try:
            wanted = next(self._playing) if results is None else self._playing.send(results)
            while not wanted:
                wanted = self._playing.send(())
        except StopIteration:
            return None
        return wanted

    def _final(self, parameters: ModelRequestParameters) -> ModelResponse:
        output = self._player.output if self._player is not None else None
        if parameters.output_tools:
            tool = parameters.output_tools[0].name
            call = ToolCallPart(tool, cast("dict[str, object]", output), f"t{self._turns}c1")
            return ModelResponse(parts=[call], model_name=MODEL_NAME)
        text = output if isinstance(output, str) else dump(output)
        return ModelResponse(parts=[TextPart(text)], model_name=MODEL_NAME)


@lru_cache(maxsize=256)
def _program_of(text: str) -> Program:
    return parse_script(json.loads(text))


def script_model(script: Sequence[Json]) -> ScriptModel:
    """Return a model that plays the script. Raises: InvalidPlanError."""
    return ScriptModel(_program_of(dump(script)))


def _size(message: ModelMessage) -> int:
    """Return how many characters the prompts of a message have."""
    return sum(
        len(text) for part in message.parts if isinstance(part, UserPromptPart) for text in map(str, part.content)
    )


def _facts(messages: Sequence[ModelMessage]) -> tuple[JsonObject, JsonObject]:
    """Return inputs and workplace: the last text of the first prompt
    (:func:`soong.shared.agents.messages.opening_nodes`).
    """
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                facts = json.loads(str(part.content[-1]))
                return facts["inputs"], facts["workplace"]
    return {}, {}


def _results(messages: Sequence[ModelMessage], answer: int) -> list[Json]:
    """Return what came of the calls of one answer, in their order."""
    following = messages[answer + 1] if answer + 1 < len(messages) else None
    given: dict[str, Json] = {}
    for part in following.parts if isinstance(following, ModelRequest) else ():
        if part.part_kind == "tool-return":
            metadata = cast("Mapping[str, Json]", part.metadata or {})
            error = metadata.get("error")
            value = metadata.get("data")
            content = cast(Json, part.content)
            given[part.tool_call_id] = {
                "is_error": error is not None,
                "error": error,
                "value": content if value is None and error is None else value,
            }
    missing: Json = {"is_error": True, "error": {"type": "not_run", "message": "it has no result"}, "value": None}
    return [given.get(call.tool_call_id, missing) for call in calls_of(messages[answer])]


@lru_cache(maxsize=1024)
def _provider_name(tool: str) -> str:
    return NameTable([tool]).to_provider(tool)
