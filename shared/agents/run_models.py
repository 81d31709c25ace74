"""The models that one run asks: its own, those that continue it after a final failure, and their pace (DIS-09, DIS-12).

When a provider sends a time to wait, all runs of all processes with the same model and key wait so long, unless a
person lifts the pause. A limit of requests or tokens a minute that the configuration sets holds for all models of a
key. Each process counts for itself without contact to the others.

A fallback gets the conversation and the tools as they are; the model library leaves out of it what only the provider of
an answer understands (signatures, thinking). An answer of a fallback names it: a run that another process takes up
continues with the model that it had come to, and each answer is counted and priced under the model that gave it.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from soong.shared.agents.definition import Price
from soong.shared.core import timing
from soong.shared.core.value import Value

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model


PAUSE: Final = ":pause:"
"""In the key of a pause: before the name of its model."""
LIFTED: Final = "the pause was lifted"
"""With this message a sleep is cancelled whose run continues."""

Sleep = Callable[[float], Awaitable[None]]


class Pacer(Protocol):
    """The shared pace of a deployment's requests to a provider. Never raises for an unreachable server."""

    async def pause_left_s(self, key: str) -> float:
        """Return how long requests under this key are still to wait; 0: none."""
        ...

    async def pause(self, key: str, seconds: float) -> None:
        """Have all requests under this key wait; a pause that ends later stays."""
        ...

    async def take(self, key: str, amount: int, limit: int) -> float:
        """Count ``amount`` in the current minute of a key; return 0, or how long to wait until there is room."""
        ...


class Pauses(Protocol):
    """The pauses of a deployment, for people. Raises UnavailableError where their server is away."""

    async def paused(self) -> dict[str, float]:
        """Return the models that wait, and for how many seconds at most."""
        ...

    async def lift(self, model: str = "") -> list[str]:
        """End the pauses of a model, or of all, for every process; return the models."""
        ...


class RateLimits(Value):
    """Most requests and tokens a minute of one provider key; None: any number."""

    requests: int | None = None
    tokens: int | None = None


def provider_key(model: Any) -> str:
    """Return a name of the account that a model is asked under. No secret can be learned from it."""
    client = getattr(model, "client", None)
    secret = getattr(client, "api_key", None) or getattr(getattr(client, "_api_client", None), "api_key", None)
    told = "\0".join((str(model.system), str(model.base_url), str(secret or "")))
    return hashlib.sha256(told.encode()).hexdigest()[:24]


@dataclass(slots=True)
class LocalPacer:
    """The pace of one process alone."""

    clock: Callable[[], float] = time.monotonic
    _until: dict[str, float] = field(default_factory=dict)
    _minutes: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By key: when its minute ends, and what was counted in it."""

    async def pause_left_s(self, key: str) -> float:
        left = self._until.get(key, 0.0) - self.clock()
        if left <= 0:
            self._until.pop(key, None)
        return max(0.0, left)

    def forget(self, key: str) -> None:
        """Know of no pause under this key."""
        self._until.pop(key, None)

    async def pause(self, key: str, seconds: float) -> None:
        self._until[key] = max(self._until.get(key, 0.0), self.clock() + seconds)

    async def take(self, key: str, amount: int, limit: int) -> float:
        now = self.clock()
        ends, counted = self._minutes.get(key, (0.0, 0))
        if ends <= now:
            ends, counted = now + timing.MINUTE_S, 0
        if counted and counted + amount > limit:
            return ends - now
        self._minutes[key] = (ends, counted + amount)
        return 0.0


class Pacing(Value):
    """The pace of one run's model: ``name``. ``longest_s`` is the longest pause that its provider may ask for."""

    pacer: Pacer
    key: str
    limits: RateLimits = RateLimits()
    sleep: Sleep = asyncio.sleep
    name: str = ""
    longest_s: float = timing.PROVIDER_PAUSE_LIMIT_S

    @property
    def pause_key(self) -> str:
        return f"{self.key}{PAUSE}{self.name}"

    async def before(self, tokens: int) -> None:
        while True:
            if (pause_s := await self.pacer.pause_left_s(self.pause_key)) > 0:
                await self._pause(pause_s)
            elif (wait_s := await self._room(tokens)) > 0:
                await self.sleep(wait_s)
            else:
                return

    async def _pause(self, seconds: float) -> None:
        """Wait for the end of a pause, or for the person who lifts it."""
        sleeping = asyncio.ensure_future(self.sleep(seconds))
        try:
            while not (await asyncio.wait({sleeping}, timeout=timing.POLL_ROWS_S))[0]:
                if await self.pacer.pause_left_s(self.pause_key) <= 0:
                    sleeping.cancel(LIFTED)
                    await asyncio.wait({sleeping})
            if not sleeping.cancelled():
                sleeping.result()
        finally:
            sleeping.cancel()

    async def _room(self, tokens: int) -> float:
        limits = self.limits
        if limits.requests is not None and (wait_s := await self.pacer.take(f"{self.key}:rpm", 1, limits.requests)) > 0:
            return wait_s
        return 0.0 if limits.tokens is None else await self.pacer.take(f"{self.key}:tpm", tokens, limits.tokens)

    async def limited(self, seconds: float) -> None:
        if seconds > 0:
            await self.pacer.pause(self.pause_key, seconds)


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
