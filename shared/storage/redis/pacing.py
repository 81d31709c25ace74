"""The pace of providers in Redis, where all processes of a deployment read it. Keys expire; no clock is compared."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from soong.shared.agents.run_models import PAUSE, LocalPacer
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger

PREFIX: Final = "soong:pace:"

log = get_logger(__name__)


@dataclass(slots=True)
class RedisPacer:
    """Implements ``Pacer`` and ``Pauses`` of :mod:`soong.shared.agents.run_models`.

    While Redis is away the process uses its own counts.
    """

    client: "Redis"
    own: LocalPacer = field(default_factory=LocalPacer)
    _away_until: float = 0.0

    async def pause_left_s(self, key: str) -> float:
        left = await self._asked(self._left_s(f"{PREFIX}{key}"))
        if left == 0.0:
            self.own.forget(key)  # another process has lifted it
        return await self.own.pause_left_s(key) if left is None else left

    async def pause(self, key: str, seconds: float) -> None:
        await self.own.pause(key, seconds)
        await self._asked(self._pause(f"{PREFIX}{key}", seconds))

    async def take(self, key: str, amount: int, limit: int) -> float:
        wait_s = await self._asked(self._take(f"{PREFIX}{key}", amount, limit))
        return await self.own.take(key, amount, limit) if wait_s is None else wait_s

    async def paused(self) -> dict[str, float]:
        found: dict[str, float] = {}
        try:
            for name, model in (await self._pauses()).items():
                found[model] = max(found.get(model, 0.0), await self._left_s(name))
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis cannot be reached: {error}") from error
        return found

    async def lift(self, model: str = "") -> list[str]:
        try:
            lifted = {name: each for name, each in (await self._pauses()).items() if model in ("", each)}
            if lifted:
                await self.client.delete(*lifted)
        except (RedisError, OSError) as error:
            raise UnavailableError(f"Redis cannot be reached: {error}") from error
        return sorted(set(lifted.values()))

    async def _pauses(self) -> dict[str, str]:
        """Return the keys of the pauses, each with its model."""
        keys = [key async for key in self.client.scan_iter(match=f"{PREFIX}*{PAUSE}*", count=1000)]
        names = [key.decode() if isinstance(key, bytes) else key for key in keys]
        return {name: name.partition(PAUSE)[2] for name in names}

    async def _left_s(self, name: str) -> float:
        return max(0, int(await self.client.pttl(name))) / 1000

    async def _pause(self, name: str, seconds: float) -> float:
        left = await self._left_s(name)
        if seconds > left:
            await self.client.set(name, "1", px=max(1, int(seconds * 1000)))
        return 0.0

    async def _take(self, name: str, amount: int, limit: int) -> float:
        counted = int(await self.client.incrby(name, amount))
        left_s = int(await self.client.pttl(name)) / 1000
        if left_s < 0:  # it is new, or who made it died before it had an end
            await self.client.pexpire(name, int(timing.MINUTE_S * 1000))
            left_s = timing.MINUTE_S
        if counted <= limit or counted == amount:
            return 0.0
        await self.client.incrby(name, -amount)
        return max(left_s, 0.05)

    async def _asked(self, question: Coroutine[Any, Any, float]) -> float | None:
        """Return the answer of Redis; None where it gives none in time."""
        if time.monotonic() < self._away_until:
            question.close()
            return None
        try:
            async with asyncio.timeout(timing.SHORT_LIMIT_S):
                return await question
        except (RedisError, OSError, TimeoutError) as error:
            self._away_until = time.monotonic() + timing.AWAY_S
            log.warning("pacing_alone", error=str(error))
            return None
