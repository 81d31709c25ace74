"""Following one run: its log from any number on, replayed from rows, then live, with no gap and no doubles (EVT-02).

Rows alone define what happened and in which order; a notification only triggers a read. So replay to live has no
gap: everything that is written in between is found by its number, also while notifications are lost. Pieces of answers
come between the events of the log, and some may be missing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, TypeAlias

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.wire.events import AnswerDelta, delta_of
from soong.shared.engine.wire.notifier import NullSubscription, Subscriber, Subscription

Listen: TypeAlias = Callable[[str], Coroutine[Any, Any, Subscription]]
"""Opens the subscription of a run."""

PAGE: Final = 100
"""Events that each reader holds while it does not read on: an API has hundreds of readers, an event has kilobytes."""

log = get_logger(__name__)
WAITING: Final = 100
"""Events and pieces that wait for a slow reader; events then wait for their turn, and pieces are left out."""
_Item: TypeAlias = "Event | AnswerDelta | None"


async def no_subscription(_run_id: str) -> Subscription:
    """Return a subscription that never reports anything."""
    return NullSubscription()


class RunTail(Value):
    """``listen`` subscribes to a run (``Subscriber.subscribe_run``); it may take its time, or never report anything."""

    runs: RunStore
    listen: Listen = no_subscription
    look_every_s: float = timing.POLL_ROWS_S

    async def replay(self, run_id: str, *, from_seq: int = 1) -> AsyncIterator[Event]:
        """Yield the current content of the log, from that number on."""
        seen = from_seq - 1
        while page := await self.runs.events(run_id, after_seq=seen, limit=PAGE):
            for event in page:
                yield event
            seen = page[-1].seq

    async def follow(self, run_id: str, *, from_seq: int = 1) -> AsyncIterator[Event]:
        """Yield the log from that number on until the run has ended; a database that is away is waited for.

        Raises: NotFoundError when the run does not exist.
        """
        seen = from_seq - 1
        has_ended = (await self.runs.run(run_id)).status.is_terminal
        opening = asyncio.create_task(self.listen(run_id))
        is_heard = False
        try:
            while True:
                try:
                    async for event in self.replay(run_id, from_seq=seen + 1):
                        yield event
                        seen = event.seq
                    if has_ended:
                        return  # it had ended before its log was read to the end
                    # Once the subscription hears, the log is read again before it is waited on.
                    if is_heard:
                        await opening.result().wait(self.look_every_s)
                    else:
                        await asyncio.wait({opening}, timeout=self.look_every_s)
                        is_heard = opening.done()
                    has_ended = (await self.runs.run(run_id)).status.is_terminal
                except UnavailableError:
                    await asyncio.sleep(self.look_every_s)
        finally:
            await _close(opening)


async def _close(opening: asyncio.Task[Subscription]) -> None:
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().close()


async def follow_live(
    tail: RunTail, listen: Listen, run_id: str, *, from_seq: int = 1
) -> AsyncGenerator[Event | AnswerDelta]:
    """Yield what ``tail`` does, and pieces of answers as they come; ``listen`` is ``Subscriber.subscribe_answer``.

    Raises: NotFoundError when the run does not exist.
    """
    queue: asyncio.Queue[_Item] = asyncio.Queue(WAITING)
    reading = asyncio.create_task(_read(tail, run_id, from_seq, queue))
    hearing = asyncio.create_task(_hear(listen, run_id, queue))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await reading  # raises what ended it
    finally:
        for task in (reading, hearing):
            task.cancel()
        await asyncio.gather(reading, hearing, return_exceptions=True)


async def _read(tail: RunTail, run_id: str, from_seq: int, queue: "asyncio.Queue[_Item]") -> None:
    try:
        async for event in tail.follow(run_id, from_seq=from_seq):
            await queue.put(event)
    finally:
        if asyncio.current_task().cancelling() == 0:  # type: ignore[union-attr]  # it runs in a task
            await queue.put(None)


async def _hear(listen: Listen, run_id: str, queue: "asyncio.Queue[_Item]") -> None:
    async for delta in _deltas(await listen(run_id)):
        with suppress(asyncio.QueueFull):
            queue.put_nowait(delta)


async def listen_to_answers(
    subscriber: Subscriber,
    run_id: str,
    take: Callable[[AnswerDelta], object],
    *,
    is_listening: asyncio.Event | None = None,
) -> None:
    """Pass on the pieces of a run's answers until it is cancelled, or until ``take`` raises, which is logged.

    ``is_listening`` is set when no piece that comes from now on is missed.
    """
    subscription = await subscriber.subscribe_answer(run_id)
    if is_listening is not None:
        is_listening.set()
    async with aclosing(_deltas(subscription)) as deltas:
        async for delta in deltas:
            try:
                take(delta)
            except Exception as error:  # noqa: BLE001  # a caller's own code, on which the run does not depend
                log.warning("answers_not_taken", run=run_id, error=f"{type(error).__name__}: {error}")
                return


async def _deltas(subscription: Subscription) -> AsyncGenerator[AnswerDelta]:
    try:
        while True:
            for payload in await subscription.wait(timing.MINUTE_S):
                if (delta := delta_of(payload)) is not None:
                    yield delta
    finally:
        await subscription.close()
