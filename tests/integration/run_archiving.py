"""A task whose runs have ended, and the archive that writes their folders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.core.clock import Clock, SystemClock
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.record import Run, Usage
from soong.shared.engine.runs.status import EndReason
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Advance, StepEnd
from soong.shared.engine.tasks.store import FinishedTask
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.model.builders import open_session, open_task, open_worker
from tests.model.clock import START_US
from tests.model.memory.store import MemoryStore


async def advance(store: MemoryStore, worker_id: str, ends: list[StepEnd], *, claim: int) -> Advance:
    return await store.claims.advance(
        worker_id, ends, claim=claim, pools=["default"], capabilities=[], live_workers=1, now_us=START_US
    )


CALLED = Usage(tool_calls=1)


async def ended_run(store: MemoryStore, *events: NewEvent, usage: Usage = CALLED) -> tuple[FinishedTask, str]:
    """Return a task whose one run has ended with these events, and the run's id."""
    ownership = await open_session(store)
    task_id = await open_task(store, ownership, "a")
    worker_id = await open_worker(store)
    (claim,) = (await advance(store, worker_id, [], claim=1)).claims
    end = StepEnd(
        claim.step_key,
        claim.identity.run_id,
        claim.fence,
        StepStatus.COMPLETED,
        EndReason.COMPLETED,
        usage=usage,
        events=events,
    )
    await advance(store, worker_id, [end], claim=0)
    return FinishedTask(task_id, TaskStatus.COMPLETED), claim.identity.run_id


def run_folders(store: MemoryStore, root: Path, clock: Clock | None = None) -> RunArchive:
    artifacts = FolderArtifacts(RootedFolder(root, "artifacts"))
    return RunArchive(store, artifacts, RootedFolder(root, "runs"), clock or SystemClock())


def lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class AwayStore(MemoryStore):
    """A database that does not answer for a while."""

    away = 0

    async def list_runs(self, **wanted: object) -> Sequence[Run]:
        self._try()
        found: Sequence[Run] = await super().list_runs(**wanted)  # type: ignore[arg-type,unused-ignore]  # passed on
        return found

    async def ended_in_open_tasks(self, owner_id: str, **wanted: Any) -> Sequence[Run]:
        self._try()
        found: Sequence[Run] = await super().ended_in_open_tasks(owner_id, **wanted)
        return found

    def _try(self) -> None:
        if self.away:
            self.away -= 1
            raise UnavailableError("the database does not answer")
