"""The orchestrator: one process that owns sessions and does for them all that workers may not.

It beats, adopts sessions without an owner, and on every hint (or at least at every sweep) reads the rows: commands,
maps to expand, failures to settle, tasks to end, questions to answer, slots to fill. It keeps nothing outside the rows
but grants (PER-04): a successor begins where it ended.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

from soong.orchestrator.owner.parts import BackgroundWork, OwnedSessions, Parts, within
from soong.orchestrator.owner.workers import Reaper, UnschedulableSteps
from soong.shared.core import timing
from soong.shared.core.errors import NotOwnerError, UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import Owner, Ownership
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.store import SessionLook
from soong.shared.engine.wire.notifier import Subscription
from soong.shared.storage.store import retry_until_confirmed

log = get_logger(__name__)

FULL_LOOK_EVERY = 10
"""Sweeps between two looks at all sessions with open work; in between, those known to run and those heard of."""


@dataclass(slots=True)
class Orchestrator:
    """One incarnation of an owner. ``start`` returns when it is ready; ``stop`` releases its sessions."""

    parts: Parts
    settings: Settings
    owner_id: str = ""
    _owned: OwnedSessions = field(init=False)
    _work: BackgroundWork = field(default_factory=BackgroundWork)
    _reaper: Reaper = field(init=False)
    _unclaimable: UnschedulableSteps = field(init=False)
    _hint: Callable[[], None] | None = None
    _reconciling: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        store = self.parts.store
        self._owned = OwnedSessions(store.sessions)
        self._unclaimable = UnschedulableSteps(store.tasks, store.runs, self.parts.clock, self.settings.no_worker_s)
        self.parts.agents.on_end(self._ask_ended)

    async def start(self) -> None:
        """Register as an owner, adopt what is free and begin to listen."""
        await self._register()
        for loop in (self._beat, self._sweep, self._hear_owners, self._hear_questions, *self.parts.background):
            self._work.begin(loop)

    def on_work(self, hint: Callable[[], None]) -> None:
        """Have ``hint`` called whenever there may be more steps to run than before."""
        self._hint = hint

    async def stop(self) -> None:
        """Stop looking, release the sessions for a successor, close every part."""
        await self._stop_reconciling()
        await self.parts.agents.stop()
        await within(self.parts.store.audit.take_reports(self.owner_id, now_us=self.parts.clock.now_us()), 0)
        try:
            await self.parts.store.sessions.release_owner(self.owner_id)
        except UnavailableError as error:
            log.warning("release_unanswered", error=str(error))
        await self._close()

    async def abandon(self) -> None:
        """End without releasing anything, as a killed process would: successors wait for the lease. For tests."""
        await self._stop_reconciling()
        await self.parts.agents.stop(is_abandoned=True)
        await self._close()

    async def _stop_reconciling(self) -> None:
        await self._work.stop()
        await self.parts.broker.close()

    async def _close(self) -> None:
        await asyncio.to_thread(self.parts.dispatcher.close)
        for close in self.parts.closers:
            await close()
        await self.parts.store.close()

    async def worker_died(self, pid: int, how: str) -> None:
        """Free the leases of a worker process on this host that has ended; ``how`` is its end in words."""
        concerned = await self._reaper.process_died(socket.gethostname(), pid, f"died ({how})")
        await within(self.reconcile(concerned), None)

    async def is_working(self) -> bool:
        """Say whether a task of a session that is ours, or that we now adopt, is running, or a command is open."""
        async with self._reconciling:
            await self._owned.adopt(self.owner_id)
        for session_id in await self._owned.busy(self.owner_id):
            if await self._has_work(session_id):
                return True
        return False

    async def _has_work(self, session_id: str) -> bool:
        """Say whether a task of a session of ours runs, or a client waits for a command, such as the session's end."""
        ownership = self._owned.get(session_id)
        if ownership is None:
            return False
        try:
            work = await self.parts.store.tasks.session_work(ownership)
        except NotOwnerError:
            return False  # its new owner does what there is to do
        return work.has_commands or any(task.status is TaskStatus.RUNNING for task in work.open_tasks)

    async def reconcile(self, session_ids: Iterable[str], *, is_sweep: bool = False) -> None:
        """Look at the given sessions, at those adopted with them, and fill free slots.

        One look at a time. No sessions means that only slots are to be filled: two reads; a session's look costs eight.
        """
        if self._hint is not None and (self._owned.active or not is_sweep):
            self._hint()
        async with self._reconciling:
            sessions = set(session_ids)
            strangers = sessions - self._owned.keys()
            news = self.parts.dispatcher.news(strangers)
            # The claim of new steps needs no owner: a worker is called for them before anything is read.
            is_called = bool(news) and len(sessions) == 1 and await self.parts.dispatcher.call()
            if strangers:
                sessions |= await within(self._owned.adopt(self.owner_id), set())
                if not news and not is_sweep and sessions.isdisjoint(self._owned):
                    return  # they are another's, who fills the slots for them
                self._adopt_later(news - self._owned.keys(), timing.HINTS_S)
            if news and not is_called:
                await within(self.parts.dispatcher.dispatch(), 0)
            is_over = bool(sessions)
            for session_id in sorted(sessions):
                ownership = self._owned.get(session_id)  # what was ours may be lost while another is looked at
                if ownership is not None:
                    await within(self._reconcile_session(ownership, is_new=session_id in news), None)
                is_over = is_over and ownership is not None and session_id not in self._owned
            if is_called:  # the worker claims at this moment: what it leaves is counted when it has
                self._work.begin_later("", timing.CALLED_S, lambda: self.reconcile(()), replaces=False)
            elif not is_over:  # nothing becomes ready by an end, and workers notify of what ends leave for others
                await within(self.parts.dispatcher.dispatch(is_full=is_sweep), 0)
                await within(self._unclaimable.tell(self.parts.dispatcher.unclaimable, self._owned), None)

    def _adopt_later(self, sessions: Collection[str], wait_s: float) -> None:
        """Try again to adopt new sessions whose rows a claim may have held, until the sweep does."""

        async def adopt_again() -> None:
            await self.reconcile(sessions)
            self._adopt_later(sessions - self._owned.keys(), 5 * wait_s)

        if sessions and wait_s < self.settings.sweep_s:
            self._work.begin_later(" ".join(sorted(sessions)), wait_s, adopt_again)

    async def _register(self) -> None:
        """Begin as a new owner; until the row is written, the old name is kept."""
        owner = Owner(new_id("own"), socket.gethostname(), os.getpid(), self.parts.clock.now_us())
        await retry_until_confirmed(
            lambda: self.parts.store.sessions.register_owner(owner), what=f"registration of {owner.id}"
        )
        self.owner_id = owner.id
        self._reaper = Reaper(
            self.parts.store.sessions,
            self.parts.store.claims,
            self.parts.clock,
            lease=timedelta(seconds=self.settings.lease_s),
            max_lost_leases=self.settings.max_lost_leases,
            owner_id=self.owner_id,
        )

    async def _reconcile_session(self, ownership: Ownership, *, is_new: bool) -> None:
        """Do what is due in a session; a task that its session is to end with is ended by the transaction of the look.

        A new session is only read: its first claim, under way now, holds its row.
        """
        session_id, tasks = ownership.session_id, self.parts.store.tasks
        try:
            look: SessionLook
            if session_id in self._owned.closing and not is_new:
                look = await tasks.look_and_finish(ownership, now_us=self.parts.clock.now_us())
            else:
                look = await tasks.session_work(ownership), ()
            work, over = look
            is_closed = work.has_commands and await self.parts.commands.carry_out(ownership)
            if work.has_commands:
                work = await self.parts.store.tasks.session_work(ownership)
            if work.has_asks or self.parts.agents.holds(session_id):
                await self.parts.agents.look(ownership)
            result = await self.parts.scheduler.reconcile(ownership, work)
        except NotOwnerError as error:
            # Somebody else owns it now: it is no longer ours to look at.
            log.info("session_left", session=session_id, reason=str(error))
            self._forget(ownership)
            return
        ended = (*over, *result.ended)
        if ended:  # first of all: somebody waits for it
            await self.parts.notifier.notify_session(session_id)
            await asyncio.sleep(0)  # it is sent before a read's thread takes the interpreter
        is_active = any(task.status is TaskStatus.RUNNING for task in result.open_tasks)
        (self._owned.active.add if is_active else self._owned.active.discard)(session_id)
        if not result.open_tasks and (is_closed or any(end.is_closed for end in ended)):
            self._forget(ownership)
        elif work.has_questions:
            await self.parts.broker.review([session_id])
        self._reconcile_later(session_id, result.due_us)
        for end in ended:
            if not end.is_recorded:
                await self.parts.recorder.write(end.task_id)

    def _forget(self, ownership: Ownership) -> None:
        """Look at a session no more, unless it has become ours again in the meantime."""
        if self._owned.forget(ownership):
            self.parts.agents.drop(ownership.session_id)

    def _ask_ended(self, session_id: str, task_id: str) -> None:
        """Begin the work after the end of an agent's run here, unless the process itself ends."""
        self._work.begin(lambda: self._after_ask(session_id, task_id))

    async def _after_ask(self, session_id: str, task_id: str) -> None:
        is_all = await within(self._tell_ask_end(session_id, task_id), False)
        while waiting := self.parts.agents.next_waiting():  # it has left room for an ask that came before
            await within(self.reconcile([waiting]), None)
        if not is_all:
            await self.reconcile([session_id])

    async def _tell_ask_end(self, session_id: str, task_id: str) -> bool:
        """Tell of a task that has ended with its agent; say whether that was all that there was in its session."""
        if not (await self.parts.store.tasks.task(task_id)).status.is_terminal:
            return False
        await self.parts.recorder.write(task_id)
        await self.parts.notifier.notify_session(session_id)
        ownership, memory = self._owned.get(session_id), self.parts.memory
        if ownership is None or memory is None or not await memory.ended(ownership, task_id):
            return False
        self._forget(ownership)
        return True

    def _reconcile_later(self, session_id: str, due_us: int | None) -> None:
        """Come back when the session's next retry is due, if that is before the next sweep, and at no other time."""
        self._work.cancel_later(session_id)
        if due_us is None:
            return
        delay_s = max(0.0, (due_us - self.parts.clock.now_us()) / 1_000_000)
        if delay_s < self.settings.sweep_s:
            self._work.begin_later(session_id, delay_s, lambda: self.reconcile([session_id]))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.beat_s)
            await within(self._beat_once(), None)

    async def _beat_once(self) -> None:
        if await self.parts.store.sessions.beat_owner(self.owner_id):
            return
        # Declared gone: what we owned may be owned by another. Begin anew under another name.
        log.error("owner_lost", owner=self.owner_id)
        for session_id in self._owned:
            self.parts.agents.drop(session_id)
        self._owned.clear()
        await self._register()

    async def _sweep(self) -> None:
        count = 0
        while True:
            await within(self._sweep_once(is_full=count % FULL_LOOK_EVERY == 0), None)
            count += 1
            await asyncio.sleep(self.settings.sweep_s)

    async def _sweep_once(self, *, is_full: bool) -> None:
        """Do what is due for the deployment; a part that fails keeps none of the others from being done."""
        store = self.parts.store
        await within(store.audit.take_reports(self.owner_id, now_us=self.parts.clock.now_us()), 0)
        wanted = set(self._owned.active)
        wanted |= await within(self._reaper.sweep(), frozenset())
        wanted |= await within(self._owned.adopt(self.owner_id), set())
        wanted |= await within(self._stop_tasks(), set())
        if is_full:
            wanted |= await within(self._owned.busy(self.owner_id), set())
            await within(self._write_folders(), None)
        if self._owned:
            await within(self.parts.recorder.write_ended(self.owner_id), None)
        # Also without questions: an exchanged signing key is reported before it is needed.
        await within(self.parts.broker.review(()), None)
        await within(self.reconcile(wanted, is_sweep=True), None)

    async def _stop_tasks(self) -> set[str]:
        """Stop the tasks that have reached a limit while steps of theirs wait; return the sessions.

        A held step ends by itself, and its failure is settled at the next notification.
        """
        store, now_us = self.parts.store, self.parts.clock.now_us()
        stopped = set()
        for one in await store.budgets.stopped_tasks(self.owner_id, now_us=now_us):
            ownership = self._owned.get(one.session_id)
            if ownership is not None:
                with suppress(NotOwnerError):  # its new owner stops it
                    await store.tasks.stop_task(ownership, one.task_id, reason=one.reason, now_us=now_us)
                    stopped.add(one.session_id)
        return stopped

    async def _write_folders(self) -> None:
        """Begin to write the folders of tasks that are over, also of those that ended without an owner."""
        recorder = self.parts.recorder
        for task_id in await self.parts.store.tasks.unrecorded(self.owner_id, set_aside=recorder.set_aside()):
            await within(recorder.write(task_id), None)

    async def _hear_owners(self) -> None:
        async with _listening(self.parts.subscriber.subscribe_owner()) as subscription:
            while True:
                heard = await subscription.wait(self.settings.sweep_s)
                if heard:
                    # An empty id: slots to fill, or a subscription that was away; the sweep looks at what it missed.
                    sessions = set(heard) - {""}
                    await within(self.reconcile(sessions), None)
                    if sessions and "" in heard:
                        await within(self.reconcile(()), None)

    async def _hear_questions(self) -> None:
        async with _listening(self.parts.subscriber.subscribe_permissions()) as subscription:
            while True:
                # An empty id: the subscription was away, and the sweep looks at what it missed. A forger of hints makes
                # us look at sessions of ours, each once however many there are.
                if hinted := [one for one in await subscription.wait(self.settings.sweep_s) if one in self._owned]:
                    await within(self.parts.broker.review(hinted), None)


@asynccontextmanager
async def _listening(opening: Awaitable[Subscription]) -> AsyncIterator[Subscription]:
    """Hold a subscription open and close it however the listening ends."""
    subscription = await opening
    try:
        yield subscription
    finally:
        await subscription.close()
