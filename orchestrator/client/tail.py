"""Following one run: its log from any number on, replayed from rows, then live, with no gap and no doubles (EVT-02).

Rows alone define what happened and in which order; a notification only triggers a read. So replay to live has no
gap: everything that is written in between is found by its number, also while notifications are lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, TypeAlias

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.wire.notifier import NullSubscription, Subscription

Listen: TypeAlias = Callable[[str], Coroutine[Any, Any, Subscription]]
"""Opens the subscription of a run."""

PAGE: Final = 100
"""Events that each reader holds while it does not read on: an API has hundreds of readers, an event has kilobytes."""


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

        Raises: NotFoundError when there is no such run.
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
