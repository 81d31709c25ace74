"""What a collection would remove and what that frees, before anything is removed (OPS-10)."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.retention.files import StoredFiles, StoredFolders
from soong.shared.core.value import Value
from soong.shared.engine.tasks.retention import EndedTask, Retention, StoredArtifact

PAGE: Final = 100
UNKNOWN_KIND: Final = "other"


class Removal(Value):
    """One ended task and what goes with it. ``artifacts`` are those that no task after it names."""

    task: EndedTask
    runs: int
    folder_sizes: Sequence[int]
    row_bytes: int
    artifacts: Sequence[StoredArtifact]

    @property
    def freed_bytes(self) -> int:
        return self.row_bytes + sum(self.folder_sizes) + sum(one.size_bytes for one in self.artifacts)


@dataclass(slots=True)
class Forecast:
    """Ended tasks in the order in which they go, oldest end first.

    ``unnamed`` are artifacts that neither a row nor a folder names, ``kinds`` describes the others by their rows.
    """

    rows: Retention
    folders: StoredFolders
    tasks: Sequence[EndedTask]
    artifacts_of: dict[str, list[StoredArtifact]] = field(default_factory=lambda: defaultdict(list))
    unnamed: list[StoredArtifact] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)

    def kind_of(self, artifact: StoredArtifact) -> str:
        """Return a media type, ``deliverable``, or ``other``."""
        return self.kinds.get(artifact.digest) or UNKNOWN_KIND

    async def removals(self) -> AsyncIterator[Removal]:
        """Yield each task with what it frees."""
        for task in self.tasks:
            consists = await self.rows.footprint(task.id)
            sizes = [size for run_id in consists.run_ids if (size := await self.folders.size(run_id)) is not None]
            artifacts = self.artifacts_of.get(task.id, ())
            yield Removal(task, len(consists.run_ids), sizes, consists.row_bytes, artifacts)


async def forecast(
    rows: Retention,
    artifacts: StoredFiles,
    folders: StoredFolders,
    *,
    before_us: int,
    until_s: float,
    kept: Sequence[str],
) -> Forecast:
    """Look at all that is stored; reads every row that names an artifact once.

    Args:
        rows: the rows.
        artifacts: the artifact store.
        folders: the run folders.
        before_us: tasks that ended since then stay.
        until_s: artifacts written since then stay, in seconds since the epoch.
        kept: folders of runs without a row that stay.
    """
    found = Forecast(rows, folders, [task async for task in ended_tasks(rows, before_us)])
    place = {task.id: number for number, task in enumerate(found.tasks)}
    stored = {one.digest: one for one in await asyncio.to_thread(lambda: list(artifacts.stored()))}
    never = len(found.tasks)
    last: dict[str, int] = {}
    """By digest, the place of the last task that names it; ``never`` when what stays does."""
    async for named in rows.named_artifacts():
        if named.digest in stored:
            last[named.digest] = max(last.get(named.digest, 0), place.get(named.task_id, never))
            found.kinds[named.digest] = found.kinds.get(named.digest) or named.kind
    for name in kept:
        last |= dict.fromkeys(await folders.digests_in(name), never)
    for artifact in stored.values():
        if artifact.changed_s < until_s:
            _assign(found, artifact, last.get(artifact.digest))
    return found


def _assign(found: Forecast, artifact: StoredArtifact, place: int | None) -> None:
    if place is None:
        found.unnamed.append(artifact)
    elif place < len(found.tasks):
        found.artifacts_of[found.tasks[place].id].append(artifact)


async def ended_tasks(rows: Retention, before_us: int) -> AsyncIterator[EndedTask]:
    """Yield the tasks that may be removed, oldest end first."""
    after = (0, "")
    while page := await rows.ended_tasks(before_us=before_us, after=after, limit=PAGE):
        for task in page:
            yield task
        after = (page[-1].ended_us, page[-1].id)
