"""Garbage collection: removes what has ended, by age and by size (OPS-10).

Tasks go oldest first: row, steps, runs, then their folders. Artifacts go last, once no row names them. A killed
collection leaves nothing that the next one does not find. It works next to a running service.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import Final

from soong.orchestrator.retention.files import StoredFiles, StoredFolders
from soong.shared.core import timing
from soong.shared.core.amounts import read_age, read_size
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value
from soong.shared.engine.tasks.retention import EndedTask, Retention, StoredArtifact

ROWS_AT_ONCE: Final = 1000
"""Most rows of steps in one transaction: a few milliseconds, so that a running service does not wait."""
FOREVER: Final = 1 << 62
log = get_logger(__name__)

PAGE: Final = 100


class RetentionLimits(Value):
    """The limits of a collection. ``keep_bytes`` 0: no limit by size.

    Artifacts, sessions and rows of processes that are younger than ``grace_s`` stay.
    """

    before_us: int
    keep_bytes: int = 0
    grace_s: float = timing.DAY_S


@dataclass(slots=True)
class CollectionReport:
    """The result of a collection. ``used_bytes``: the size of rows and files afterwards."""

    tasks: int = 0
    steps: int = 0
    runs: int = 0
    sessions: int = 0
    processes: int = 0
    folders: int = 0
    artifacts: int = 0
    file_bytes: int = 0
    row_bytes: int = 0
    used_bytes: int = 0

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


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
        return self.kinds.get(artifact.digest) or "other"

    async def removals(self) -> AsyncIterator[Removal]:
        for task in self.tasks:
            consists = await self.rows.footprint(task.id)
            sizes = await asyncio.to_thread(self.folders.sizes, consists.run_ids)
            artifacts = self.artifacts_of.get(task.id, ())
            yield Removal(task, len(consists.run_ids), sizes, consists.row_bytes, artifacts)


@dataclass(slots=True)
class CollectionPreview:
    """The forecast of a collection. ``row_bytes`` is an estimate; ``used_bytes``: the size of all that is stored now.

    ``artifact_bytes`` is by kind: a media type, ``deliverable`` or ``other``.
    """

    tasks: int = 0
    steps: int = 0
    runs: int = 0
    folders: int = 0
    artifacts: int = 0
    row_bytes: int = 0
    folder_bytes: int = 0
    artifact_bytes: Counter[str] = field(default_factory=Counter)
    used_bytes: int = 0

    @property
    def freed_bytes(self) -> int:
        return self.row_bytes + self.folder_bytes + self.artifact_bytes.total()

    def as_json(self) -> dict[str, Json]:
        return {**asdict(self), "artifact_bytes": dict(self.artifact_bytes), "freed_bytes": self.freed_bytes}

    def add(self, removal: Removal) -> None:
        self.tasks += 1
        self.steps += removal.task.steps
        self.runs += removal.runs
        self.row_bytes += removal.row_bytes
        self.add_folders(removal.folder_sizes)

    def add_folders(self, sizes: Sequence[int]) -> None:
        self.folders += len(sizes)
        self.folder_bytes += sum(sizes)

    def add_artifacts(self, artifacts: Sequence[StoredArtifact], found: Forecast) -> None:
        self.artifacts += len(artifacts)
        for artifact in artifacts:
            self.artifact_bytes[found.kind_of(artifact)] += artifact.size_bytes


@dataclass(slots=True)
class GarbageCollector:
    """One collection at a time."""

    rows: Retention
    artifacts: StoredFiles
    folders: StoredFolders
    clock: Clock

    async def preview(self, limits: RetentionLimits) -> CollectionPreview:
        """Return what a collection would remove, and what is stored now. Removes nothing.

        Sessions and processes are not counted: they go after their tasks.
        """
        seen = CollectionPreview(used_bytes=await self._used_bytes())
        old, kept = await self._folders_without_row(limits)
        seen.add_folders(await asyncio.to_thread(self.folders.sizes, old))
        before_us = FOREVER if limits.keep_bytes else limits.before_us
        found = await self._forecast(before_us, limits, kept)
        seen.add_artifacts(found.unnamed, found)
        async for removal in found.removals():
            is_enough = seen.used_bytes - seen.freed_bytes <= limits.keep_bytes
            if removal.task.ended_us >= limits.before_us and is_enough:
                break  # later ones ended later
            seen.add(removal)
            seen.add_artifacts(removal.artifacts, found)
        return seen

    async def collect(
        self, limits: RetentionLimits, tell: Callable[[CollectionReport], None] = lambda _: None
    ) -> CollectionReport:
        """Remove what exceeds the limits; ``tell`` gets the progress after each task."""
        done, rows_before = CollectionReport(), await self.rows.used_bytes()
        for task_id in await self.rows.gone_tasks():  # of a collection before this one that was killed
            await self._remove_rest(task_id, done)
        async for task in ended_tasks(self.rows, limits.before_us):
            await self._remove(task, limits.before_us, done)
            tell(done)
        await self._remove_files(limits, done)
        await self._shrink(limits, done, tell)
        # New rows may be about to be used: a session whose task is written next, a command that is read.
        old_us = min(limits.before_us or FOREVER, self.clock.now_us() - round(limits.grace_s * 1_000_000))
        done.sessions = await self.rows.remove_sessions(before_us=old_us)
        done.processes = await self.rows.remove_processes(before_us=old_us)
        done.used_bytes = await self._used_bytes()
        done.row_bytes = max(0, rows_before - await self.rows.used_bytes())
        return done

    async def _remove(self, task: EndedTask, before_us: int, done: CollectionReport) -> bool:
        is_gone = await self.rows.remove_task(task.id, before_us=before_us)
        if is_gone:
            done.tasks += 1
            await self._remove_rest(task.id, done)
        return is_gone

    async def _remove_rest(self, task_id: str, done: CollectionReport) -> None:
        while not (removed := await self.rows.remove_rest(task_id, limit=ROWS_AT_ONCE)).is_empty:
            done.steps += removed.steps
            done.runs += len(removed.run_ids)
            for run_id in removed.run_ids:
                await self._remove_folder(run_id, done)

    async def _shrink(
        self, limits: RetentionLimits, done: CollectionReport, tell: Callable[[CollectionReport], None]
    ) -> None:
        """Remove the oldest ended tasks until rows and files take no more than is to be kept.

        The bytes that a task frees are an estimate. So each round removes what should be enough, and then measures.
        """
        is_removing = bool(limits.keep_bytes)
        while is_removing and (excess := await self._used_bytes() - limits.keep_bytes) > 0:
            is_removing = False  # what is left is open
            _, kept = await self._folders_without_row(limits)
            async for removal in (await self._forecast(FOREVER, limits, kept)).removals():
                if await self._remove(removal.task, FOREVER, done):
                    is_removing = True
                    excess -= removal.freed_bytes
                    tell(done)
                if excess <= 0:
                    break
            await self._remove_files(limits, done)

    async def _remove_files(self, limits: RetentionLimits, done: CollectionReport) -> None:
        """Remove old folders of runs that have no row, and artifacts that neither a row nor such a folder names."""
        old, kept = await self._folders_without_row(limits)
        for name in old:
            await self._remove_folder(name, done)
        found = await self._forecast(0, limits, kept)
        for artifact in sorted(found.unnamed, key=lambda one: one.digest):
            freed = await asyncio.to_thread(self._remove_artifact, artifact.digest, self._until_s(limits))
            done.artifacts += freed is not None
            done.file_bytes += freed or 0

    def _remove_artifact(self, digest: str, until_s: float) -> int | None:
        try:
            return self.artifacts.remove(digest, unused_since_s=until_s)
        except OSError as error:  # one that the system does not let us remove keeps no other
            log.warning("gc_artifact_kept", digest=digest, error=str(error))
            return None

    async def _folders_without_row(self, limits: RetentionLimits) -> tuple[list[str], list[str]]:
        """Return folders of runs that have no row: those that go for their age, and those that stay."""
        known = await self.rows.run_ids()
        changed_s = await asyncio.to_thread(self.folders.changed_s, known)
        is_old = {name: at_s * 1_000_000 < limits.before_us for name, at_s in changed_s.items()}
        return [name for name in is_old if is_old[name]], [name for name in is_old if not is_old[name]]

    async def _forecast(self, before_us: int, limits: RetentionLimits, kept: Sequence[str]) -> Forecast:
        until_s = self._until_s(limits)
        return await forecast(self.rows, self.artifacts, self.folders, before_us=before_us, until_s=until_s, kept=kept)

    def _until_s(self, limits: RetentionLimits) -> float:
        return self.clock.now_us() / 1_000_000 - limits.grace_s

    async def _remove_folder(self, name: str, done: CollectionReport) -> None:
        freed = await asyncio.to_thread(self.folders.remove, name)
        done.folders += freed is not None
        done.file_bytes += freed or 0

    async def _used_bytes(self) -> int:
        def used_by_files() -> int:
            return sum(one.size_bytes for one in self.artifacts.stored()) + self.folders.used_bytes()

        return await self.rows.used_bytes() + await asyncio.to_thread(used_by_files)


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

    Tasks that ended since ``before_us`` stay, artifacts written since ``until_s`` (seconds since the epoch), and the
    ``kept`` folders of runs without a row.
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
        last |= dict.fromkeys(await asyncio.to_thread(folders.digests_in, name), never)
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


class RetentionSettings(Value):
    """``SOONG_GC_OLDER_THAN``, ``SOONG_GC_KEEP``, ``SOONG_GC_EVERY_S``. None: no limit by age; 0: none by size."""

    age_s: int | None
    keep_bytes: int
    every_s: float

    @classmethod
    def of(cls, settings: Settings) -> "RetentionSettings":
        """Raises: UsageError when an age or a size is not valid."""
        older_than, keep = settings.gc_older_than, settings.gc_keep
        return cls(
            read_age(older_than, "SOONG_GC_OLDER_THAN") if older_than else None,
            read_size(keep, "SOONG_GC_KEEP") if keep else 0,
            settings.gc_every_s,
        )

    @property
    def is_on(self) -> bool:
        return self.age_s is not None or bool(self.keep_bytes)


class AutomaticRetention(Value):
    """Collects until it is cancelled. ``open_collector`` connects for one collection."""

    wanted: RetentionSettings
    open_collector: Callable[[], AbstractAsyncContextManager[GarbageCollector]]
    clock: Clock

    async def run(self) -> None:
        """Collect at each interval. A collection that fails is logged; the next one finishes what it left."""
        wait_s = min(timing.MINUTE_S, self.wanted.every_s)
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self.wanted.every_s
            try:
                age_s = self.wanted.age_s
                before_us = 0 if age_s is None else self.clock.now_us() - age_s * 1_000_000
                limits = RetentionLimits(before_us, self.wanted.keep_bytes)
                async with self.open_collector() as collector:
                    done = await collector.collect(limits)
                if done.tasks or done.artifacts:
                    log.info("gc_done", **done.as_json())
            except InvalidConfigError as error:
                log.error("gc_not_possible", error=str(error))
                return
            except (SoongError, OSError) as error:
                log.warning("gc_failed", error=str(error))
            except Exception:  # a fault here must not stop the service's work
                log.exception("gc_failed")
