"""Garbage collection: removes what has ended, by age and by size (OPS-10).

Tasks go oldest first: row, steps, runs, then their folders. Artifacts go last, once no row names them. A killed
collection leaves nothing that the next one does not find. It works beside a running service.
"""

import asyncio
import os
import re
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from shared.clock import Clock
from shared.errors import ForeignEntryError
from shared.jsontext import Json
from shared.sandbox.rooted import RootedFolder
from shared.tasks.retention import EndedTask, Retention

DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")
PAGE: Final = 100
ROWS_AT_ONCE: Final = 1000
"""Most rows of steps in one transaction: a few milliseconds, so that a service beside it does not wait."""
GRACE_S: Final = 86_400.0
"""Artifacts younger than this stay: the rows that name them may not be written yet."""
FOREVER_US: Final = 1 << 62


class StoredFiles(Protocol):
    """The artifact store, as garbage collection sees it. Blocking."""

    def stored(self) -> Iterator[tuple[str, int]]:
        """Yield digest and size in bytes of each artifact."""
        ...

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """Remove an artifact unless it was written since that moment (seconds since the epoch).

        Returns: the bytes freed; None when it stays.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What is to be removed. ``keep_bytes`` 0: no limit by size.

    Artifacts, sessions and rows of processes that are younger than ``grace_s`` stay.
    """

    before_us: int
    keep_bytes: int = 0
    grace_s: float = GRACE_S


@dataclass(slots=True)
class Collected:
    """What a collection removed, or would remove."""

    tasks: int = 0
    steps: int = 0
    runs: int = 0
    sessions: int = 0
    processes: int = 0
    folders: int = 0
    artifacts: int = 0
    file_bytes: int = 0
    used_bytes: int = 0
    """What rows and files take afterwards; of a dry run, what they take now."""

    def as_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(slots=True)
class GarbageCollector:
    """One collection at a time; ``runs`` is the folder of run folders."""

    rows: Retention
    artifacts: StoredFiles
    runs: RootedFolder
    clock: Clock

    async def preview(self, limits: Limits) -> Collected:
        """Return what a collection would remove by age, and what is stored now. Removes nothing.

        What goes by size, and the artifacts that only removed tasks name, are known when the tasks are gone.
        """
        found = Collected(used_bytes=await self._used_bytes())
        async for task in self._ended(limits.before_us):
            found.tasks += 1
            found.steps += task.steps
        return found

    async def collect(self, limits: Limits, tell: Callable[[Collected], None] = lambda _: None) -> Collected:
        """Remove what the limits say; ``tell`` hears of the progress after each task."""
        done = Collected()
        for task_id in await self.rows.gone_tasks():  # of a collection before this one that was killed
            await self._remove_rest(task_id, done)
        async for task in self._ended(limits.before_us):
            await self._remove(task, limits.before_us, done)
            tell(done)
        await self._remove_files(limits, done)
        await self._shrink(limits, done, tell)
        # What has just been made may be about to be used: a session whose task is written next, a command that is read.
        old_us = min(limits.before_us, self.clock.now_us() - round(limits.grace_s * 1_000_000))
        done.sessions = await self.rows.remove_sessions(before_us=old_us)
        done.processes = await self.rows.remove_processes(before_us=old_us)
        done.used_bytes = await self._used_bytes()
        return done

    async def _ended(self, before_us: int) -> AsyncIterator[EndedTask]:
        after = (0, "")
        while page := await self.rows.ended_tasks(before_us=before_us, after=after, limit=PAGE):
            for task in page:
                yield task
            after = (page[-1].ended_us, page[-1].id)

    async def _remove(self, task: EndedTask, before_us: int, done: Collected) -> None:
        if await self.rows.remove_task(task.id, before_us=before_us):
            done.tasks += 1
            await self._remove_rest(task.id, done)

    async def _remove_rest(self, task_id: str, done: Collected) -> None:
        while not (removed := await self.rows.remove_rest(task_id, limit=ROWS_AT_ONCE)).is_empty:
            done.steps += removed.steps
            done.runs += len(removed.run_ids)
            for run_id in removed.run_ids:
                await self._remove_folder(run_id, done)

    async def _shrink(self, limits: Limits, done: Collected, tell: Callable[[Collected], None]) -> None:
        """Remove the oldest ended tasks until rows and files take no more than is to be kept."""
        if not limits.keep_bytes:
            return
        while await self._used_bytes() > limits.keep_bytes:
            page = await self.rows.ended_tasks(before_us=FOREVER_US, limit=PAGE)
            if not page:
                return  # what is left is open
            for task in page[: max(1, len(page) // 4)]:
                await self._remove(task, FOREVER_US, done)
                tell(done)
            await self._remove_files(limits, done)

    async def _remove_files(self, limits: Limits, done: Collected) -> None:
        """Remove old folders of runs that have no row, and artifacts that neither a row nor such a folder names."""
        known = await self.rows.run_ids()
        kept: list[RootedFolder] = []
        for name in await asyncio.to_thread(self.runs.names):
            if name.startswith("run_") and name not in known:
                if await asyncio.to_thread(_changed_s, self.runs, name) * 1_000_000 < limits.before_us:
                    await self._remove_folder(name, done)
                else:
                    kept.append(self.runs / name)
        await self._remove_artifacts(limits, kept, done)

    async def _remove_artifacts(self, limits: Limits, folders: Sequence[RootedFolder], done: Collected) -> None:
        until_s = self.clock.now_us() / 1_000_000 - limits.grace_s
        unnamed = {digest for digest, _ in await asyncio.to_thread(lambda: list(self.artifacts.stored()))}
        async for digest in self.rows.digests():
            unnamed.discard(digest)
        for folder in folders:
            unnamed -= await asyncio.to_thread(_digests_in, folder)
        for digest in sorted(unnamed):
            freed = await asyncio.to_thread(self.artifacts.remove, digest, unused_since_s=until_s)
            done.artifacts += freed is not None
            done.file_bytes += freed or 0

    async def _remove_folder(self, name: str, done: Collected) -> None:
        freed = await asyncio.to_thread(_remove_tree, self.runs, name)
        done.folders += freed is not None
        done.file_bytes += freed or 0

    async def _used_bytes(self) -> int:
        files = await asyncio.to_thread(lambda: sum(size for _, size in self.artifacts.stored()))
        return await self.rows.used_bytes() + files + await asyncio.to_thread(_size_of, self.runs)


def _changed_s(parent: RootedFolder, name: str) -> float:
    with parent.opened() as folder:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime


def _digests_in(folder: RootedFolder) -> set[str]:
    """Return the digests that the log of a run without a row names: it was a call without a service."""
    try:
        with folder.reading("events.jsonl") as file:
            return {digest for line in file for digest in DIGEST.findall(line.decode("utf-8", "replace"))}
    except (FileNotFoundError, ForeignEntryError):
        return set()


def _remove_tree(parent: RootedFolder, name: str) -> int | None:
    """Remove a folder and return the bytes of its files; None when there is none. Links are never followed."""
    with suppress(FileNotFoundError), parent.opened() as folder:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            freed = _size_of(parent / name)
            shutil.rmtree(name, dir_fd=folder)
            return freed
    return None


def _size_of(folder: RootedFolder) -> int:
    total = 0
    with suppress(FileNotFoundError), folder.opened() as top:
        for _, _, names, parent in os.fwalk(dir_fd=top):
            for name in names:
                with suppress(FileNotFoundError):  # removed by another process meanwhile
                    total += os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
    return total
