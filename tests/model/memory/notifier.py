"""Hints inside one process: a ring and a switchboard over plain queues."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from soong.shared.engine.wire.events import OWNERS_CHANNEL, run_channel, session_channel, worker_channel
from soong.shared.engine.wire.notifier import Ear
from soong.shared.engine.wire.permissions import REQUESTS, decisions_of


class MemoryEar:
    """One listener. What is rung between two waits is kept."""

    def __init__(self, board: "MemorySwitchboard", subject: str) -> None:
        self._board = board
        self._subject = subject
        self._heard: dict[str, None] = {}
        self._rung = asyncio.Event()

    def ring(self, ids: Sequence[str]) -> None:
        self._heard.update(dict.fromkeys(ids))
        self._rung.set()

    async def wait(self, timeout_s: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            return ()
        heard = tuple(self._heard)
        self._heard.clear()
        self._rung.clear()
        return heard

    async def close(self) -> None:
        self._board.forget(self._subject, self)


class MemorySwitchboard:
    """Both ports of :mod:`soong.shared.engine.wire.notifier` in one loop. What is rung while nobody listens is gone,
    as it may be.
    """

    def __init__(self) -> None:
        self._ears: defaultdict[str, list[MemoryEar]] = defaultdict(list)

    # -- ring
    async def wake_owners(self, sessions: Sequence[str] = ()) -> None:
        self._ring(OWNERS_CHANNEL, tuple(sessions) or ("",))

    async def wake_worker(self, worker_id: str) -> None:
        self._ring(worker_channel(worker_id), (worker_id,))

    async def wake_session(self, session_id: str) -> None:
        self._ring(session_channel(session_id), (session_id,))

    async def wake_runs(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._ring(run_channel(run_id), (run_id,))

    async def permission_raised(self, request_id: str, session_id: str) -> None:
        del request_id  # an owner looks at all that waits in the session
        self._ring(REQUESTS, (session_id,))

    async def permission_decided(self, request_id: str, worker_id: str) -> None:
        self._ring(decisions_of(worker_id), (request_id,))

    # -- switchboard
    async def owner_ear(self) -> Ear:
        return self._listen(OWNERS_CHANNEL)

    async def permission_ear(self) -> Ear:
        return self._listen(REQUESTS)

    async def worker_ear(self, worker_id: str) -> Ear:
        return self._listen(worker_channel(worker_id))

    async def decision_ear(self, worker_id: str) -> Ear:
        return self._listen(decisions_of(worker_id))

    async def session_ear(self, session_id: str) -> Ear:
        return self._listen(session_channel(session_id))

    async def run_ear(self, run_id: str) -> Ear:
        return self._listen(run_channel(run_id))

    def forget(self, subject: str, ear: MemoryEar) -> None:
        """Stop ringing an ear that was closed; a second time does nothing."""
        if ear in self._ears[subject]:
            self._ears[subject].remove(ear)

    def _listen(self, subject: str) -> MemoryEar:
        ear = MemoryEar(self, subject)
        self._ears[subject].append(ear)
        return ear

    def _ring(self, subject: str, ids: Sequence[str]) -> None:
        for ear in self._ears.get(subject, ()):
            ear.ring(ids)
