"""Run folders: what a task's runs did, as files for people and other programs (EVT-03).

``runs/<run>/`` in the home gets ``events.jsonl`` (CloudEvents), ``logs/tools.jsonl``, ``logs/errors.jsonl`` and
``deliverables/``, from rows and artifacts, when the task has ended. The rows stay the truth: a folder can be deleted
and written again. Runs that called no tool and ended well get none.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from shared.errors import NotFoundError, UnavailableError
from shared.jsontext import Json, JsonObject, dump
from shared.log import get_logger
from shared.runs.events import Event, EventType
from shared.runs.record import Run
from shared.runs.status import RunStatus
from shared.runs.store import RunStore
from shared.tools.rendering import log_line

log = get_logger(__name__)

TOOL_EVENTS = frozenset(
    {EventType.TOOL_STARTED, EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED}
)
ERROR_EVENTS = frozenset(
    {
        EventType.TOOL_FAILED,
        EventType.TOOL_DENIED,
        EventType.RUN_FAILED,
        EventType.MODEL_FAILED,
        EventType.PERMISSION_FAILED,
    }
)
PAGE = 1000
RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0)
"""Waits between attempts while the database is away; then the next full sweep begins anew."""


class StoredArtifacts(Protocol):
    """What is read of the artifact store."""

    async def get(self, digest: str) -> bytes:
        """Raises: NotFoundError."""
        ...


class RecordedStore(RunStore, Protocol):
    """Rows that remember which folders are written."""

    async def mark_recorded(self, task_id: str) -> None: ...


@dataclass(slots=True)
class RunFolders:
    """Writes in the background, one task after the other; :meth:`close` waits for what is under way.

    A task is marked when all its folders stand. An owner that ends before that leaves the task to the next one, which
    writes the same files again.
    """

    runs: RecordedStore
    artifacts: StoredArtifacts
    folder: Path
    _writing: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    """Tasks whose folders this process cannot write: another may, or itself when it is started again."""
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, task_id: str) -> None:
        """Begin to write the folders of the task's runs, unless they are being written or could not be."""
        if task_id in self._writing or task_id in self._given_up:
            return
        task = asyncio.get_running_loop().create_task(self._write_task(task_id))
        self._writing[task_id] = task
        task.add_done_callback(lambda _: self._writing.pop(task_id, None))

    async def close(self) -> None:
        """Wait for what is being written; what waits for the database is tried once more."""
        self._closing.set()
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def _write_task(self, task_id: str) -> None:
        """Write all folders of a task, again and again while the database is away: nobody else will."""
        for wait_s in (*RETRY_S, None):
            try:
                await self._write_runs(task_id)
                await self.runs.mark_recorded(task_id)
            except UnavailableError as error:
                if wait_s is None or self._closing.is_set():
                    log.error("run_folder_left", task=task_id, error=str(error))
                    return
                log.warning("run_folder_waits", task=task_id, error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._closing.wait()
            except OSError:
                log.exception("run_folder_failed", task=task_id)
                self._given_up.add(task_id)
                return
            else:
                return

    async def _write_runs(self, task_id: str) -> None:
        for run in await self.runs.runs(task_id=task_id, limit=100_000):
            if run.usage.tool_calls or (run.started_us is not None and run.status is not RunStatus.COMPLETED):
                await self._write_run(run)

    async def _write_run(self, run: Run) -> None:
        events = await self._events(run.id)
        folder = self.folder / run.id
        await asyncio.to_thread(_write_lines, folder, lines_of(events))
        names = deliverable_names(events)
        for event in events:
            await write_deliverable(folder, event, self.artifacts, names)

    async def _events(self, run_id: str) -> list[Event]:
        found: list[Event] = []
        while page := await self.runs.events(run_id, after_seq=found[-1].seq if found else 0, limit=PAGE):
            found.extend(page)
        return found


def lines_of(events: Sequence[Event]) -> dict[str, list[dict[str, Json]]]:
    """Return what each file of a run folder says of these events, in order; every file is named."""
    return {
        "events.jsonl": [event.envelope() for event in events],
        "logs/tools.jsonl": [_facts(event) for event in events if event.type in TOOL_EVENTS],
        "logs/errors.jsonl": [_error(event) for event in events if event.type in ERROR_EVENTS],
    }


def deliverable_names(events: Sequence[Event]) -> dict[str, str]:
    """Return the file name of each delivered path: its own, with a mark of the path where two would be one."""
    names: dict[str, str] = {}
    for event in events:
        deliverable = event.data.get("deliverable")
        if isinstance(deliverable, dict) and _path_of(deliverable) not in names:
            path, name = _path_of(deliverable), PurePosixPath(str(deliverable["name"])).name
            mark = hashlib.sha256(path.encode("utf-8", "replace")).hexdigest()[:8]
            names[path] = f"{mark}-{name}" if name in names.values() else name
    return names


def _path_of(deliverable: JsonObject) -> str:
    return str(deliverable.get("path") or deliverable["name"])


async def write_deliverable(
    folder: Path, event: Event, artifacts: StoredArtifacts, names: Mapping[str, str] | None = None
) -> None:
    """Write the deliverable that an event speaks of, if it does, into the run's folder."""
    deliverable = event.data.get("deliverable")
    if not isinstance(deliverable, dict):
        return
    name = (names or {}).get(_path_of(deliverable)) or PurePosixPath(str(deliverable["name"])).name
    if name in ("", ".", ".."):
        return
    try:
        data = await artifacts.get(str(deliverable["digest"]))
    except NotFoundError:
        log.warning("deliverable_missing", run=event.run_id, name=name)
        return
    await asyncio.to_thread(_write_bytes, folder / "deliverables" / name, data)


def make_folders(folder: Path) -> None:
    """Make the places of a run folder that tools and people may use; nobody else's."""
    for name in ("logs", "workspace", "deliverables", "archive"):
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)


def _facts(event: Event) -> dict[str, Json]:
    """Return a call's event without what it was given and what it gave (RES-06)."""
    return log_line(event.data, seq=event.seq, time_us=event.time_us, type=event.type)


def _error(event: Event) -> dict[str, Json]:
    if event.type in TOOL_EVENTS:
        return {**_facts(event), "message": event.data.get("message", "")}
    return {"seq": event.seq, "time_us": event.time_us, "type": event.type, **event.data}


def _write_lines(folder: Path, files: dict[str, list[dict[str, Json]]]) -> None:
    for name, lines in files.items():
        _write_bytes(folder / name, "".join(f"{dump(line)}\n" for line in lines).encode())
    make_folders(folder)


def _write_bytes(path: Path, data: bytes) -> None:
    """Put a file in place as a whole; a link that a run has left there is replaced and never followed."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
