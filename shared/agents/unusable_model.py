"""A model that this process cannot ask: its package or its key is missing here."""

from typing import Any

from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings


class UnusableModelError(AgentRunError):
    """The model was not asked, and another process might be able to."""


class UnusableModel(Model[Any]):
    """Answers each request with the reason, so that the run continues with a fallback."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__()
        self._provider_name, _, self._name = name.partition(":")
        self.reason = reason

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return self._provider_name

    async def request(
        self,
        messages: list[ModelMessage],  # noqa: ARG002  # the library's signature
        model_settings: ModelSettings | None,  # noqa: ARG002  # as above
        model_request_parameters: ModelRequestParameters,  # noqa: ARG002  # as above
    ) -> ModelResponse:
        raise UnusableModelError(self.reason)
