"""Notifications inside one process: a notifier and a subscriber without a server, for any number of event loops."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from soong.shared.engine.wire.notifier import (
    OWNERS_CHANNEL,
    REQUESTS,
    LocalSubscription,
    Subscription,
    answer_channel,
    decisions_of,
    run_channel,
    session_channel,
    worker_channel,
)


class MemorySubscription(LocalSubscription):
    """A subscription of the loop that made it."""

    def __init__(self, bus: "MemoryBus", subject: str) -> None:
        super().__init__()
        self._bus, self._subject = bus, subject
        self._loop = asyncio.get_running_loop()

    def notify(self, ids: Sequence[str]) -> None:
        """Deliver ids, from any thread."""
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001  # the public form raises outside of a loop
            self.note(*ids)
            return
        with suppress(RuntimeError):  # its loop has closed: nobody waits
            self._loop.call_soon_threadsafe(self.note, *ids)

    async def close(self) -> None:
        self._bus.forget(self._subject, self)


class MemoryBus:
    """Implements :class:`soong.shared.engine.wire.notifier.Notifier` and its ``Subscriber``. Safe from any thread."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[MemorySubscription]] = defaultdict(list)

    # -- notifier
    async def notify_owners(self, sessions: Sequence[str] = ()) -> None:
        self._notify(OWNERS_CHANNEL, sessions or ("",))

    async def notify_worker(self, worker_id: str) -> None:
        self._notify(worker_channel(worker_id), (worker_id,))

    async def call_worker(self, worker_id: str) -> None:
        self._notify(worker_channel(worker_id), ("",))

    async def notify_session(self, session_id: str) -> None:
        self._notify(session_channel(session_id), (session_id,))

    async def notify_runs(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._notify(run_channel(run_id), (run_id,))

    async def publish_answer(self, run_id: str, payload: str) -> int:
        self._notify(answer_channel(run_id), (payload,))
        return len(self._listeners.get(answer_channel(run_id), ()))

    async def permission_raised(self, request_id: str, session_id: str) -> None:  # noqa: ARG002  # as its port
        self._notify(REQUESTS, (session_id,))

    async def permission_decided(self, request_id: str, worker_id: str) -> None:
        self._notify(decisions_of(worker_id), (request_id,))

    # -- subscriber
    async def subscribe_owner(self) -> Subscription:
        return self._subscribe(OWNERS_CHANNEL)

    async def subscribe_permissions(self) -> Subscription:
        return self._subscribe(REQUESTS)

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        return self._subscribe(worker_channel(worker_id))

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        return self._subscribe(decisions_of(worker_id))

    async def subscribe_session(self, session_id: str) -> Subscription:
        return self._subscribe(session_channel(session_id))

    async def subscribe_run(self, run_id: str) -> Subscription:
        return self._subscribe(run_channel(run_id))

    async def subscribe_answer(self, run_id: str) -> Subscription:
        return self._subscribe(answer_channel(run_id))

    def forget(self, subject: str, subscription: MemorySubscription) -> None:
        """Notify a closed subscription no more. Idempotent."""
        with suppress(ValueError):
            self._listeners[subject].remove(subscription)

    def _subscribe(self, subject: str) -> MemorySubscription:
        subscription = MemorySubscription(self, subject)
        self._listeners[subject].append(subscription)
        return subscription

    def _notify(self, subject: str, ids: Sequence[str]) -> None:
        for subscription in tuple(self._listeners.get(subject, ())):
            subscription.notify(ids)
