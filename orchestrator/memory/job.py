"""The Memory Extraction Job: after a session ends, a run of its own proposes what to remember of it (MEM-02).

The job is an ask of the session, made when a client closes it: an agent without tools that reads what the person asked
for and what was answered, never what tools returned. So it has rows, usage and limits like every agent, is charged to
the budgets of its session, and is continued by a successor. The session is closed when the job has ended.

Candidates become memory when a person accepts them. Their rows are the truth; ``archive/memory.jsonl`` in the run's
folder is a copy that nothing reads, because workers can write beneath the folder.

It runs in the owner: workers only read the home (docs/decisions/0024-the-memory-job-is-an-ask-of-its-session.md).
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from soong.shared.agents.definition import DEFINITION, MEMORY_EXTRACTOR, AgentDefinition
from soong.shared.agents.model import SCRIPT
from soong.shared.core import timing
from soong.shared.core.config import MemoryConfig
from soong.shared.core.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock, to_the_second
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.tasks.asks import spec_of_ask
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.service import Ledger
from soong.shared.engine.tasks.spec import StepSpec, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import NewTask, Task
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.tools.schema import arguments
from soong.shared.tools.surface import Surface
from soong.shared.toolsets.memory.provider import MAX_CONTENT_CHARS, Memory, MemoryProvider, MemoryScope

log = get_logger(__name__)

MIN_CHARS: Final = 400
"""The least of goals and answers together: a model is not asked about less."""
MAX_TASKS: Final = 50
MAX_STEPS: Final = 20
MAX_TEXT_CHARS: Final = 8_000
MAX_CHARS: Final = 40_000

_GOAL: Final = (
    "Read what was asked and answered in a session, in your inputs. Return what a later session should know, in "
    "`memories`, or an empty list."
)

ARCHIVE_FILE: Final = "archive/memory.jsonl"
MAX_CANDIDATES: Final = 20
MAX_JOBS: Final = 200
"""The newest, whose candidates are read."""

OF: Final = "memory_of"
"""The input of a job's task that names the tasks that it reads."""
PROJECT: Final = "project"
IS_TAINTED: Final = "is_tainted"
SOURCES: Final = "sources"
"""Inputs of a job's task: where its memories hold, whether strangers may have written it, the runs that it reads."""

OUTPUT_SCHEMA: Final = arguments(
    "memories",
    memories={
        "type": "array",
        "maxItems": MAX_CANDIDATES,
        "items": arguments(
            "content",
            "scope",
            content={"type": "string", "minLength": 1, "maxLength": MAX_CONTENT_CHARS},
            scope={"type": "string", "enum": [scope.value for scope in MemoryScope]},
            tags={"type": "array", "items": {"type": "string"}, "maxItems": 10},
        ),
    },
)


class MemoryCandidate(Value):
    """A proposed memory and the run of the job that proposes it."""

    memory: Memory
    run_id: str

    def as_json(self) -> dict[str, Json]:
        return {**self.memory.as_json(), "v": 1, "run": self.run_id}


def is_job(run: Run) -> bool:
    identity = run.identity
    return identity.definition == MEMORY_EXTRACTOR and not identity.step_key and run.status is RunStatus.COMPLETED


