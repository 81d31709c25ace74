"""Runs that are cancelled while they wait for a person without a worker: what shows runs hears it from their owner."""

import asyncio
from typing import Protocol

from soong.shared.core.errors import UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.runs.status import RunStatus
from soong.shared.storage.store import Store

log = get_logger(__name__)


class RunEvents(Protocol):
    """Where ends of runs are shown."""

    def cancelled(self, run_id: str, node_name: str) -> None:
        """Blocking. Raises: UnavailableError."""
        ...


class UnheldRuns(Value):
    """Tells of runs whose question is gone. Without ``events`` nothing shows runs."""

    store: Store
    events: RunEvents | None = None

    async def tell(self, run_id: str) -> None:
        """Tell that a run was cancelled, if it was. Best effort, as all events are.

        Raises: UnavailableError of the store.
        """
        if self.events is None or (await self.store.runs.run(run_id)).status is not RunStatus.CANCELLED:
            return
        workers = await self.store.sessions.workers()
        if not workers:
            return  # Flower would list a worker that does not exist
        try:
            await asyncio.to_thread(self.events.cancelled, run_id, workers[0].node_name)
        except UnavailableError as error:
            log.warning("flower_events_unsent", error=str(error))
