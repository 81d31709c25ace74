"""The work that is going on meanwhile: many small DAGs, submitted evenly, all of whose effects can be counted."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.tasks.spec import TaskStatus
from tests.system.deployment import Deployment
from tests.system.faults.scene import waves

WIDTH, DEPTH = 5, 10
STEP_S = 2.5


@dataclass
class Work:
    """``steps`` steps over ``seconds``."""

    service: Deployment
    steps: int
    seconds: float
    submitted: int = 0
    refused: int = 0
    ended: Counter[TaskStatus] = field(default_factory=Counter)
    settled_s: float = 0.0

    async def submit_all(self) -> None:
        """Submit one DAG after another; a refused one again, for it may or may not stand."""
        tasks = -(-self.steps // (WIDTH * DEPTH))
        # The last ones need time too: all are submitted before the last tenth.
        every_s = self.seconds * 0.9 / tasks
        began_at = time.monotonic()
        for number in range(tasks):
            await asyncio.sleep(max(0.0, began_at + number * every_s - time.monotonic()))
            await self._submit()

    async def _submit(self) -> None:
        while True:
            try:
                await self.service.submit(waves(WIDTH, DEPTH, STEP_S))
            except UnavailableError:
                self.refused += 1
                await asyncio.sleep(0.2)
            else:
                self.submitted += 1
                return

    async def until_ended(self, within_s: float) -> None:
        """Wait until no task is open, at most so long: what is open then is the auditor's to name."""
        began_at = time.monotonic()
        while time.monotonic() - began_at < within_s:
            try:
                tasks = await self.service.store.tasks.list_tasks(limit=100_000)
            except UnavailableError:
                tasks = ()
            if tasks and all(task.status.is_terminal for task in tasks):
                break
            await asyncio.sleep(0.5)
        self.settled_s = time.monotonic() - began_at
        self.ended = Counter(task.status for task in await self.service.store.tasks.list_tasks(limit=100_000))
