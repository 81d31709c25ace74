"""What happens in a task, read once for all who watch it.

A feed reads the states of a task's steps at every change, no more often than its own reading allows, and counts
versions. A reader gets what has changed since the version that it saw last; so one that is slow misses nothing and
holds nobody up, and two hundred readers cost one reading. A step is encoded once for each of its states, and all who
have seen the same version are sent the same bytes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.client.client import tasks_planned_by
from soong.orchestrator.operations.documents import END, frame_of, json_bytes
from soong.orchestrator.operations.watched_reads import SubscriptionPool
from soong.orchestrator.schemas.base import instant
from soong.orchestrator.schemas.task import TaskSchema
from soong.shared.core import timing
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.engine.wire.notifier import Subscription
from soong.shared.storage.store import Store

PAUSE_PER_LOOK: Final = 10
"""A feed rests so many times as long as a look took: it takes at most a tenth of a core, however large the task."""


@dataclass(slots=True)
class _Known:
    """A step as its readers have it, and the version in which it changed last."""

    fixed: bytes
    """What never changes of it: an object of JSON without its last brace."""
    state: StepSnapshot
    version: int
    _text: bytes = b""

    def change(self, state: StepSnapshot, version: int) -> None:
        self.state, self.version, self._text = state, version, b""

    @property
    def text(self) -> bytes:
        """The step as JSON, encoded when it is first asked for."""
        if not self._text:
            self._text = b"%b,%b" % (self.fixed, json_bytes(self._changing())[1:])
        return self._text

    def _changing(self) -> dict[str, Json]:
        state = self.state
        return {
            "status": str(state.status),
            "outcome": None if state.outcome is None else str(state.outcome),
            "run": state.run_id,
            "worker": state.worker_id,
            "attempt": state.attempt,
            "progress": state.progress,
            "error": None if state.error is None else state.error.as_json(),
            "started": instant(state.started_us),
            "ended": instant(state.ended_us),
        }


@dataclass(slots=True, eq=False)
class TaskFeed:
    """One task that is watched. ``version`` grows with every change of what is shown."""

    task_id: str
    store: Store
    version: int = 0
    is_over: bool = False
    readers: int = 0
    failure: Exception | None = None
    _task: Task | None = None
    _steps: dict[str, _Known] = field(default_factory=dict)
    _head: dict[str, Json] = field(default_factory=dict)
    _frames: dict[int, bytes] = field(default_factory=dict)
    """The change since each version that some reader has, as it is sent: made once for all who are there."""
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _ended_s: float = 0.0

    @property
    def is_fresh(self) -> bool:
        """Say whether a reader who comes now may have what this feed knows: of one that is over, for a moment."""
        is_new = not self.is_over or time.monotonic() - self._ended_s < timing.POLL_ROWS_S
        return is_new and self.failure is None

    async def follow(self, subscriptions: SubscriptionPool) -> None:
        """Read until the task has ended. A failure ends the feed and reaches every reader."""
        try:
            self._task = await self.store.tasks.task(self.task_id)
            subscription = await subscriptions.subscribe_session(self._task.session_id)
            try:
                await self._follow(subscription)
            finally:
                await subscription.close()
        except Exception as error:  # noqa: BLE001  # a task of its own: its readers raise what it found
            self.failure = error
        finally:
            self._wake()

    async def _follow(self, subscription: Subscription) -> None:
        while True:
            began_s = time.monotonic()
            await self._look()
            if self.is_over:
                return
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(timing.LEAST_PAUSE_S, min(timing.PUT_OFF_S, PAUSE_PER_LOOK * took_s)))
            await subscription.wait(timing.POLL_ROWS_S)

    async def frames(self) -> AsyncGenerator[bytes]:
        """Yield the task as it is, then every change, then the end."""
        seen = 0
        while True:
            if seen == self.version:
                if self.failure is not None:
                    raise self.failure
                if self.is_over:
                    yield END
                    return
                await self._moved.wait()
                continue
            text, seen = self._since(seen), self.version
            yield text

    def _since(self, version: int) -> bytes:
        if version not in self._frames:
            changed = (one.text for one in self._steps.values() if one.version > version)
            self._frames[version] = frame_of(self._head, "steps", changed, event="change" if version else "task")
        return self._frames[version]

    async def _look(self) -> None:
        status = await self.store.tasks.status(self.task_id)
        if self._task is None or self._task.status is not status:
            self._task = await self.store.tasks.task(self.task_id)
        states = await self.store.tasks.step_states(self.task_id)
        if len(states) != len(self._steps):
            await self._take_in_new_steps()
        changed = [state for state in states if state != self._steps[state.key].state]
        for state in changed:
            self._steps[state.key].change(state, self.version + 1)
        head = await self._head_of(self._task, Counter(state.status for state in states))
        self.is_over = status.is_terminal and not any(state.status.is_leased for state in states)
        if self.is_over:
            self._ended_s = time.monotonic()
        if changed or head != self._head or self.is_over:
            self._head, self.version = head, self.version + 1
            self._frames.clear()
            self._wake()

    async def _take_in_new_steps(self) -> None:
        for step in await self.store.tasks.steps(self.task_id):
            if step.key not in self._steps:
                self._steps[step.key] = _Known(_fixed(step), StepSnapshot.of(step), self.version + 1)

    async def _head_of(self, task: Task, counts: Mapping[StepStatus, int]) -> dict[str, Json]:
        waiting = await self.store.consent.questions(session_id=task.session_id)
        return {
            "task": TaskSchema.of(task, step_counts=counts).model_dump(mode="json"),
            "kind": str(task.kind),
            "root_run": task.root_run_id,
            "approvals": [one.request.id for one in waiting if one.answer is None],
            "planned": [one.id for one in await tasks_planned_by(self.store, task)],
        }

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


@dataclass(slots=True)
class TaskFeeds:
    """The tasks that are watched now; the first reader opens a feed, the last one closes it."""

    store: Store
    subscriptions: SubscriptionPool
    _open: dict[str, tuple[TaskFeed, Callable[[], None]]] = field(default_factory=dict)
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def frames(self, task_id: str) -> AsyncGenerator[bytes]:
        """Yield the frames of a task. Raises: NotFoundError."""
        feed, stop = self._feed(task_id)
        feed.readers += 1
        try:
            async for text in feed.frames():
                yield text
        finally:
            feed.readers -= 1
            if not feed.readers:
                stop()

    @property
    def watched(self) -> Sequence[str]:
        """The tasks that somebody watches."""
        return tuple(self._open)

    async def require(self, task_id: str) -> None:
        """Return if there is such a task, reading nothing while it is watched. Raises: NotFoundError."""
        if self._found(task_id) is None:
            await self.store.tasks.status(task_id)

    def _found(self, task_id: str) -> tuple[TaskFeed, Callable[[], None]] | None:
        found = self._open.get(task_id)
        return found if found is not None and found[0].is_fresh else None

    def _feed(self, task_id: str) -> tuple[TaskFeed, Callable[[], None]]:
        found = self._found(task_id)
        if found is not None:
            return found
        feed = TaskFeed(task_id, self.store)
        running = asyncio.get_running_loop().create_task(feed.follow(self.subscriptions))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

        def stop() -> None:
            running.cancel()
            if self._open.get(task_id, (None,))[0] is feed:
                del self._open[task_id]

        self._open[task_id] = (feed, stop)
        return feed, stop

    async def close(self) -> None:
        for running in tuple(self._running):
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


def _fixed(step: Step) -> bytes:
    """Return what never changes of a step, as JSON without its last brace."""
    parent = f"{step.task_id}/"
    fixed: dict[str, Json] = {
        "id": step.step_id,
        "title": step.title,
        "kind": str(step.kind),
        "map": step.map_key.removeprefix(parent),
        "depends_on": [key.removeprefix(parent) for key in step.depends_on],
        "definition": step.definition,
        "is_pull_worker": step.is_pull_worker,
    }
    return json_bytes(fixed)[:-1]
