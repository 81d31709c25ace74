"""Who started this process: a person, or a run of the deployment, which speaks for nobody (PER-13).

A process that is determined to hide can leave its parents behind: this stops what an agent is misled to, not an
attacker with the rights of the same user.
"""

import asyncio
import socket

import psutil

from shared.sessions.store import SessionStore


async def is_started_by_a_run(store: SessionStore) -> bool:
    """Say whether a worker of this deployment is among our forebears: we are an agent's command."""
    here = socket.gethostname()
    workers = {worker.pid for worker in await store.workers() if worker.host == here}
    forebears = await asyncio.to_thread(lambda: {process.pid for process in psutil.Process().parents()})
    return bool(workers & forebears)
