"""One run followed: its log from any number on, replayed from rows, then live, with no gap and no doubles (EVT-02).

Rows alone define what happened and in which order; a notification only triggers a read. So replay to live has no
gap: everything that is written in between is found by its number, also while notifications are lost. Pieces of answers
come between the events of the log, and some may be missing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final, TypeAlias

from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.feeds import Listener
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.events import Event
from soong.shared.engine.wire.notifier import AnswerDelta, delta_of

log = get_logger(__name__)
PAGE: Final = 100
"""Events that each reader holds while it does not read on: an API has hundreds of readers, an event has kilobytes."""
WAITING: Final = 100
"""Events and pieces that wait for a slow reader; events then wait for their turn, and pieces are left out."""
_Queue: TypeAlias = "asyncio.Queue[Event | AnswerDelta | None]"


async def follow_log(service: ServiceParts, run_id: str, *, from_seq: int = 1) -> AsyncGenerator[Event]:
    """Yield the log from that number on until the run has ended; a database that is away is waited for.

    Raises: NotFoundError when the run does not exist.
    """
    runs, seen, last_seq, has_ended = service.store.runs, from_seq - 1, 0, False

    async def state() -> tuple[int, bool]:
        run = await runs.run(run_id)
        return run.last_seq, run.status.is_terminal

    listen = partial(service.subscriptions.run, run_id)
    with service.feeds.follow(("run", run_id), state, listen, is_quick=True) as following:
        while not (has_ended and seen >= last_seq):
            try:
                if seen >= last_seq:
                    last_seq, has_ended = await following.next()
                    continue
                page = await following.feed.once(seen, partial(runs.events, run_id, after_seq=seen, limit=PAGE))
            except UnavailableError:
                await asyncio.sleep(timing.POLL_ROWS_S)
                continue
            for event in page:
                yield event
            seen = page[-1].seq if page else last_seq


async def follow_live(service: ServiceParts, run_id: str, *, from_seq: int = 1) -> AsyncGenerator[Event | AnswerDelta]:
    """Yield the log, and pieces of answers as they come. Raises: NotFoundError when the run does not exist."""
    queue: _Queue = asyncio.Queue(WAITING)
    reading = asyncio.create_task(_read(follow_log(service, run_id, from_seq=from_seq), queue))
    hearing = asyncio.create_task(_pass_on(service.subscriptions.answer(run_id), queue))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await reading  # raises what ended it
    finally:
        for task in (reading, hearing):
            task.cancel()
        await asyncio.gather(reading, hearing, return_exceptions=True)


async def _read(log: AsyncGenerator[Event], queue: _Queue) -> None:
    try:
        async for event in log:
            await queue.put(event)
    finally:
        await log.aclose()
        if asyncio.current_task().cancelling() == 0:  # type: ignore[union-attr]  # it runs in a task
            await queue.put(None)


async def _pass_on(listener: Listener, queue: _Queue) -> None:
    async for delta in answer_pieces(listener):
        with suppress(asyncio.QueueFull):
            queue.put_nowait(delta)


async def pass_on_answers(listener: Listener, run_id: str, take: Callable[[AnswerDelta], object]) -> None:
    """Pass on the pieces of a run's answers until cancelled, or until ``take`` raises, which is logged."""
    async with aclosing(answer_pieces(listener)) as pieces:
        async for delta in pieces:
            try:
                take(delta)
            except Exception as error:  # noqa: BLE001  # a caller's own code, on which the run does not depend
                log.warning("answers_not_taken", run=run_id, error=f"{type(error).__name__}: {error}")
                return


async def answer_pieces(listener: Listener) -> AsyncGenerator[AnswerDelta]:
    """Yield the pieces of a run's answers as they come, until cancelled."""
    try:
        while True:
            for payload in await listener.wait(timing.MINUTE_S):
                if (delta := delta_of(payload)) is not None:
                    yield delta
    finally:
        await listener.close()
