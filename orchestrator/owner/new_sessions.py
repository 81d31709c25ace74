"""Sessions between their submission and their adoption: those for which a worker was called, and those passed over."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Final

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.tasks.ending import SessionLook

CALLED_S: Final = 0.05
"""How long at least a worker that was called has for its claim, before messages are sent for what is still ready. Of
what it leaves when it claims it notifies owners itself: this is for a call that nobody heard."""

ALONE_S: Final = 0.1
"""How long at least after the call a session that needs no owner is adopted: a short task ends before, without one.
What needs an owner earlier (a failure, a command, a lost worker) is notified, and it is adopted at once."""

ADOPT_AGAIN_S: Final = (0.005, 0.02, 0.05, 0.1, 0.1, 0.1)
"""Waits before the next tries to adopt a new session. What is not ours then is another's, or the sweep finds it."""
FOLDERS_S: Final = 0.01
"""How long the folders of tasks that ended without an owner wait for others: one read finds them all, and the client,
which reads the result at that moment, has the processor."""


@dataclass(slots=True)
class FoundSessions:
    """What one look is about: ``sessions``, of which ``news`` are heard of for the first time."""

    sessions: set[str]
    news: set[str] = field(default_factory=set)
    called: str = ""
    """The one for which a worker was called."""
    looks: dict[str, SessionLook] = field(default_factory=dict)
    """What has been seen of those that were adopted with a look."""

    def leave_out(self, session_id: str) -> None:
        """Leave out one that is not to be looked at now."""
        self.sessions.discard(session_id)
        self.news.discard(session_id)


class CalledSessions:
    """New sessions for which a worker was called, and that need no owner before their task ends.

    ``fill`` is called when that worker has had its time for the claim, ``adopt`` later, with the sessions.
    """

    def __init__(self, fill: Callable[[], None], adopt: Callable[[set[str]], None]) -> None:
        self._claiming = DelayedNames(CALLED_S, lambda _: fill())
        self._working = DelayedNames(ALONE_S, adopt)

    @property
    def sessions(self) -> AbstractSet[str]:
        return self._working.due_s.keys()

    def add(self, session_id: str) -> None:
        self._claiming.add(session_id)
        self._working.add(session_id)

    def drop(self, session_id: str) -> None:
        """Forget a session that is over, or adopted."""
        self._working.due_s.pop(session_id, None)


class DelayedNames:
    """Names, each given to ``act`` once, ``delay_s`` to twice as long after it was added: many together."""

    def __init__(self, delay_s: float, act: Callable[[set[str]], None]) -> None:
        self._delay_s = delay_s
        self._act = act
        self.due_s: dict[str, float] = {}
        """When each is due, on the loop's clock, in that order."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.due_s.pop(name, None)
        self.due_s[name] = loop.time() + self._delay_s
        if self._timer is None:
            self._timer = loop.call_later(self._delay_s, self._ring)

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        soon_s = loop.time() + self._delay_s / 4
        due = {name for name, due_s in self.due_s.items() if due_s <= soon_s}
        for name in due:
            del self.due_s[name]
        self._timer = loop.call_later(self._delay_s, self._ring) if self.due_s else None
        if due:
            self._act(due)


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
