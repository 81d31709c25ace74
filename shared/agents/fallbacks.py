"""The models that continue a run where the provider of its own has failed for good (DIS-09).

A fallback gets the conversation and the tools as they are; the model library leaves out of it what only the provider of
an answer understands (signatures, thinking). An answer of a fallback names it: a run that another process takes up
continues with the model that it had come to, and each answer is counted and priced under the model that gave it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from soong.shared.agents.definition import Price
from soong.shared.agents.pacing import Pacing
from soong.shared.core.value import Value

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

ANSWERED_BY: Final = "soong_model"
"""The metadata key of the fallback that gave an answer. It is stored with the answer and never sent."""


class RunModel(Value):
    """A model as one run asks it. ``window``: how many tokens it reads at most; 0 takes the library's value."""

    name: str
    model: "Model[Any]"
    price: Price | None = None
    window: int = 0
    pacing: Pacing | None = None


async def _none_to_open(name: str) -> RunModel:
    raise NotImplementedError(name)


class Fallbacks(Value):
    """A run's, in the order in which they are tried.

    ``open`` raises InvalidConfigError for a model that this process cannot ask. ``price`` is the configuration's own.
    """

    names: tuple[str, ...] = ()
    open: Callable[[str], Awaitable[RunModel]] = _none_to_open
    price: Callable[[str], Price | None] = lambda _name: None

    def after(self, name: str) -> tuple[str, ...]:
        """Return those that are left when the model of that name has failed."""
        return self.names[self.names.index(name) + 1 :] if name in self.names else self.names


NO_FALLBACKS: Final = Fallbacks()


def marked(answer: "ModelResponse", name: str) -> "ModelResponse":
    """Return an answer that names the fallback which gave it."""
    return replace(answer, metadata={**(answer.metadata or {}), ANSWERED_BY: name})


def answered_by(answer: "ModelResponse") -> str:
    """Return the fallback that gave an answer; empty for the run's own model."""
    name = (answer.metadata or {}).get(ANSWERED_BY)
    return name if isinstance(name, str) else ""
