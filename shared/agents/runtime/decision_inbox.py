"""The one inbox of a process for decisions: it waits for all gates.

Hints wake it, and it reads the rows at least every second, so that a lost hint costs a second and never an answer. The
content of a hint only causes a read of the row.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.notifier import Subscriber, Subscription
from soong.shared.permissions.store import ClosedQuestion, ConsentStore

log = get_logger(__name__)


@dataclass(slots=True)
class DecisionInbox:
    """Waits for the decisions of all gates of one worker process. One task, alive while somebody waits."""

    store: ConsentStore
    subscriber: Subscriber
    worker_id: str
    _waiting: dict[str, list[asyncio.Future[ClosedQuestion]]] = field(default_factory=dict)
    """By request; each who waits has a future of its own. Two lives of one run wait for the same request, when one of
    them has not noticed yet that its lease is gone."""
    _ear: Subscription | None = None
    _ear_of: str = ""
    _task: asyncio.Task[None] | None = None

    async def settled(self, request_id: str) -> ClosedQuestion:
        """Wait until the request is closed; return how."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ClosedQuestion] = loop.create_future()
        self._waiting.setdefault(request_id, []).append(future)
        try:
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._run())
            await self._poll(request_id)
            return await future
        finally:
            # Stop looking for a request that nobody waits for any more.
            others = [one for one in self._waiting.pop(request_id, ()) if one is not future]
            if others:
                self._waiting[request_id] = others

    async def close(self) -> None:
        """Stop listening; waiting calls are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        waiting, self._waiting = self._waiting, {}
        for future in (one for futures in waiting.values() for one in futures):
            future.cancel()
        await self._hang_up()

    async def _run(self) -> None:
        try:
            await self._listen()
        except Exception as error:  # waiting gates must get the error that ended the inbox
            log.exception("inbox_failed")
            for request_id in list(self._waiting):
                self._settle(request_id, UnavailableError(f"decisions cannot be heard: {error}"))

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + timing.POLL_ROWS_S
        while self._waiting:
            if self._ear is None or self._ear_of != self.worker_id:  # a new incarnation has a stream of its own
                await self._hang_up()
                self._ear, self._ear_of = await self.subscriber.subscribe_decisions(self.worker_id), self.worker_id
                due_s = loop.time()  # questions closed before the subscription are read from rows
            left_s = due_s - loop.time()
            heard: Sequence[str] = await self._ear.wait(left_s) if left_s > timing.TICK_S else ()
            if "" in heard or due_s - loop.time() <= timing.TICK_S:
                due_s = loop.time() + timing.POLL_ROWS_S
                heard = [*heard, *await self._closed()]
            for request_id in heard:
                if request_id in self._waiting:
                    await self._poll(request_id)

    async def _closed(self) -> Sequence[str]:
        """Return which requests are not pending any more: one read for all, however many wait."""
        waiting = list(self._waiting)
        if len(waiting) <= 1:
            return waiting
        try:
            pending = await self.store.still_pending(waiting)
        except UnavailableError as error:
            log.warning("decisions_unanswered", error=str(error))
            return ()
        return [request_id for request_id in waiting if request_id not in pending]

    async def _poll(self, request_id: str) -> None:
        try:
            settled = await self.store.settled(request_id)
        except UnavailableError as error:
            log.warning("decision_unanswered", request=request_id, error=str(error))
            return
        except SoongError as error:
            self._settle(request_id, error)
            return
        if settled is not None:
            self._settle(request_id, settled)

    def _settle(self, request_id: str, outcome: ClosedQuestion | SoongError) -> None:
        for future in self._waiting.pop(request_id, ()):
            if future.done():
                continue
            if isinstance(outcome, SoongError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _hang_up(self) -> None:
        if self._ear is not None:
            subscription, self._ear = self._ear, None
            await subscription.close()
