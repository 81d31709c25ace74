"""One reading of the rows for all who want to know the same at the same time.

Two hundred browsers that wait for a question ask the same each second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from soong.shared.core import timing

T = TypeVar("T")

KEPT: Final = 1_000


@dataclass(slots=True)
class SharedReads:
    """Readings by key. A caller gets what was read after it asked, never what was known before."""

    _next: dict[Hashable, "asyncio.Task[Any]"] = field(default_factory=dict)
    """What begins soon: those who ask until then share it."""
    _began_s: dict[Hashable, float] = field(default_factory=dict)

    async def read(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        """Return what ``load`` does; its failure reaches all who share it."""
        if key not in self._next:
            self._next[key] = asyncio.get_running_loop().create_task(self._load(key, load))
        return cast(T, await asyncio.shield(self._next[key]))

    async def _load(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        now_s = asyncio.get_running_loop().time
        try:
            await asyncio.sleep(max(0.0, self._began_s.get(key, float("-inf")) + timing.LEAST_PAUSE_S - now_s()))
        finally:
            del self._next[key]
        if len(self._began_s) >= KEPT:
            self._began_s.clear()
        self._began_s[key] = now_s()
        return await load()
