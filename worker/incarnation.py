"""An incarnation: one registration of this process as a worker, and what follows when it is lost.

A process whose incarnation was declared gone drops everything it held and registers again: a worker that comes
back never reuses its old ID.
"""

import asyncio
import os
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from soong.shared.core.clock import Clock
from soong.shared.core.errors import ConflictError, UnavailableError
from soong.shared.core.ids import new_id
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.wire.jobs import PROTOCOL, reads
from soong.shared.storage.store import retry_until_confirmed
from soong.worker.claim_loop import WorkerCapacity

log = get_logger(__name__)

VERSION: Final = version(DISTRIBUTION)


@dataclass(slots=True)
class Incarnation:
    """Who this process is to the owners right now. ``worker_id`` is empty between two incarnations."""

    store: SessionStore
    clock: Clock
    node_name: str
    slots: int
    pools: tuple[str, ...]
    labels: tuple[str, ...]
    abilities: tuple[str, ...] = ()
    """What this process can do beyond what every one can: its tools, its functions, its projects."""
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
        """Say goodbye: what is still held is freed at once instead of after the lease."""
        worker_id, self.worker_id = self.worker_id, ""
        if worker_id:
            try:
                await self.store.set_worker_state(worker_id, ProcessState.GONE)
            except (UnavailableError, ConflictError) as error:
                # What it may still hold is freed when its lease ends.
                log.warning("not_left", worker=worker_id, error=str(error))
