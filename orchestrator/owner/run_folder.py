"""A run folder: its files, and the content of each (EVT-03).

Workers write beneath the same folder and write the rows that name deliverables, so neither is trusted: no link is
followed, and bytes that are not those of their digest are not delivered.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, Protocol

from soong.shared.core.errors import ForeignEntryError, NotFoundError
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.results.rendering import log_line

log = get_logger(__name__)

TOOL_EVENTS = frozenset(
    {EventType.TOOL_STARTED, EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED}
)
ERROR_EVENTS = frozenset(
    {
        EventType.TOOL_FAILED,
        EventType.TOOL_DENIED,
        EventType.STEP_FAILED,
        EventType.RUN_FAILED,
        EventType.MODEL_FAILED,
        EventType.MODEL_FALLBACK,
        EventType.PERMISSION_FAILED,
    }
)
FEW_RUNS: Final = 8
"""Their files are flushed one by one; those of more by one call, which waits for all of the file system."""
MAX_NAME_BYTES: Final = 200
DELIVERABLES: Final = "deliverables"
FOLDERS: Final = ("logs", "workspace", DELIVERABLES, "archive")


class StoredArtifacts(Protocol):
    """The artifact store, as run folders read it."""

    async def get(self, digest: str) -> bytes:
        """Raises: NotFoundError; ForgedError or ForeignEntryError when something else lies in their place."""


def lines_of(events: Sequence[Event]) -> dict[str, list[dict[str, Json]]]:
    """Return the lines of each file of a run folder; ``events.jsonl`` is written last: it makes the folder complete."""
    return {
        "logs/tools.jsonl": [_facts(event) for event in events if event.type in TOOL_EVENTS],
        "logs/errors.jsonl": [_error(event) for event in events if event.type in ERROR_EVENTS],
        "events.jsonl": [event.envelope() for event in events],
    }


def deliverable_names(events: Sequence[Event]) -> dict[str, str]:
    """Return the file name of each delivered path: its own, with a mark of the path where two would be one."""
    names: dict[str, str] = {}
    for delivered in filter(None, map(_delivered, events)):
        if delivered.path not in names:
            is_taken = delivered.file_name in names.values()
            names[delivered.path] = (
                f"{_mark(delivered.path)}-{delivered.file_name}" if is_taken else delivered.file_name
            )
    return names


class _Delivered(Value):
    """A deliverable, as an event describes it; a worker wrote it."""

    name: str
    path: str
    digest: str

    @property
    def file_name(self) -> str:
        """The last part of the name as a file can have it; empty when there is none."""
        name = PurePosixPath(self.name).name.replace("\0", "").encode("utf-8", "replace").decode()
        if name in (".", ".."):
            return ""
        return name if len(name.encode()) <= MAX_NAME_BYTES else f"{_mark(name)}{PurePosixPath(name).suffix[:20]}"


def _delivered(event: Event) -> _Delivered | None:
    said = event.data.get("deliverable")
    if not isinstance(said, Mapping):
        return None
    name, digest = said.get("name"), said.get("digest")
    if not isinstance(name, str) or not isinstance(digest, str):
        log.warning("deliverable_malformed", run=event.run_id, seq=event.seq)
        return None
    return _Delivered(name, str(said.get("path") or name), digest)


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


async def write_deliverable(folder: RootedFolder, event: Event, artifacts: StoredArtifacts) -> None:
    """Write the deliverable that an event speaks of, if it does, into the run's folder.

    Raises:
        ForgedError: other bytes lie in the artifact's place; nothing is delivered.
        ForeignEntryError: a link or the like is in the way.
        OSError: the folder cannot be written.
    """
    for name, data in (await delivered_file(event, artifacts, {})).items():
        await asyncio.to_thread(folder.write, name, data)


async def delivered_file(event: Event, artifacts: StoredArtifacts, names: Mapping[str, str]) -> Mapping[str, bytes]:
    """Return the file that an event delivers, by its place in the run's folder; nothing where it delivers none.
    Raises: ForgedError, other bytes lie in the artifact's place; ForeignEntryError, no regular file lies there;
    OSError, it cannot be read.
    """
    delivered = _delivered(event)
    name = "" if delivered is None else names.get(delivered.path) or delivered.file_name
    if delivered is None or not name:
        return {}
    try:
        return {f"{DELIVERABLES}/{name}": await artifacts.get(delivered.digest)}
    except NotFoundError:
        log.warning("deliverable_missing", run=event.run_id, name=name)
        return {}


def make_folders(folder: RootedFolder) -> None:
    """Make the places of a run folder that tools and people may use; nobody else's."""
    for name in FOLDERS:
        folder.make(name)


def _facts(event: Event) -> dict[str, Json]:
    """Return a call's event without what it was given and what it gave (RES-06)."""
    return log_line(event.data, seq=event.seq, time_us=event.time_us, type=event.type)


def _error(event: Event) -> dict[str, Json]:
    if event.type in TOOL_EVENTS:
        return {**_facts(event), "message": event.data.get("message", "")}
    facts = dict(event.data)
    if event.type == EventType.STEP_FAILED:
        facts["error"] = facts.pop("type", "")
    return {"seq": event.seq, "time_us": event.time_us, "type": event.type, **facts}


def write_logs(folder: RootedFolder, logs: Mapping[str, Sequence[Event]]) -> dict[str, ForeignEntryError | OSError]:
    """Write the log files of runs; return by run what kept one from being written."""
    files = (
        (
            run_id,
            {
                name: "".join(f"{dump(line)}\n" for line in lines).encode("utf-8", "replace")
                for name, lines in lines_of(events).items()
            },
        )
        for run_id, events in logs.items()
    )
    return _fill(folder, FOLDERS, files, are_few=len(logs) <= FEW_RUNS)


def write_delivered(
    folder: RootedFolder, files: Mapping[str, Mapping[str, bytes]]
) -> dict[str, ForeignEntryError | OSError]:
    """Write the delivered files of runs; return by run what kept one from being written."""
    return _fill(folder, (DELIVERABLES,), files.items(), are_few=len(files) <= FEW_RUNS)


def _fill(
    folder: RootedFolder, folders: Sequence[str], files: Iterable[tuple[str, Mapping[str, bytes]]], *, are_few: bool
) -> dict[str, ForeignEntryError | OSError]:
    problems: dict[str, ForeignEntryError | OSError] = {}
    for run_id, of_run in files:
        try:
            (folder / run_id).fill(folders, of_run, is_flushed=are_few)
        except (ForeignEntryError, OSError) as error:
            problems[run_id] = error
    if not are_few:
        folder.flush()
    return problems