@dataclass(slots=True)
class MemoryJob:
    """Makes the jobs of an owner's sessions and keeps their candidates. ``provider`` gets them in mode ``external``.

    ``folder`` is that of the runs. ``definition`` is the job's agent; ``script`` the scripted agent that takes its
    place, if one is configured.
    """

    rows: Ledger
    config: MemoryConfig
    definition: AgentDefinition
    provider: MemoryProvider
    folder: RootedFolder
    clock: Clock
    script: str = ""

    @property
    def is_on(self) -> bool:
        return self.config.enabled and self.config.write_mode != "disabled"

    async def begin(self, ownership: Ownership) -> bool:
        """Make the job of a session that is being closed; say whether there is one now, which then closes it.

        Asked again, it makes the same one. Raises: NotOwnerError, UnavailableError.
        """
        if not self.is_on:
            return False
        kind = None if self.script else TaskKind.ASK
        tasks = await self.rows.tasks.list_tasks(session_id=ownership.session_id, kind=kind, limit=MAX_TASKS)
        if any(OF in task.inputs and not task.status.is_terminal for task in tasks):
            return True
        new = _unread(tasks)
        conversation = await self._conversation(new)
        if not conversation:
            return False
        session = await self.rows.sessions.session(ownership.session_id)
        job = await self._job(session, new, conversation)
        try:
            await self.rows.tasks.create_task(job)
        except (ConflictError, NotFoundError) as error:
            log.info("memory_job_left", session=session.id, reason=str(error))
            return False
        log.info("memory_job_made", session=session.id, task=job.id, run=job.root_run.identity.run_id)
        return True

    async def _conversation(self, tasks: Sequence[Task]) -> list[Json]:
        """Return the texts of the tasks, oldest first; nothing where they are not worth a job."""
        told: list[Json] = []
        chars = 0
        for task in tasks:
            entry = await self._entry(task)
            size = sum(len(str(value)) for value in entry.values())
            if chars + size <= MAX_CHARS:
                told.append(entry)
                chars += size
        return told if self.script or chars >= MIN_CHARS else []

    async def _entry(self, task: Task) -> dict[str, Json]:
        output = await _output(self.rows, task.root_run_id)
        if task.kind is TaskKind.ASK:
            goal = spec_of_ask(task.plan).instructions
            return {"asked": goal[:MAX_TEXT_CHARS], "answered": _text(output)[:MAX_TEXT_CHARS]}
        steps = [step for step in await self.rows.tasks.steps(task.id) if step.status is StepStatus.COMPLETED]
        results = [await self.rows.tasks.result(step.key) for step in steps[-MAX_STEPS:]]
        texts = {
            step.step_id: _text(result.output)[:500] for step, result in zip(steps[-MAX_STEPS:], results, strict=True)
        }
        return {"task": task.title, "inputs": task.inputs, "results": texts}

    async def _job(self, session: Session, tasks: Sequence[Task], conversation: list[Json]) -> NewTask:
        """Return the job as a task. Its id follows from what it reads: it is made once."""
        sources = [task.root_run_id for task in tasks]
        tainted = [await self.rows.runs.is_tainted(run_id) for run_id in sources]
        last = await self.rows.runs.run(sources[-1])
        model = SCRIPT if self.script else self.config.model or last.identity.model
        spec = StepSpec(
            id="ask",
            instructions=_GOAL,
            inputs={"session": session.id, "project": session.project, "conversation": conversation},
            output=OUTPUT_SCHEMA,
            script=self.script,
            timeout_s=timing.EXTRACTION_LIMIT_S,
        )
        task = new_ask(
            spec,
            session,
            title="Remember the session",
            role=Role.MAIN,
            definition=MEMORY_EXTRACTOR,
            model=model,
            surface={**Surface(()).as_json(), DEFINITION: self.definition.to_json()},
            now_us=self.clock.now_us(),
            task_id="task_" + hashlib.sha256("\0".join(task.id for task in tasks).encode()).hexdigest()[:32],
        )
        about: dict[str, Json] = {SOURCES: sources, IS_TAINTED: any(tainted), PROJECT: session.project}
        return replace(task, inputs={OF: [each.id for each in tasks], **about})

    async def ended(self, ownership: Ownership, task_id: str) -> bool:
        """Close the session of a job that has ended; say whether the task was one. Raises: NotOwnerError."""
        task = await self.rows.tasks.task(task_id)
        if OF not in task.inputs:
            return False
        if not await self.rows.tasks.open_tasks(ownership):
            await self.rows.sessions.close_session(ownership)
        return True

    is_job = staticmethod(is_job)

    async def keep(self, run_id: str) -> None:
        """Write what a job proposes to the archive of its run, and give the provider what may go there.

        Content that strangers may have written does not become memory without a person.

        Raises: UnavailableError, OSError, ForeignEntryError.
        """
        candidates = await candidates_of(self.rows, run_id)
        if not self.is_on or not candidates:
            return
        left = [each for each in candidates if not await self._is_saved(each)]
        await asyncio.to_thread(self.folder.write, f"{run_id}/{ARCHIVE_FILE}", lines_of(left))

    async def _is_saved(self, candidate: MemoryCandidate) -> bool:
        """Give a memory to the provider; one that it refuses stays a candidate."""
        if self.config.write_mode != "external" or candidate.memory.is_tainted:
            return False
        try:
            await self.provider.save(candidate.memory)
        except UnavailableError:
            raise
        except Exception:  # foreign code or a home that is only read: a person can accept it later
            log.exception("memory_not_saved", memory=candidate.memory.id, run=candidate.run_id)
            return False
        return True


def _unread(tasks: Sequence[Task]) -> list[Task]:
    """Return the completed tasks that no job has read yet, oldest first."""
    read: set[str] = set()
    for task in tasks:
        named = task.inputs.get(OF)
        read |= set(map(str, named)) if isinstance(named, list | tuple) else set()
    found = (task for task in tasks if task.status is TaskStatus.COMPLETED and OF not in task.inputs)
    return [task for task in found if task.id not in read][::-1]


def _text(output: Json) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping) and isinstance(output.get("answer"), str):
        return str(output["answer"])
    return "" if output is None else str(output)


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
    return list(_candidates(task, run_id, await _output(rows, run_id)))


async def _output(rows: Ledger, run_id: str) -> Json:
    nodes = await rows.runs.nodes(run_id)
    return next((node.payload.get("output") for node in reversed(nodes) if node.kind is NodeKind.RESULT), None)


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
    return "".join(f"{dump(each.as_json())}\n" for each in candidates).encode("utf-8", "replace")


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list | tuple) else ()
