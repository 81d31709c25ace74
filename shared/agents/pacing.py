"""Pacing: requests to one provider wait together (DIS-09, DIS-12).

When a provider says how long to wait, all runs of all processes with the same key wait so long, and a limit of requests
or tokens a minute that the configuration sets holds for all of them. Each process counts for itself where it hears
nothing of the others.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Any, Final, Protocol

from soong.shared.core.lazy_dataclass import dataclass

MINUTE_S: Final = 60.0
MOST_SHARED_S: Final = 3600.0
"""The longest pause that one process sets for the others; the run that was asked to wait waits all of it."""
_KEY_CHARS: Final = 24

Sleep = Callable[[float], Awaitable[None]]


class Pacer(Protocol):
    """What the processes of a deployment know of a provider. Never raises for a server that is away."""

    async def pause_left_s(self, key: str) -> float:
        """Return how long requests under this key are still to wait; 0: none."""
        ...

    async def pause(self, key: str, seconds: float) -> None:
        """Have all requests under this key wait; a pause that ends later stays."""
        ...

    async def take(self, key: str, amount: int, limit: int) -> float:
        """Count ``amount`` in the current minute of a key; return 0, or how long to wait until there is room."""
        ...


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Most requests and tokens a minute of one provider key; None: any number."""

    requests: int | None = None
    tokens: int | None = None


def provider_key(model: Any) -> str:
    """Return a name of the account that a model is asked under. No secret can be learned from it."""
    client = getattr(model, "client", None)
    secret = getattr(client, "api_key", None) or getattr(getattr(client, "_api_client", None), "api_key", None)
    told = "\0".join((str(model.system), str(model.base_url), str(secret or "")))
    return hashlib.sha256(told.encode()).hexdigest()[:_KEY_CHARS]


@dataclass(slots=True)
class LocalPacer:
    """What one process knows by itself."""

    clock: Callable[[], float] = time.monotonic
    _until: dict[str, float] = field(default_factory=dict)
    _minutes: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By key: when its minute ends, and what was counted in it."""

    async def pause_left_s(self, key: str) -> float:
        left = self._until.get(key, 0.0) - self.clock()
        if left <= 0:
            self._until.pop(key, None)
        return max(0.0, left)

    async def pause(self, key: str, seconds: float) -> None:
        self._until[key] = max(self._until.get(key, 0.0), self.clock() + seconds)

    async def take(self, key: str, amount: int, limit: int) -> float:
        now = self.clock()
        ends, counted = self._minutes.get(key, (0.0, 0))
        if ends <= now:
            ends, counted = now + MINUTE_S, 0
        if counted and counted + amount > limit:
            return ends - now
        self._minutes[key] = (ends, counted + amount)
        return 0.0


@dataclass(frozen=True, slots=True)
class Pacing:
    """The pace of one run's model."""

    pacer: Pacer
    key: str
    limits: RateLimits = RateLimits()
    sleep: Sleep = asyncio.sleep

    async def before(self, tokens: int) -> None:
        """Wait until a request that may use so many tokens may be sent."""
        while True:
            wait_s = await self.pacer.pause_left_s(self.key)
            if wait_s <= 0:
                wait_s = await self._room(tokens)
            if wait_s <= 0:
                return
            await self.sleep(wait_s)

    async def _room(self, tokens: int) -> float:
        limits = self.limits
        if limits.requests is not None and (wait_s := await self.pacer.take(f"{self.key}:rpm", 1, limits.requests)) > 0:
            return wait_s
        return 0.0 if limits.tokens is None else await self.pacer.take(f"{self.key}:tpm", tokens, limits.tokens)

    async def limited(self, seconds: float) -> None:
        """Have others wait, too: the provider said how long."""
        if seconds > 0:
            await self.pacer.pause(self.key, min(seconds, MOST_SHARED_S))
