"""The worker process: one asyncio loop on its own thread, next to Celery's threads pool.

Order of stopping: no new claims; runs that wait for consent park; running steps may end for the grace time while the
heartbeat continues; what is left is released; the incarnation is closed; the loop ends. A kill is for the reaper.
A process that recycles stops in the same order, with no end to its grace.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from soong.shared.agents.runtime.call_log import WORKER_STOPS, StopReason
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import Notifier, Subscriber, Subscription
from soong.shared.storage.store import Store
from soong.shared.tools.limits import aborted_by_person
from soong.worker.claim_loop import ClaimLoop
from soong.worker.heartbeat import Heartbeat, Incarnation, Ticker
from soong.worker.held_runs import AdditionalSteps, UnendedRuns
from soong.worker.lifetime import Lifetime, RecycleLimits, Retirement
from soong.worker.parking import LentSlots
from soong.worker.slots import ClaimRunner, RunObserver, Slots

log = get_logger(__name__)

T = TypeVar("T")


class LoopThread:
    """An asyncio loop that lives on a thread of its own from start to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="soong-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            if not self._is_stopping:
                # Something ended the loop from within: a process without it would hold its slots and do nothing.
                log.critical("loop_ended")
                os._exit(1)


class _CountingRuns:
    """Counts each run for the recycling limits and the retirement, in addition to its observer."""

    def __init__(self, watcher: RunObserver, recycle_limits: RecycleLimits, retirement: Retirement) -> None:
        self._watcher = watcher
        self._recycle_limits = recycle_limits
        self._retirement = retirement

    def started(self, claim: Claim) -> None:
        self._retirement.started()
        self._watcher.started(claim)

    def ended(self, claim: Claim, end: StepEnd | None) -> None:
        self._watcher.ended(claim, end)
        self._recycle_limits.count_run()
        self._retirement.ended()


@dataclass(slots=True)
class Connections:
    """The store and the channels of a process. ``closers`` are called first, ``wires`` after the last notifications."""

    store: Store
    notifier: Notifier
    subscriber: Subscriber
    closers: tuple[Callable[[], Awaitable[None]], ...] = ()
    wires: tuple[Callable[[], Awaitable[None]], ...] = ()


@dataclass(slots=True)
class RunParts:
    """The runner of the claimed steps, and its observer. ``hurry`` parks the runs that wait: the process drains."""

    runner: ClaimRunner
    watcher: RunObserver
    additional: AdditionalSteps = field(default_factory=AdditionalSteps)
    lent: LentSlots = field(default_factory=LentSlots)
    hurry: Callable[[], object] = lambda: None


