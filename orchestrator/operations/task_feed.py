"""The changes of a task, as its watchers get them.

A reader gets the changes since its last version. A step is encoded once for each of its states, and all readers of the
same version get the same bytes.
"""

import functools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from soong.orchestrator.client.stall_reasons import missing_function
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.documents import END, frame_of, json_bytes
from soong.orchestrator.operations.snapshots import tasks_planned_by
from soong.orchestrator.schemas.base import instant
from soong.orchestrator.schemas.task import TaskSchema
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import DAY, charged_text, session_scope
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import ClaimMode, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.storage.store import Store


@dataclass(slots=True)
class _Known:
    """A step as its readers have it, and the version in which it changed last."""

    fixed: bytes
    """The facts that never change: an object of JSON without its last brace."""
    state: StepSnapshot
    version: int
    pool: str
    needs: tuple[str, ...]
    is_assigned: bool
    lacks: str = ""
    """Why no living worker may take it, where it is ready."""
    _text: bytes = b""

    def change(self, state: StepSnapshot, lacks: str, version: int) -> None:
        self.state, self.lacks, self.version, self._text = state, lacks, version, b""

    @property
    def text(self) -> bytes:
        """The step as JSON, encoded when it is first asked for."""
        if self._text:
            return self._text
        state = self.state
        changing: dict[str, Json] = {
            "status": str(state.status),
            "outcome": None if state.outcome is None else str(state.outcome),
            "run": state.run_id,
            "worker": state.worker_id,
            "attempt": state.attempt,
            "progress": state.progress,
            "error": None if state.error is None else state.error.as_json(),
            "started": instant(state.started_us),
            "ended": instant(state.ended_us),
            "lost_leases": state.lost_leases,
            "lost_to": state.lost_to,
            "lacks": self.lacks,
        }
        self._text = b"%b,%b" % (self.fixed, json_bytes(changing)[1:])
        return self._text


@dataclass(slots=True, eq=False)
class TaskWatch:
    """One task that is watched. ``version`` grows with every change of what is shown."""

    task_id: str
    store: Store
    version: int = 0
    is_over: bool = False
    session_id: str = ""
    _task: Task | None = None
    _steps: dict[str, _Known] = field(default_factory=dict)
    _head: dict[str, Json] = field(default_factory=dict)
    _frames: dict[int, bytes] = field(default_factory=dict)
    """The change since each version that some reader has, as it is sent: made once for all who are there."""

    def since(self, version: int) -> bytes:
        """Return what has changed since a version, as an event."""
        if version not in self._frames:
            changed = (one.text for one in self._steps.values() if one.version > version)
            self._frames[version] = frame_of(self._head, "steps", changed, event="change" if version else "task")
        return self._frames[version]

    async def look(self) -> "tuple[TaskWatch, int]":
        """Read what has changed; return this with its version, for comparisons."""
        status = await self.store.tasks.status(self.task_id)
        if self._task is None or self._task.status is not status:
            self._task = await self.store.tasks.task(self.task_id)
            self.session_id = self._task.session_id
        states = await self.store.tasks.step_states(self.task_id)
        if len(states) != len(self._steps):
            await self._take_in_new_steps()
        workers = await self.store.sessions.workers()
        lacks = self._lacks(states, workers) if status is TaskStatus.RUNNING else {}
        known = ((self._steps[state.key], state, lacks.get(state.key, "")) for state in states)
        changed = [(one, state, words) for one, state, words in known if (state, words) != (one.state, one.lacks)]
        for one, state, words in changed:
            one.change(state, words, self.version + 1)
        head = await self._head_of(self._task, Counter(state.status for state in states), lacks, workers)
        was_over = self.is_over
        self.is_over = status.is_terminal and not any(state.status.is_leased for state in states)
        if changed or head != self._head or (self.is_over and not was_over):
            self._head, self.version = head, self.version + 1
            self._frames.clear()
        return self, self.version

    def _lacks(self, states: Sequence[StepSnapshot], workers: Sequence[Worker]) -> dict[str, str]:
        """Return by step what keeps the living workers from what is ready; where none lives, that is another matter."""
        if not any(worker.state is ProcessState.LIVE for worker in workers):
            return {}
        said = functools.cache(lambda pool, needs: lacking(pool, needs, workers))
        ready = [self._steps[state.key] for state in states if state.status is StepStatus.READY]
        found = {one.state.key: said(one.pool, one.needs) for one in ready if one.is_assigned}
        return {key: words for key, words in found.items() if words}

    async def _head_of(
        self, task: Task, counts: Mapping[StepStatus, int], lacks: Mapping[str, str], workers: Sequence[Worker]
    ) -> dict[str, Json]:
        """Return the task with what it has to run with: workers, budgets, and the function that it lacks."""
        waiting = await self.store.consent.questions(session_id=task.session_id)
        scopes = (session_scope(task.session_id), DAY)
        budgets = await self.store.budgets.budgets(scopes, day=utc_date(time.time_ns() // 1000))
        needed = [(key.partition("/")[2], self._steps[key].needs) for key in lacks]
        return {
            "task": TaskSchema.of(task, step_counts=counts).model_dump(mode="json"),
            "kind": str(task.kind),
            "root_run": task.root_run_id,
            "approvals": [one.request.id for one in waiting if one.answer is None],
            "planned": [one.id for one in await tasks_planned_by(self.store, task)],
            "workers": [
                {"name": one.node_name, "state": str(one.state), "slots": one.slots, "busy": one.busy}
                for one in workers
            ],
            "budgets": [
                {
                    "scope": scope,
                    "charged": ", ".join(filter(None, charged_text(budgets[scope]))),
                    "share": budgets[scope].share,
                }
                for scope in scopes
                if scope in budgets
            ],
            "missing_function": missing_function(needed, workers),
        }

    async def _take_in_new_steps(self) -> None:
        for step in await self.store.tasks.steps(self.task_id):
            if step.key not in self._steps:
                parent = f"{step.task_id}/"
                fixed: dict[str, Json] = {
                    "id": step.step_id,
                    "title": step.title,
                    "kind": str(step.kind),
                    "map": step.map_key.removeprefix(parent),
                    "depends_on": [key.removeprefix(parent) for key in step.depends_on],
                    "definition": step.definition,
                    "is_pull_worker": step.is_pull_worker,
                    "claim": str(step.claim_mode),
                }
                self._steps[step.key] = _Known(
                    json_bytes(fixed)[:-1],
                    StepSnapshot.of(step),
                    self.version + 1,
                    step.pool,
                    step.needs,
                    step.claim_mode is ClaimMode.ASSIGNED,
                )


async def task_frames(service: ServiceParts, task_id: str) -> AsyncGenerator[bytes]:
    """Yield a task as it is, then every change, then the end. Raises: NotFoundError."""
    watch, seen = TaskWatch(task_id, service.store), 0
    with service.feeds.follow(
        ("task", task_id), watch.look, lambda: service.subscriptions.session(watch.session_id)
    ) as following:
        while True:
            watch, _version = await following.next()
            if seen != watch.version:
                text, seen = watch.since(seen), watch.version
                yield text
            if watch.is_over and seen == watch.version:
                yield END
                return
