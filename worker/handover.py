"""What a worker process leaves to the program that it executes next: the steps whose functions end only with it.

Nothing may begin such a step again while its function runs, and a function on a thread runs until the process executes
another program. So that program hands the steps back, under the name of its predecessor, whose heartbeat has kept their
leases until then.
"""

import json
import os
from typing import Final

from soong.shared.core.clock import SystemClock
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.storage.store import Store

HANDOVER_FD: Final = "SOONG_HANDOVER_FD"


class Handover(Value):
    """The incarnation that still holds steps. ``is_last``: its successor only hands them back, and ends."""

    worker_id: str
    credential: str
    is_last: bool

    @classmethod
    def taken(cls) -> "Handover | None":
        """Return what the former program of this process has left."""
        text = os.environ.pop(HANDOVER_FD, "")
        if not text.isdigit():
            return None
        with os.fdopen(int(text), encoding="utf-8") as pipe:
            return cls(*json.load(pipe))

    def pass_on(self) -> None:
        """Leave it to the next program, in a pipe that no other process has."""
        reading, writing = os.pipe()
        os.write(writing, json.dumps([self.worker_id, self.credential, self.is_last]).encode())
        os.close(writing)
        os.set_inheritable(reading, True)
        os.environ[HANDOVER_FD] = str(reading)

    async def complete(self, store: Store) -> None:
        """Hand the steps back. Raises: SoongError; what the database does not take is freed when the lease ends."""
        leases, now_us = await store.claims.leases(self.worker_id), SystemClock().now_us()
        await store.claims.release(self.worker_id, leases, reason="the worker stops", now_us=now_us)
        await store.sessions.set_worker_state(self.worker_id, ProcessState.GONE)
