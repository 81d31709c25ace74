"""Waiting for something to change, for many callers over few connections.

A waiting request polls the rows itself, at every notification and at least every second; so a lost one costs a
second, and rows alone decide what is sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.shared.engine.wire.notifier import NullSubscription, Subscriber, Subscription

MOST_SUBJECTS: Final = 40
"""Subscriptions with their own connection, at most 64 in each process; later ones poll every second."""

KEPT: Final = 200
"""What a listener gets of all that was heard since it waited last."""


@dataclass(slots=True)
class _Subject:
    """One subscription and all who listen with it."""

    subscription: Subscription
    listeners: dict["SharedSubscription", None] = field(default_factory=dict)
    claim_loop: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        while True:
            if heard := await self.subscription.wait(60.0):
                for listener in self.listeners:
                    listener.take(heard)


@dataclass(slots=True, eq=False)
class SharedSubscription:
    """One listener's part in a subscription. Implements ``soong.shared.engine.wire.notifier.Subscription``."""

    leave: Callable[["SharedSubscription"], Awaitable[None]]
    rung: asyncio.Event = field(default_factory=asyncio.Event)
    heard: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, heard: Sequence[str]) -> None:
        self.heard.extend(heard)
        self.rung.set()

    async def wait(self, timeout_s: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(timeout_s):
                await self.rung.wait()
        except TimeoutError:
            return ()
        self.rung.clear()
        heard = tuple(self.heard)
        self.heard.clear()
        return heard

    async def close(self) -> None:
        await self.leave(self)


@dataclass(slots=True)
class SubscriptionPool:
    """Subscriptions by subject; the first listener opens one, the last one closes it."""

    subscriber: Subscriber
    _subjects: dict[str, _Subject] = field(default_factory=dict)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def subscribe_run(self, run_id: str) -> Subscription:
        return await self._ear(run_id, lambda: self.subscriber.subscribe_run(run_id))

    async def subscribe_answer(self, run_id: str) -> Subscription:
        if len(self._subjects) >= MOST_SUBJECTS // 2:
            return NullSubscription()  # the rest of the connections is for logs, which nothing else replaces
        return await self._ear(f"{run_id} answer", lambda: self.subscriber.subscribe_answer(run_id))

    async def subscribe_session(self, session_id: str) -> Subscription:
        return await self._ear(session_id, lambda: self.subscriber.subscribe_session(session_id))

    async def subscribe_questions(self) -> Subscription:
        """Hear that some question was raised, in whichever session."""
        return await self._ear("", self.subscriber.subscribe_permissions)

    async def close(self) -> None:
        subjects, self._subjects = self._subjects, {}
        for subject in subjects.values():
            await _hang_up(subject)

    async def _ear(self, name: str, opened: Callable[[], Awaitable[Subscription]]) -> Subscription:
        async with self._opening:
            subject = self._subjects.get(name)
            if subject is None:
                if len(self._subjects) >= MOST_SUBJECTS:
                    return NullSubscription()
                subject = self._subjects[name] = _Subject(await opened())
                subject.claim_loop = asyncio.get_running_loop().create_task(subject.listen())

            async def leave(listener: SharedSubscription) -> None:
                subject.listeners.pop(listener, None)
                if not subject.listeners and self._subjects.get(name) is subject:
                    del self._subjects[name]
                    await _hang_up(subject)

            subscription = SharedSubscription(leave)
            subject.listeners[subscription] = None
            return subscription


async def _hang_up(subject: _Subject) -> None:
    if subject.claim_loop is not None:
        subject.claim_loop.cancel()
        await asyncio.gather(subject.claim_loop, return_exceptions=True)
    await subject.subscription.close()
