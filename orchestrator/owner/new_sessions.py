"""Sessions between their submission and their adoption: those for which a worker was called, and those passed over."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Final

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.tasks.ending import SessionLook

CALLED_S: Final = 0.01
"""How long a worker that was called has for its claim, before messages are sent for what is still ready."""

ADOPT_AGAIN_S: Final = (0.005, 0.02, 0.05, 0.1, 0.1, 0.1)
"""Waits before the next tries to adopt a new session. What is not ours then is another's, or the sweep finds it."""


@dataclass(slots=True)
class FoundSessions:
    """What one look is about: ``sessions``, of which ``news`` are heard of for the first time."""

    sessions: set[str]
    news: set[str] = field(default_factory=set)
    called: str = ""
    """The one for which a worker was called."""
    looks: dict[str, SessionLook] = field(default_factory=dict)
    """What has been seen of those that were adopted with a look."""


class CalledSessions:
    """New sessions for which a worker was called. ``look`` gets those that are left when it has had its time."""

    def __init__(self, look: Callable[[set[str]], None]) -> None:
        self._look = look
        self._until: dict[str, float] = {}
        """On the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sessions(self) -> AbstractSet[str]:
        return self._until.keys()

    def add(self, session_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._until[session_id] = loop.time() + CALLED_S
        if self._timer is None:
            self._timer = loop.call_later(CALLED_S, self._ring)

    def drop(self, session_id: str) -> None:
        """Forget a session that is over."""
        self._until.pop(session_id, None)

    def _ring(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        first_s = min(self._until.values(), default=0.0)
        if first_s > loop.time() + CALLED_S / 10:  # timers come as exactly as the clock is read
            self._timer = loop.call_at(first_s, self._ring)
        elif self._until:
            called, self._until = set(self._until), {}
            self._look(called)


class PassedOverSessions:
    """New sessions that were not adopted when they were heard of: a claim may hold their rows."""

    def __init__(self) -> None:
        self._sessions: set[str] = set()

    def add(self, session_ids: Collection[str]) -> bool:
        """Say whether :meth:`adopt_again` is to be begun for them."""
        is_first = bool(session_ids) and not self._sessions
        self._sessions.update(session_ids)
        return is_first

    async def adopt_again(self, adopt: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Try to adopt them, soon and then more rarely; ``adopt`` returns all sessions that are ours."""
        for wait_s in ADOPT_AGAIN_S:
            await asyncio.sleep(wait_s)
            self._sessions.difference_update(await adopt())
            if not self._sessions:
                return
        self._sessions.clear()
