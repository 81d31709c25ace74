"""The port for hints: ring and wait. Adapters: Redis, and an in-memory one for one process.

Nothing waits on a ring alone: a waiting process also looks at the rows when ``timeout_s`` has passed.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol


class Notifier(Protocol):
    """Sends hints. A hint that cannot be sent is logged and counted, never an error: the sweep makes it good."""

    async def notify_owners(self, sessions: Sequence[str] = ()) -> None:
        """Ask owners to look at these sessions; none: there is work to dispatch or a new worker, fill slots."""
        ...

    async def notify_worker(self, worker_id: str) -> None:
        """Ask a worker to look at its interrupts."""
        ...

    async def call_worker(self, worker_id: str) -> None:
        """Ask a worker to claim steps for its free slots."""
        ...

    async def notify_session(self, session_id: str) -> None:
        """Notify those who follow a session that it changed."""
        ...

    async def notify_runs(self, run_ids: Sequence[str]) -> None:
        """Notify the followers of these runs that their logs have grown."""
        ...

    async def publish_answer(self, run_id: str, payload: str) -> int:
        """Send a piece of an answer at once and return how many hear it; 0 also where it could not be sent."""
        ...

    async def permission_raised(self, request_id: str, session_id: str) -> None:
        """Tell owners that a question was raised, answered or withdrawn: its session's broker is to look."""
        ...

    async def permission_decided(self, request_id: str, worker_id: str, decision: str = "") -> None:
        """Tell a worker that a request was closed; ``decision`` is the text of its decision, if that is at hand."""
        ...


class Subscription(Protocol):
    """Receives hints on one subject; create it, then look at the rows, then wait: nothing falls in between."""

    async def wait(self, timeout_s: float) -> Sequence[str]:
        """Return the ids heard (sessions, requests) since the last call; empty after ``timeout_s`` without a hint."""
        ...

    async def close(self) -> None: ...


class NullSubscription:
    """Hears nothing, ever: for rows that are read without a service."""

    async def wait(self, timeout_s: float) -> Sequence[str]:
        await asyncio.sleep(timeout_s)
        return ()

    async def close(self) -> None:
        """Nothing to close."""


class NullNotifier:
    """Tells nobody: no service runs that could hear it. Implements :class:`Notifier`."""

    async def notify_owners(self, sessions: Sequence[str] = ()) -> None: ...

    async def notify_worker(self, worker_id: str) -> None: ...

    async def call_worker(self, worker_id: str) -> None: ...

    async def notify_session(self, session_id: str) -> None: ...

    async def notify_runs(self, run_ids: Sequence[str]) -> None: ...

    async def publish_answer(self, run_id: str, payload: str) -> int:  # noqa: ARG002  # as its port
        return 0

    async def permission_raised(self, request_id: str, session_id: str) -> None: ...

    async def permission_decided(self, request_id: str, worker_id: str, decision: str = "") -> None: ...


class Subscriber(Protocol):
    """Makes subscriptions. One that was away (its server restarted) says so when it is back: look at all rows.

    It then reports an empty id, the subscriptions of a worker and of a session their own.
    """

    async def subscribe_owner(self) -> Subscription:
        """Subscribe to notifications of owners: session ids; an empty id means "fill slots"."""
        ...

    async def subscribe_permissions(self) -> Subscription:
        """Subscribe to the ids of sessions with questions to look at; none is lost while connected or shortly away."""
        ...

    async def subscribe_worker(self, worker_id: str) -> Subscription:
        """Hear "look at your interrupts": the worker's id; and "fill your slots": an empty id."""
        ...

    async def subscribe_decisions(self, worker_id: str) -> Subscription:
        """Hear decided requests of one worker: request ids, each with the decision that came with it
        (:func:`soong.shared.engine.wire.events.split_hint`).
        """
        ...

    async def subscribe_session(self, session_id: str) -> Subscription:
        """Subscribe to the changes of a session: its id for each."""
        ...

    async def subscribe_run(self, run_id: str) -> Subscription:
        """Hear that a run's log has grown: its id."""
        ...

    async def subscribe_answer(self, run_id: str) -> Subscription:
        """Hear a run's answers while they arrive: the pieces' payloads, the newest of them; an empty one after an
        outage.
        """
        ...


class NullSubscriber:
    """Makes subscriptions that hear nothing. Implements :class:`Subscriber`."""

    async def subscribe_owner(self) -> Subscription:
        return NullSubscription()

    async def subscribe_permissions(self) -> Subscription:
        return NullSubscription()

    async def subscribe_worker(self, worker_id: str) -> Subscription:  # noqa: ARG002  # as its port
        return NullSubscription()

    subscribe_decisions = subscribe_session = subscribe_run = subscribe_answer = subscribe_worker
