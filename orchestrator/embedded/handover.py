"""How a staying service takes the home over from an ephemeral one, which a client started for itself.

The ephemeral service is asked over its control socket. It then stops in order: its workers finish or hand back what
runs, its sessions are released, its lock is let go. What waited or ran is in rows, so it continues under the successor.
"""

import asyncio
from contextlib import suppress

from soong.orchestrator.embedded.control import HAND_OVER, ask_once
from soong.orchestrator.embedded.service_file import ServiceHeldError, ServiceLock, ServiceRecord, read_record
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings

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
