"""What dead processes of this machine left in the rows: declared gone at once, without waiting for their lease.

Safe only for processes that are known to have ended: the pid is free or belongs to this service, which has yet to
register.
"""

import os
import socket

from soong.orchestrator.embedded.process_start import descends_from, start_of
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.engine.tasks.claims import lost_to
from soong.shared.storage.store import Store

log = get_logger(__name__)


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
