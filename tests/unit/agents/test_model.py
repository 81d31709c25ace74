"""Models by their names, and the requests to them."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRateLimitError
from pydantic_ai.messages import FinishReason, ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.messages import messages_of, opening_nodes
from soong.shared.agents.model import _unusable, check_name, is_warm, resolve_model, warm_up
from soong.shared.agents.model_request import AnswerSource, request
from soong.shared.agents.scripted_model import ScriptedModel
from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.core.jsontext import Json


def opening(inputs: dict[str, Json]) -> list[ModelMessage]:
    return messages_of(opening_nodes("system", "do it", inputs, {}))


async def ask(script: str, inputs: dict[str, Json]) -> ModelResponse:
    model = resolve_model("script", script)
    assert isinstance(model, ScriptedModel)
    try:
        return await model.request(opening(inputs), None, ModelRequestParameters())
    finally:
        model.close()


async def test_two_models_of_one_script_do_not_share_where_they_are() -> None:
    first, second = await asyncio.gather(ask("builtin.echo", {"x": "one"}), ask("builtin.echo", {"x": "two"}))

    assert [first.text, second.text] == ['{"x":"one"}', '{"x":"two"}']


async def test_a_history_without_facts_gives_no_inputs() -> None:
    model = resolve_model("script", "builtin.echo")

    answer = await model.request([ModelRequest(parts=[UserPromptPart("hi")])], None, ModelRequestParameters())

    assert answer.text == "{}"


def test_the_script_model_needs_a_scripted_agent() -> None:
    with pytest.raises(InvalidConfigError, match="has no scripted agent to run"):
        resolve_model("script")
    with pytest.raises(NotFoundError, match=r"no scripted agent 'builtin\.ehco'; did you mean 'builtin\.echo'\?"):
        resolve_model("script", "builtin.ehco")


@pytest.mark.spec("DIS-08.a")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("mistral:mistral-large-latest", r"pip install .*\[mistral\]'", id="package-missing"),
        pytest.param("no-such-provider:x", "is not known", id="provider-unknown"),
        pytest.param("nonsense", "is not known", id="no-provider"),
    ],
)
def test_a_model_that_cannot_be_had_says_what_to_do(name: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        resolve_model(name)


def test_a_model_is_warm_once_it_has_been_warmed_up() -> None:
    warm_up("script")

    assert is_warm("script")
    assert not is_warm("mistral:mistral-large-latest")
    with pytest.raises(InvalidConfigError):
        warm_up("mistral:mistral-large-latest")


def test_the_seam_costs_nothing_until_a_model_is_asked_for() -> None:
    agents = ", ".join(f"soong.shared.agents.{name}" for name in ("model", "ports"))
    modules = f"{agents}, soong.shared.engine.tasks.functions, soong.shared.engine.tasks.expansion"
    code = f"import sys, {modules}; print('pydantic_ai' in sys.modules)"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["script", "openai:gpt-of-tomorrow", "anthropic:x", "ollama:llama", "test:any"])
def test_a_provider_that_is_known_is_taken_without_its_package_and_whatever_the_model(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scirpt", "did you mean 'script'?"),
        ("nope:x", "name it as provider:model"),
        ("gpt-4o", "name it as provider:model"),
        ("openai:", "is not known"),
        ("anthropic:claude-opuss-5-5".replace(":", "-"), "did you mean 'anthropic:claude-opus-5-5'"),
    ],
)
def test_a_name_without_a_provider_is_refused_with_what_comes_near(name: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        check_name(name)

    assert f"the model {name!r} is not known; " in str(raised.value)
    assert said in str(raised.value)


def test_a_missing_key_names_its_variable_and_whose_environment_needs_it() -> None:
    words = "Set the `ANTHROPIC_API_KEY` environment variable or pass it via `AnthropicProvider(api_key=...)` to use …"

    assert _unusable("anthropic:x", words) == (
        "the model 'anthropic:x' needs ANTHROPIC_API_KEY in the environment of the process that runs agents; "
        "set it there, then start the service or the worker again"
    )


class Provider(Model[Any]):
    """A model that gives the answers it has, and keeps the settings that it was asked with."""

    def __init__(self, *answers: ModelResponse | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked_with: list[ModelSettings | None] = []

    @property
    def model_name(self) -> str:
        return "m"

    @property
    def system(self) -> str:
        return "anthropic"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self.asked_with.append(model_settings)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def answer(finish_reason: FinishReason | None, mark: str = "", provider: str = "anthropic") -> ModelResponse:
    """Return an answer with the library's reason for its end, and the provider's own mark where one came."""
    details = {"finish_reason": mark} if mark else None
    parts = [TextPart("one")]
    return ModelResponse(parts=parts, provider_name=provider, finish_reason=finish_reason, provider_details=details)


WHOLE = answer("stop", "end_turn")
NONE = ModelOptions()


async def request_of(
    provider: Provider, attempts: int = 5, options: ModelOptions = NONE
) -> tuple[ModelResponse, list[float], list[str]]:
    pauses: list[float] = []
    failures: list[str] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def refused(answer: ModelResponse, is_retried: bool) -> None:
        del answer, is_retried

    response = await request(
        AnswerSource(provider),
        [ModelRequest(parts=[UserPromptPart("hi")])],
        ModelRequestParameters(),
        options=options,
        attempts=attempts,
        failed=lambda _attempt, words, _again, _status: failures.append(words),
        refused=refused,
        sleep=sleep,
    )
    return response, pauses, failures


async def test_a_definitions_options_are_asked_of_the_model() -> None:
    provider = Provider(WHOLE)
    options = ModelOptions(
        temperature=0.5, max_tokens=100, thinking="off", timeout_s=30.0, parallel_calls=False, cache=False
    )

    await request_of(provider, options=options)

    (asked,) = provider.asked_with
    assert asked == {
        "max_retries": 0,
        "temperature": 0.5,
        "max_tokens": 100,
        "thinking": False,
        "timeout": 30.0,
        "parallel_tool_calls": False,
    }


@pytest.mark.spec("DIS-12.d")
@pytest.mark.parametrize("asked_s", [0.0, 40.0, 600.0])
async def test_the_run_waits_as_long_as_the_provider_says(asked_s: float) -> None:
    limited = ModelRateLimitError("m", "slow down", retry_after=asked_s)

    _, pauses, _ = await request_of(Provider(limited, WHOLE))

    assert pauses == [asked_s]


async def test_an_answer_that_came_as_one_document_needs_no_mark() -> None:
    response, _, failures = await request_of(Provider(answer(None, provider="openai")))

    assert response.parts == [TextPart("one")]
    assert failures == []


def used(output_tokens: int, finish_reason: FinishReason) -> ModelResponse:
    usage = RequestUsage(input_tokens=5, output_tokens=output_tokens)
    return replace(answer(finish_reason, "end_turn"), usage=usage)


@pytest.mark.spec("DIS-12.b")
@pytest.mark.parametrize(
    ("tokens", "reason", "max_tokens", "heard"),
    [
        pytest.param(60, "stop", 60, "length", id="all of them"),
        pytest.param(61, "stop", 60, "stop", id="more, with those of its tools"),
        pytest.param(59, "stop", 60, "stop", id="fewer"),
        pytest.param(60, "stop", None, "stop", id="no limit of ours"),
        pytest.param(60, "tool_call", 60, "tool_call", id="calls, whose arguments are judged"),
    ],
)
async def test_an_answer_that_used_all_its_tokens_is_cut_whatever_its_server_says(
    tokens: int, reason: FinishReason, max_tokens: int | None, heard: str
) -> None:
    response, _, _ = await request_of(Provider(used(tokens, reason)), options=ModelOptions(max_tokens=max_tokens))

    assert response.finish_reason == heard
