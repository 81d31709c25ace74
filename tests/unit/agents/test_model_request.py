from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelRateLimitError
from pydantic_ai.messages import FinishReason, ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from soong.shared.agents.definition import ModelOptions
from soong.shared.agents.model_request import AnswerSource, ProviderFailedError, request


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


async def ask(
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

    await ask(provider, options=options)

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

    _, pauses, _ = await ask(Provider(limited, WHOLE))

    assert pauses == [asked_s]


@pytest.mark.spec("DIS-12.d")
@pytest.mark.parametrize("asked_s", [601.0, float("inf")])
async def test_a_pause_beyond_the_bound_is_final_for_the_model(asked_s: float) -> None:
    with pytest.raises(ProviderFailedError) as caught:
        await ask(Provider(ModelRateLimitError("m", "slow down", retry_after=asked_s), WHOLE))

    assert (caught.value.is_of_model, "too long" in str(caught.value)) == (True, True)


async def test_an_answer_that_came_as_one_document_needs_no_mark() -> None:
    response, _, failures = await ask(Provider(answer(None, provider="openai")))

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
    response, _, _ = await ask(Provider(used(tokens, reason)), options=ModelOptions(max_tokens=max_tokens))

    assert response.finish_reason == heard
