"""A model whose answers are data. Turns, prices, events and tool calls are those of any model."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from typing import Final, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.model import REGISTERED
from soong.shared.agents.script_turns import WantedCall
from soong.shared.agents.scripted_model import LocalModel
from soong.shared.core.errors import ScriptFailedError
from soong.shared.core.jsontext import Json, dump
from soong.shared.tools.naming import NameTable

_NUMBERS: Final = count(1)
CHARS_PER_TOKEN: Final = 4


Answer: TypeAlias = WantedCall | Sequence[WantedCall] | Json | Exception


def call(tool: str, /, **arguments: Json) -> WantedCall:
    """Return a tool call, for :func:`scripted_model`."""
    return WantedCall(tool, arguments)


class ScriptedAnswers:
    """A scripted model. ``name`` is what a run, a step or an agent names as its model."""

    def __init__(self, name: str, scripts: Mapping[str, Sequence[Answer]]) -> None:
        self.name, self.scripts = name, scripts
        self.requests: list[Sequence[ModelMessage]] = []
        """The messages of each request, in order, as the model library has them."""


def scripted_model(answers: Sequence[Answer] | Mapping[str, Sequence[Answer]], *, name: str = "") -> ScriptedAnswers:
    """Make a model that gives these answers, one per request; every run begins with the first.

    An answer is a :func:`call`, a list of calls at once, a text or an object (the output of the step), or an exception
    of the model library (a failure of the provider). A mapping has answers by the ids of steps, or globs. Without a
    ``name`` it gets one of its own. With the name of a real model (``openai:gpt-5``) it takes the place of that model
    in this process, for plans and agents that name it.
    A run that asks for more answers fails, and says so.
    """
    scripts = answers if isinstance(answers, Mapping) else {"*": answers}
    made = ScriptedAnswers(name or f"test:scripted-{next(_NUMBERS)}", scripts)
    REGISTERED[made.name] = lambda step_id: _AnswerModel(made, step_id)
    return made


class _AnswerModel(LocalModel):
    """The model of one run. Its place in the script follows from the history, so that a run which parks continues."""

    def __init__(self, answers: ScriptedAnswers, step_id: str) -> None:
        provider, _, model = answers.name.rpartition(":")
        super().__init__(model, provider or "test")
        self._answers, self._step_id = answers, step_id
        self._failures = 0

    async def answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        self._answers.requests.append(tuple(messages))
        scripts = self._answers.scripts.items()
        script = next((script for pattern, script in scripts if fnmatchcase(self._step_id, pattern)), ())
        place = sum(isinstance(message, ModelResponse) for message in messages) + self._failures
        if place >= len(script):
            words = f"has {len(script)} answers for step {self._step_id!r}, which asks for another; add an answer"
            raise ScriptFailedError(f"the scripted model {self._answers.name!r} {words}")
        reply = script[place]
        if isinstance(reply, Exception):
            self._failures += 1
            raise reply
        parts = self._parts(reply, place + 1, parameters)
        read, written = (max(1, len(str(part)) // CHARS_PER_TOKEN) for part in (messages, parts))
        usage = RequestUsage(input_tokens=read, output_tokens=written)
        return ModelResponse(parts=parts, usage=usage, model_name=self.model_name, provider_name=self.system)

    def _parts(self, reply: Answer, number: int, parameters: ModelRequestParameters) -> Sequence[ModelResponsePart]:
        calls = [reply] if isinstance(reply, WantedCall) else reply
        if isinstance(calls, Sequence) and calls and all(isinstance(one, WantedCall) for one in calls):
            made = [one for one in calls if isinstance(one, WantedCall)]
            names = NameTable([one.tool for one in made])
            return [
                ToolCallPart(names.to_provider(one.tool), dict(one.arguments), f"t{number}c{place}")
                for place, one in enumerate(made, 1)
            ]
        text = reply if isinstance(reply, str) else dump(reply)
        if parameters.output_tools and not isinstance(reply, str):
            return [ToolCallPart(parameters.output_tools[0].name, text, f"t{number}c1")]
        return [TextPart(text)]