class WorkerProcess:
    """Holds what one process has: incarnation, claim loop, slots, heartbeat, subscriptions.

    ``call_soon`` runs a function soon on the process's loop, from any thread.
    """

    def __init__(
        self,
        connections: Connections,
        runs: RunParts,
        settings: Settings,
        incarnation: Incarnation,
        clock: Clock,
        call_soon: Callable[[Callable[[], object]], None],
        lifetime: Lifetime | None = None,
        ticker: Ticker | None = None,
    ) -> None:
        self._connections, self._store, self._ring = connections, connections.store, connections.notifier
        self._settings, self._incarnation, self._hurry = settings, incarnation, runs.hurry
        self._lifetime = lifetime = lifetime or Lifetime(RecycleLimits(), Retirement(clock))
        self._recycle_limits = lifetime.recycle_limits
        self._drained: asyncio.Task[None] | None = None
        self._grace_ends_at: float | None = None
        self._hurried = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.slots = Slots(
            settings.slots,
            self._store.claims,
            clock,
            runs.runner,
            _CountingRuns(runs.watcher, lifetime.recycle_limits, lifetime.retirement),
            UnendedRuns(self._store.claims, clock, settings.stuck_s, settings.beat_s, self._look_for_room, self._ring),
            runs.additional,
            runs.lent,
        )
        self.claim_loop = ClaimLoop(
            self._store.claims, self._ring, clock, incarnation.capacity, self.slots.free_slots, self.slots.start_slot
        )
        self.slots.claim_loop = self.slots.additional.claim_loop = self.claim_loop
        self._heartbeat = Heartbeat(
            self._store.heartbeat_writer(),
            clock,
            settings,
            tick=call_soon,
            on_lost=lambda worker_id: call_soon(lambda: self._lost(worker_id)),
            left_over=lambda: self.slots.left_over,
            ticker=ticker,
        )
        self.slots.is_trusted = lambda: not self._heartbeat.is_overdue()

    async def start(self) -> None:
        """Register, beat, serve the claim loop and take interrupts; then notify the owners that there are slots."""
        worker_id = await self._incarnation.register()
        self._heartbeat.start(worker_id)
        loop = asyncio.get_running_loop()
        works = (self.claim_loop.run(), self._hear_interrupts(), self._watch_trust(), self._recycle())
        self._tasks = [loop.create_task(work) for work in works]
        if self._lifetime.retirement.after_s:
            self._tasks.append(loop.create_task(self._retire()))
        if self._lifetime.pulse is not None:
            self._tasks.append(loop.create_task(self._lifetime.pulse.beat()))
        await self._ring.notify_owners()

    def drain(self, grace: timedelta | None) -> asyncio.Task[None]:
        """Begin to stop; the returned task ends when nothing is held. Repeated calls return the same task.

        The first ``grace`` counts; without one, what runs is waited for until somebody gives one.
        """
        loop = asyncio.get_running_loop()
        if grace is not None and self._grace_ends_at is None:
            self._grace_ends_at = loop.time() + grace.total_seconds()
            self._hurried.set()
        if self._drained is None:
            self._drained = loop.create_task(self._drain())
        return self._drained

    async def stop(self) -> None:
        """Close everything; call after :meth:`drain` has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for close in self._connections.closers:
            await close()
        if not await self._leaves_steps():
            await asyncio.to_thread(self._heartbeat.stop)
            await self._incarnation.leave()
        await self._ring.notify_owners()
        for close in self._connections.wires:
            await close()
        await self._store.close()

    async def _leaves_steps(self) -> bool:
        """Say whether the next program hands steps back; their leases last until then, for the heartbeat continues."""
        worker_id = self._incarnation.worker_id
        try:
            is_left = await self.slots.hand_over()
        except SoongError as error:
            log.warning("hand_over_unanswered", error=str(error))
            is_left = True
        if is_left and self._recycle_limits.pass_on is not None:
            self._recycle_limits.left = worker_id
        return bool(self._recycle_limits.left)

    async def _drain(self) -> None:
        self.claim_loop.drain()
        try:
            if self._incarnation.worker_id:
                await self._store.sessions.set_worker_state(self._incarnation.worker_id, ProcessState.DRAINING)
        except SoongError as error:
            log.warning("drain_unanswered", error=str(error))
        await self.claim_loop.settled()
        self._hurry()
        self.slots.lent.hand_back(lambda run_id: self.slots.stop_run(run_id, "release", WORKER_STOPS))
        if not await self._idle_in_time():
            self.slots.stop_all("release", WORKER_STOPS)
            self.slots.leave_functions()
            await self.slots.until_idle(timing.RELEASE_LIMIT_S)
        try:
            await self.claim_loop.return_unheard()
        except SoongError as error:
            log.warning("drain_unanswered", error=str(error))
        self.slots.abandon_functions()
        log.info("drained", left=self.slots.busy)

    async def _idle_in_time(self) -> bool:
        """Wait until no run is held; False when a grace was given and has passed first."""
        loop = asyncio.get_running_loop()
        waits = loop.create_task(self.slots.until_idle()), loop.create_task(self._hurried.wait())
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.slots.busy <= self.slots.stuck or self._grace_ends_at is None:
            return True
        return await self.slots.until_idle(max(0.0, self._grace_ends_at - loop.time()))

    async def _recycle(self) -> None:
        """Stop in order once the process has done what it may; what comes after that is its starter's matter."""
        reason = await self._recycle_limits.until_due(self._settings.beat_s)
        log.info("recycling", reason=reason)
        _ = self.drain(None)
        self._recycle_limits.begin()

    def _look_for_room(self) -> None:
        """Restart when functions that do not end hold all slots; their steps are ended with them, and not repeated."""
        self.slots.note_idle()
        if self.slots.stuck >= self.slots.capacity:
            self._recycle_limits.demand(f"{self.slots.stuck} functions that do not end hold all its slots")

    async def _retire(self) -> None:
        """Stop in order, and for good, once the process has been idle for as long as it may."""
        await self._lifetime.retirement.until_due()
        log.info("retiring", idle_s=self._lifetime.retirement.after_s)
        _ = self.drain(None)
        self._recycle_limits.begin()

    async def _watch_trust(self) -> None:
        """Give the incarnation up in time even while a beat hangs in a dead connection."""
        while True:
            await asyncio.sleep(min(1.0, self._settings.beat_s / 4))
            worker_id = self._incarnation.worker_id
            if worker_id and self._heartbeat.is_overdue():
                log.error("trust_ended", worker=worker_id)
                self._lost(worker_id)

    def _lost(self, worker_id: str) -> None:
        if self._incarnation.worker_id == worker_id:
            self._incarnation.worker_id = ""
            self.claim_loop.lose()
            self.slots.stop_all("drop", "the incarnation is gone")
            self._tasks.append(asyncio.get_running_loop().create_task(self._come_back()))

    async def _come_back(self) -> None:
        """Register as a new incarnation once everything of the old one has stopped."""
        await self._end_lost_functions()
        await self.slots.until_idle()
        await self._end_lost_functions()
        while self._drained is None:
            try:
                self._heartbeat.renew(await self._incarnation.register())
            except UnavailableError as error:
                log.warning("register_unanswered", error=str(error))
                await asyncio.sleep(self._settings.beat_s)
            else:
                self._incarnation.changed.set()
                await self._ring.notify_owners()
                return

    async def _end_lost_functions(self) -> None:
        """End the functions of steps that were lost, with this process if need be: others may begin these steps."""
        if left := await self.slots.lost_functions():
            self._recycle_limits.restart_now(f"{' and '.join(left)} runs for a step that this worker has lost")

    async def _hear_interrupts(self) -> None:
        """Look for cancelled and paused runs when notified, and at each beat in case a notification was lost."""
        while True:
            worker_id = self._incarnation.worker_id
            if not worker_id:
                await asyncio.sleep(0.05)
                continue
            self._incarnation.changed.clear()
            subscription = await self._connections.subscriber.subscribe_worker(worker_id)
            try:
                while worker_id == self._incarnation.worker_id:
                    await self._poll(worker_id)
                    await self._until_interrupted(subscription, worker_id)
            finally:
                await subscription.close()

    async def _until_interrupted(self, subscription: Subscription, worker_id: str) -> None:
        """Wait for the next look, at most for a beat; claim steps whenever an owner calls meanwhile."""
        loop = asyncio.get_running_loop()
        look_at_s = loop.time() + self._settings.beat_s
        while (left_s := look_at_s - loop.time()) > 0 and worker_id == self._incarnation.worker_id:
            heard = await subscription.wait(left_s)
            if "" in heard and self._lifetime.is_ready() and self.slots.free_slots() > 0:
                self.claim_loop.fill()
            if not heard or worker_id in heard:
                return

    async def _poll(self, worker_id: str) -> None:
        try:
            if self.slots.busy:
                interrupts = await self._store.claims.interrupts(worker_id)
                for interrupt in interrupts:
                    if interrupt.tool_call_id:
                        self.slots.abort_call(interrupt.run_id, interrupt.tool_call_id, interrupt.reason)
                    elif interrupt.kind == "abort":
                        self.slots.stop_run(interrupt.run_id, "abort", aborted_by_person(interrupt.reason))
                    elif not await self.slots.additional.interrupt(interrupt):
                        how: StopReason = "cancel" if interrupt.kind == "cancel" else "release"
                        self.slots.stop_run(interrupt.run_id, how, interrupt.reason)
                self.slots.resume_all_but({one.run_id for one in interrupts})
            await self.claim_loop.return_unheard()
            await self._incarnation.count_workers()
        except UnavailableError as error:
            log.warning("interrupts_unanswered", error=str(error))
        except Exception:  # cancel and pause must be heard for as long as the process lives
            log.exception("interrupts_failed")
