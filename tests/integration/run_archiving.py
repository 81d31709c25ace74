"""A task whose runs have ended, and the archive that writes their folders."""

import json
from pathlib import Path

from soong.orchestrator.owner.run_archive import RunArchive
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import Clock, SystemClock
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.record import EndReason, Usage
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Advance, StepEnd
from soong.shared.engine.tasks.store import FinishedTask
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.model.builders import open_session, open_task, open_worker, take_turn
from tests.model.memory.store import MemoryStore


async def advance(store: MemoryStore, worker_id: str, ends: list[StepEnd], *, claim: int) -> Advance:
    return await take_turn(store, worker_id, ends, claim=claim)


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


async def write_folders(store: MemoryStore, root: Path, task_id: str) -> None:
    folders = run_folders(store, root)
    await folders.write(task_id)
    await folders.close()


def lines(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
