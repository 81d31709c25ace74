"""Hints inside one process: a notifier and a subscriber over plain queues."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from soong.shared.engine.wire.notifier import (
    OWNERS_CHANNEL,
    REQUESTS,
    Subscription,
    answer_channel,
    decisions_of,
    run_channel,
    session_channel,
    worker_channel,
)


class MemorySubscription:
    """One listener. What is rung between two waits is kept."""

    def __init__(self, board: "MemoryBus", subject: str) -> None:
        self._board = board
        self._subject = subject
        self._heard: dict[str, None] = {}
        self._rung = asyncio.Event()

    def notifier(self, ids: Sequence[str]) -> None:
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


class MemoryBus:
    """Both ports of :mod:`soong.shared.engine.wire.notifier` in one loop."""

    def __init__(self) -> None:
        self._ears: defaultdict[str, list[MemorySubscription]] = defaultdict(list)

    # -- ring
    async def notify_owners(self, sessions: Sequence[str] = ()) -> None:
        self._ring(OWNERS_CHANNEL, sessions or ("",))

    async def notify_worker(self, worker_id: str) -> None:
        self._ring(worker_channel(worker_id), (worker_id,))

    async def call_worker(self, worker_id: str) -> None:
        self._ring(worker_channel(worker_id), ("",))

    async def notify_session(self, session_id: str) -> None:
        self._ring(session_channel(session_id), (session_id,))

    async def notify_runs(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._ring(run_channel(run_id), (run_id,))

    async def publish_answer(self, run_id: str, payload: str) -> int:
        self._ring(answer_channel(run_id), (payload,))
        return len(self._ears.get(answer_channel(run_id), ()))

    async def permission_raised(self, request_id: str, session_id: str) -> None:
        self._ring(REQUESTS, (session_id,))

    async def permission_decided(self, request_id: str, worker_id: str) -> None:
        self._ring(decisions_of(worker_id), (request_id,))

    # -- subscriber
    async def subscribe_owner(self) -> Subscription:
        return self._listen(OWNERS_CHANNEL)

    async def subscribe_permissions(self) -> Subscription:
        return self._listen(REQUESTS)

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        return self._listen(worker_channel(worker_id))

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        return self._listen(decisions_of(worker_id))

    async def subscribe_session(self, session_id: str) -> Subscription:
        return self._listen(session_channel(session_id))

    async def subscribe_run(self, run_id: str) -> Subscription:
        return self._listen(run_channel(run_id))

    async def subscribe_answer(self, run_id: str) -> Subscription:
        return self._listen(answer_channel(run_id))

    def forget(self, subject: str, subscription: MemorySubscription) -> None:
        """Stop ringing a subscription that was closed; a second time does nothing."""
        if subscription in self._ears[subject]:
            self._ears[subject].remove(subscription)

    def _listen(self, subject: str) -> MemorySubscription:
        subscription = MemorySubscription(self, subject)
        self._ears[subject].append(subscription)
        return subscription

    def _ring(self, subject: str, ids: Sequence[str]) -> None:
        for subscription in self._ears.get(subject, ()):
            subscription.notifier(ids)
