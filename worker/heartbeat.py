"""The heartbeat of a worker process: its own thread, its own connection, its own clock.

It beats only while the event loop has ticked lately, so that a stalled loop loses its leases instead of keeping them.
When it could not beat for the trust window, or finds that its incarnation is gone, it reports so at once: the worker
stops by its own monotonic clock before anybody else may start its steps (DESIGN: leases).
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Protocol

from soong.shared.core.errors import ConflictError, UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.engine.sessions.session import HeartbeatWriter, ProcessState, SessionStore, Worker
from soong.shared.engine.wire.notifier import PROTOCOL, reads
from soong.shared.storage.store import retry_until_confirmed
from soong.worker.claim_loop import WorkerCapacity

log = get_logger(__name__)

TRUST = 0.75
"""Part of the lease time for which an unanswered worker still trusts its leases."""

VERSION: Final = version(DISTRIBUTION)


class Ticker(Protocol):
    """Calls a function in even intervals, outside the event loop."""

    def start(self, every_s: float, act: Callable[[], None]) -> None: ...

    def stop(self) -> None:
        """Call it no more; a call under way may still end. Nothing when it was never started."""
        ...


class ThreadTicker:
    """A thread that does nothing else, so that nothing else can delay it."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, every_s: float, act: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(every_s, act), name="soong-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self, every_s: float, act: Callable[[], None]) -> None:
        # At once: the first call makes the connection, and over a slow network that takes as long as several beats.
        act()
        while not self._stopping.wait(every_s):
            act()


class Heartbeat:
    """Beats for one incarnation at a time. ``on_lost`` is called from where the ticker beats, once an incarnation."""

    def __init__(
        self,
        writer: HeartbeatWriter,
        clock: Clock,
        settings: Settings,
        *,
        tick: Callable[[Callable[[], None]], None],
        on_lost: Callable[[str], None],
        left_over: Callable[[], str],
        ticker: Ticker | None = None,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._beat_s = settings.beat_s
        self._trust_s = settings.lease_s * TRUST
        self._stall_s = settings.loop_stall_s
        self._tick = tick
        self._on_lost = on_lost
        self._left_over = left_over
        self._worker_id = ""
        self._beaten_at = 0.0
        self._ticked_at = 0.0
        self._ticker: Ticker = ticker or ThreadTicker()

    def start(self, worker_id: str) -> None:
        self.renew(worker_id)
        self._ticker.start(self._beat_s, self.beat_once)

    def renew(self, worker_id: str) -> None:
        """Continue for a new incarnation, just registered."""
        self._beaten_at = self._ticked_at = self._clock.monotonic_s()
        self._worker_id = worker_id

    def stop(self) -> None:
        """Beat no more; the incarnation stays as it is."""
        self._ticker.stop()
        self._writer.close()

    def beat_once(self) -> None:
        """Do what one interval calls for: beat, bear an unanswered one, or give the incarnation up."""
        worker_id = self._worker_id
        if not worker_id:
            return
        now = self._clock.monotonic_s()
        self._tick(self._ticked)
        if now - self._ticked_at > self._stall_s:
            log.error("loop_stalled", worker=worker_id, stalled_s=round(now - self._ticked_at, 1))
        elif self._is_alive(worker_id):
            if self._worker_id == worker_id:
                self._beaten_at = now
            return
        if self.is_overdue() or not self._worker_id:
            self._forget(worker_id)
            log.error("incarnation_lost", worker=worker_id)
            self._on_lost(worker_id)

    def is_overdue(self) -> bool:
        """Say whether the trust window has passed; asked by the loop too, for a beat that hangs reports nothing."""
        return self._clock.monotonic_s() - self._beaten_at > self._trust_s

    def _is_alive(self, worker_id: str) -> bool:
        try:
            if self._writer.beat(worker_id, self._left_over()):
                return True
        except UnavailableError as error:
            log.warning("beat_unanswered", worker=worker_id, error=str(error))
            return False
        except Exception:  # this thread is all that keeps the leases: whatever fails counts as unanswered
            log.exception("beat_failed", worker=worker_id)
            return False
        self._forget(worker_id)  # declared gone: no beat will ever succeed again
        return False

    def _forget(self, worker_id: str) -> None:
        if self._worker_id == worker_id:  # a beat that hung may come back after the next incarnation began
            self._worker_id = ""

    def _ticked(self) -> None:
        self._ticked_at = self._clock.monotonic_s()


@dataclass(slots=True)
class Incarnation:
    """The worker that this process is to the owners now. ``worker_id`` is empty between two incarnations."""

    store: SessionStore
    clock: Clock
    node_name: str
    slots: int
    pools: tuple[str, ...]
    labels: tuple[str, ...]
    abilities: tuple[str, ...] = ()
    """The capabilities that not every process has: its tools, its functions, its projects."""
    host: str = field(default_factory=socket.gethostname)
    versions: tuple[str, ...] = field(default_factory=lambda: (*reads(PROTOCOL), f"version:{VERSION}"))
    worker_id: str = ""
    live_workers: int = 1
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def capabilities(self) -> tuple[str, ...]:
        return (*self.labels, f"host:{self.host}", *self.versions, *self.abilities)

    def capacity(self) -> WorkerCapacity:
        return WorkerCapacity(self.worker_id, self.pools, self.capabilities, self.live_workers)

    async def register(self) -> str:
        """Insert a worker row with a new id and take it on."""
        worker = Worker(
            id=new_id("wrk"),
            node_name=self.node_name,
            host=self.host,
            pid=os.getpid(),
            slots=self.slots,
            pools=self.pools,
            capabilities=self.capabilities,
            started_us=self.clock.now_us(),
            protocol=PROTOCOL,
        )
        await retry_until_confirmed(lambda: self.store.register_worker(worker), what=f"registration of {worker.id}")
        await self.count_workers()
        self.worker_id = worker.id
        return worker.id

    async def count_workers(self) -> None:
        """Refresh the number of live workers, by which a claim is shared out."""
        workers = await self.store.workers()
        self.live_workers = max(1, sum(worker.state is ProcessState.LIVE for worker in workers))

    async def leave(self) -> None:
        """Mark the worker as gone: the steps that it holds are freed at once instead of after the lease."""
        worker_id, self.worker_id = self.worker_id, ""
        if worker_id:
            try:
                await self.store.set_worker_state(worker_id, ProcessState.GONE)
            except (UnavailableError, ConflictError) as error:
                # The steps that it may still hold are freed when their leases end.
                log.warning("not_left", worker=worker_id, error=str(error))
