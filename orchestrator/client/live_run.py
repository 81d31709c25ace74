"""Following one run with the answers of its model while they arrive.

The log is the truth and is read from rows; pieces of answers come between its events, and some may be missing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Final, TypeAlias

from soong.orchestrator.client.tail import Listen, RunTail
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import Event
from soong.shared.engine.wire.answers import AnswerDelta, delta_of
from soong.shared.engine.wire.notifier import Subscriber, Subscription

log = get_logger(__name__)

WAITING: Final = 100
"""Events and pieces that wait for a slow reader; events then wait for their turn, and pieces are left out."""

_Item: TypeAlias = "Event | AnswerDelta | None"


async def follow_live(
    tail: RunTail, listen: Listen, run_id: str, *, from_seq: int = 1
) -> AsyncGenerator[Event | AnswerDelta]:
    """Yield what ``tail`` does, and pieces of answers as they come; ``listen`` is ``Subscriber.subscribe_answer``.

    Raises: NotFoundError when there is no such run.
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
