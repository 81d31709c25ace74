"""The one inbox of a process for decisions: it waits for all gates.

It is woken by hints and looks at the rows at least every second, so that a lost hint costs a second and never an
answer. A hint that carries a signed decision to allow saves the read of its row: the transaction that uses the decision
compares the two. Whatever else a hint says, and what is not signed with a key that was read from its row, only has the
row read.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from soong.shared.core import timing
from soong.shared.core.errors import ForgedError, SoongError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.wire.events import split_hint
from soong.shared.engine.wire.notifier import Subscriber, Subscription
from soong.shared.permissions.explain import notified_decision
from soong.shared.permissions.signing import SigningKey, check_signature
from soong.shared.permissions.store import ClosedQuestion, ConsentStore

log = get_logger(__name__)

EARLY = 256
"""Far more than are decided between the commit of a question and the next turn of its loop."""
MAX_KEYS = 16
"""Keys that are remembered: a deployment has one, and two while they are exchanged."""


@dataclass(slots=True)
class DecisionInbox:
    """Waits for the decisions of all gates of one worker process. One task, alive while somebody waits."""

    store: ConsentStore
    subscriber: Subscriber
    worker_id: str
    _waiting: dict[str, list[asyncio.Future[ClosedQuestion]]] = field(default_factory=dict)
    """By request; each who waits has a future of its own. Two lives of one run wait for the same request, when one of
    them has not noticed yet that its lease is gone."""
    _early: dict[str, str] = field(default_factory=dict)
    """What was heard of before anybody waited for it, of late: the decision that came with it, by request."""
    _read: set[str] = field(default_factory=set)
    """Requests whose decision is read from its row: somebody believes it without using it, or took its question up."""
    _keys: dict[str, SigningKey] = field(default_factory=dict)
    """Keys as read from their rows; the transaction that uses a decision finds out that one has ended since."""
    _ear: Subscription | None = None
    _ear_of: str = ""
    _task: asyncio.Task[None] | None = None

    async def settled(self, request_id: str, *, is_new: bool = False, is_used: bool = False) -> ClosedQuestion:
        """Wait until the request is closed; return how. One that was raised just now (``is_new``) is heard of.

        ``is_used``: a transaction will use its decision, and compares what was notified with the row. That of a
        question which was taken up is read all the same: since it was signed, its key may have ended.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ClosedQuestion] = loop.create_future()
        self._waiting.setdefault(request_id, []).append(future)
        if not (is_used and is_new):
            self._read.add(request_id)
        try:
            if self._task is None or self._task.done():
                self._task = loop.create_task(self._run())
            if not is_new:
                await self._poll(request_id)
            elif request_id in self._early:
                await self._closed_by(request_id, self._early.pop(request_id))
            return await future
        finally:
            self._forget(request_id, future)

    def _forget(self, request_id: str, future: asyncio.Future[ClosedQuestion]) -> None:
        """Stop looking for a request that nobody waits for any more."""
        others = [one for one in self._waiting.pop(request_id, ()) if one is not future]
        if others:
            self._waiting[request_id] = others
        else:
            self._read.discard(request_id)

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
        except Exception as error:  # whoever waits must learn that nobody listens any more
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
                due_s = loop.time()  # what was closed before we listened is seen, not heard
            left_s = due_s - loop.time()
            heard: Sequence[str] = await self._ear.wait(left_s) if left_s > timing.TICK_S else ()
            if "" in heard or due_s - loop.time() <= timing.TICK_S:
                due_s = loop.time() + timing.POLL_ROWS_S
                heard = [*heard, *await self._closed()]
            for request_id, text in map(split_hint, heard):
                if request_id in self._waiting:
                    await self._closed_by(request_id, text)
                elif request_id:
                    self._remember(request_id, text)

    def _remember(self, request_id: str, text: str) -> None:
        self._early[request_id] = text
        if len(self._early) > EARLY:
            del self._early[next(iter(self._early))]

    async def _closed_by(self, request_id: str, text: str) -> None:
        """Settle a request of which a hint says that it is closed, and perhaps how."""
        notified = self._believed(request_id, text) if text and request_id not in self._read else None
        if notified is None:
            await self._poll(request_id)
        else:
            self._settle(request_id, notified)

    def _believed(self, request_id: str, text: str) -> ClosedQuestion | None:
        """Return the decision of a hint if it allows this request's call and is signed with a key that we know."""
        try:
            decision = notified_decision(text)
            key = self._keys.get(decision.key_id)
            is_refusal = decision.error is not None or not decision.choice.is_allowed
            if key is None or is_refusal or decision.request_id != request_id:
                return None
            check_signature(decision, key)
        except ForgedError as error:
            log.error("forged_hint", request=request_id, what=error.what, error=str(error))
            return None
        return ClosedQuestion(decision, key, text)

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
        if settled is None:
            return
        if settled.key is not None:
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()
            self._keys[settled.key.id] = settled.key
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
