"""What a session's memory job proposes: candidates, which become memory when a person accepts them (MEM-02).

A job is an ask whose agent is the definition ``memory_extractor``. Its rows are the truth, which only the owner of its
session writes; ``archive/memory.jsonl`` in its run's folder is a copy for people and programs. Nothing reads that copy:
workers can write beneath the folder.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from soong.shared.agents.definition import MEMORY_EXTRACTOR
from soong.shared.core.clock import to_the_second
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json, JsonObject, dump
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.tasks.kinds import TaskKind
from soong.shared.engine.tasks.service import Ledger
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.toolsets.memory.provider import MAX_CONTENT_CHARS, Memory, MemoryScope

log = get_logger(__name__)

ARCHIVE_FILE: Final = "archive/memory.jsonl"
MAX_CANDIDATES: Final = 20
MAX_JOBS: Final = 200
"""The newest, whose candidates are looked at."""

OF: Final = "memory_of"
"""The input of a job's task that names the tasks that it reads."""
PROJECT: Final = "project"
IS_TAINTED: Final = "is_tainted"
SOURCES: Final = "sources"
"""Inputs of a job's task: where its memories hold, whether strangers may have written it, the runs that it reads."""

OUTPUT_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "memories": {
            "type": "array",
            "maxItems": MAX_CANDIDATES,
            "items": {
                "type": "object",
                "properties": {
                    "content": {"type": "string", "minLength": 1, "maxLength": MAX_CONTENT_CHARS},
                    "scope": {"type": "string", "enum": [scope.value for scope in MemoryScope]},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
                },
                "required": ["content", "scope"],
            },
        }
    },
    "required": ["memories"],
}


class MemoryCandidate(Value):
    """A proposed memory and the run of the job that proposes it."""

    memory: Memory
    run_id: str

    def as_json(self) -> dict[str, Json]:
        return {**self.memory.as_json(), "v": 1, "run": self.run_id}


def is_job(run: Run) -> bool:
    """Say whether a run is a memory job that has ended well."""
    identity = run.identity
    return identity.definition == MEMORY_EXTRACTOR and not identity.step_key and run.status is RunStatus.COMPLETED


async def proposed(rows: Ledger) -> list[MemoryCandidate]:
    """Return what the newest jobs propose, newest job first. Raises: UnavailableError."""
    asks = await rows.tasks.list_tasks(kind=TaskKind.ASK, limit=20 * MAX_JOBS)
    jobs = [task for task in asks if OF in task.inputs and task.status is TaskStatus.COMPLETED][:MAX_JOBS]
    return [candidate for job in jobs for candidate in await candidates_of(rows, job.root_run_id)]


async def candidates_of(rows: Ledger, run_id: str) -> list[MemoryCandidate]:
    """Return what a job proposes, by its rows; nothing for any other run, and when it has not ended well.

    Raises: UnavailableError.
    """
    try:
        run = await rows.runs.run(run_id)
        if not is_job(run):
            return []
        task = await rows.tasks.task(run.identity.task_id)
    except NotFoundError:
        return []
    nodes = await rows.runs.nodes(run_id)
    output = next((node.payload.get("output") for node in reversed(nodes) if node.kind is NodeKind.RESULT), None)
    return list(_candidates(task, run_id, output))


def _candidates(task: Task, run_id: str, output: Json) -> Iterator[MemoryCandidate]:
    said = output.get("memories") if isinstance(output, Mapping) else None
    if not isinstance(said, Sequence) or isinstance(said, str):
        return
    project, sources = str(task.inputs.get(PROJECT, "")), _texts(task.inputs.get(SOURCES))
    seen: set[str] = set()
    for entry in said[:MAX_CANDIDATES]:
        if not isinstance(entry, Mapping):
            continue
        is_of_project = entry.get("scope") == MemoryScope.PROJECT.value
        try:
            memory = Memory(
                content=str(entry.get("content", "")),
                scope=MemoryScope.PROJECT if is_of_project else MemoryScope.USER,
                tags=_texts(entry.get("tags")),
                project=project if is_of_project else "",
                sources=sources,
                is_tainted=task.inputs.get(IS_TAINTED) is not False,
                created=to_the_second(task.created_us),
            )
        except UsageError as error:
            log.info("candidate_left_out", run=run_id, problem=str(error))
            continue
        if memory.id not in seen:
            seen.add(memory.id)
            yield MemoryCandidate(memory, run_id)


def lines_of(candidates: Sequence[MemoryCandidate]) -> bytes:
    """Return the archive file of a job."""
    return "".join(f"{dump(each.as_json())}\n" for each in candidates).encode("utf-8", "replace")


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()
