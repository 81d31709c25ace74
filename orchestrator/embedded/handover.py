"""How a staying service takes the home over from an ephemeral one, and what it ends that a dead one has left behind.

The ephemeral service is asked over its control socket. It then stops in order: its workers finish or hand back what
runs, its sessions are released, its lock is let go. What waited or ran is in rows, so it continues under the successor.
"""

import asyncio
import os
import socket
from contextlib import suppress

from soong.orchestrator.embedded.control import HAND_OVER, ask_once
from soong.orchestrator.embedded.service_file import (
    ServiceHeldError,
    ServiceLock,
    ServiceRecord,
    descends_from,
    read_record,
    start_of,
)
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.claims import lost_to
from soong.shared.storage.store import Store

log = get_logger(__name__)


async def take_home(lock: ServiceLock, settings: Settings) -> None:
    """Acquire the home's lock; wait for the end of an ephemeral service that holds it.

    Raises:
        ServiceHeldError: a staying service holds it, or the ephemeral one does not hand over in time.
    """
    loop = asyncio.get_running_loop()
    limit_s = settings.drain_s + timing.START_LIMIT_S
    deadline_s, asked = loop.time() + limit_s, 0
    while True:
        try:
            lock.acquire()
        except ServiceHeldError as held:
            if not lock.is_holder_ephemeral():
                raise
            if loop.time() > deadline_s:
                problem = f"the ephemeral service does not hand over within {limit_s:g} s"
                raise ServiceHeldError(settings.home, problem) from held
        else:
            return
        record = read_record(settings.home)
        if record is not None and record.pid != asked and await _ask(record):
            log.info("home_asked_for", pid=record.pid)
            asked = record.pid
        await asyncio.sleep(timing.POLL_PROCESS_S)


async def _ask(record: ServiceRecord) -> bool:
    """Ask a service to hand over; say whether it will. One that is starting or ending cannot be asked."""
    if record.is_ephemeral and record.is_process_alive:
        with suppress(UnavailableError):
            return (await ask_once(record.control, HAND_OVER)).get("ok") is True
    return False


async def expire_dead(store: Store, *, max_lost_leases: int, now_us: int) -> int:
    """Declare owners and workers of this host gone whose process has ended; return how many."""
    host = socket.gethostname()
    count = 0
    for worker in await store.sessions.workers():
        if worker.host == host and has_ended(worker.pid, worker.started_us):
            because = lost_to(worker.node_name, "ended while no service ran")
            freed = await store.claims.expire_worker(
                worker.id, worker.beat, max_lost_leases=max_lost_leases, now_us=now_us, because=because
            )
            count += freed is not None
    for owner in await store.sessions.owners():
        if owner.host == host and has_ended(owner.pid, owner.started_us):
            count += await store.sessions.expire_owner(owner.id, owner.beat)
    if count:
        log.info("leftovers_expired", count=count)
    return count


def has_ended(pid: int, started_us: int) -> bool:
    """Say whether the process that registered at that time is known to have ended, before we have registered.

    A start after that time alone proves nothing, since a step of the clock moves it: it has to be a process of ours,
    which comes to the pids of its predecessors in a container. Of any other, the lease decides.
    """
    own_pid = os.getpid()
    start = start_of(pid)
    if start is None or pid == own_pid:
        return True
    return start > started_us / 1_000_000 + timing.CLOCK_DOUBT_S and descends_from(pid, own_pid)
