"""A task in a program's hands: followed, controlled, asked for its questions, its result as a typed value (FLW-02)."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Generic, Literal, TypeVar, cast

from soong.orchestrator.approvals.approval import check_person, provenance_here
from soong.orchestrator.client.program import program
from soong.orchestrator.client.stall_reasons import StallReasons
from soong.orchestrator.client.task_limits import limits_from, raise_limits
from soong.orchestrator.embedded.service_file import read_record
from soong.orchestrator.operations.approvals import AnswerableApproval, AnswerBody, answer_approval, list_approvals
from soong.orchestrator.operations.authentication import Caller, local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.documents import Page
from soong.orchestrator.operations.feeds import PAUSE_PER_LOOK
from soong.orchestrator.operations.outcome import missing_function, read_result, snapshot_of
from soong.orchestrator.operations.problems import raised_as_ours
from soong.orchestrator.operations.progress import TaskWatch, until_over
from soong.orchestrator.schemas.task import TaskResult
from soong.shared.core import timing
from soong.shared.core.errors import TaskFailedError, UnavailableError
from soong.shared.core.jsontext import Json, require_text
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import parse_budget
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task

R = TypeVar("R")
Verdict = Literal["allow_once", "allow_for_session", "deny"]
MOST_QUESTIONS = 200


class StepChange(Value):
    """A step of a task as it is after a change. ``error`` has ``type`` and ``message``; times are RFC 3339."""

    id: str
    title: str
    kind: str
    status: StepStatus
    run: str
    attempt: int
    progress: str
    error: Mapping[str, Json] | None = None
    started: str | None = None
    ended: str | None = None


class ServiceLink(Value):
    """How handles reach their service. ``control`` is the socket of an embedded one."""

    service: ServiceParts
    principal: str
    control: str = ""

    async def caller(self) -> Caller:
        """Return the user of this program."""
        client = self.service.client
        return local_caller(self.principal, await provenance_here(client.store.sessions), "sdk", client.clock.now_us())


class TaskHandle(Generic[R]):
    """One task.

    Commands raise: NotFoundError; ConflictError, its owner's refusal; UnavailableError when no orchestrator did it in
    time (it stays asked for).
    """

    def __init__(self, link: ServiceLink, task_id: str, read: Callable[[Json], R] | None = None) -> None:
        require_text("the task id", task_id)
        self.id = task_id
        self.link, self._service, self._store = link, link.service, link.service.store
        self._read = read

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    # -- looking
    async def status(self) -> TaskStatus:
        """Raises: NotFoundError."""
        return (await self._store.tasks.status(self.id))[0]

    async def details(self) -> TaskResult:
        """Return everything about the task as it is now: steps, outputs, denials, files. Raises: NotFoundError."""
        return await read_result(self._store, self.id, self._service.client.settings.runs)

    async def wait(self) -> TaskResult:
        """Wait until the task has ended or is paused. Cancelling it leaves the task to the service.

        Raises: NotFoundError; UnavailableError, no worker can run it, and why: the task has been paused.
        """
        await self.until_over((await self._task()).session_id)
        return await self.details()

    async def result(self) -> R:
        """Wait for the end and return what the plan gives: a value of the type that a plan in Python declares, the
        ``output`` of a plan in YAML, the answer of an ask.

        Raises: TaskFailedError, it failed, was cancelled or is paused: says which step and why; UnavailableError.
        """
        found = await self.wait()
        if found.status is not TaskStatus.COMPLETED:
            raise TaskFailedError(self.id, found.status, _why(found))
        value = found.answer if found.kind == "ask" else found.output
        return cast("R", value) if self._read is None else self._read(value)

    async def events(self) -> AsyncGenerator[StepChange]:
        """Yield each step as it is, then again after each of its changes, until the task has ended. Raises:
        NotFoundError.
        """
        session_id = (await self._task()).session_id
        watch, seen = TaskWatch(self.id, self._store), 0
        with self._service.feeds.follow(
            ("task", self.id), watch.look, lambda: self._service.subscriptions.session(session_id)
        ) as following:
            while not (watch.is_over and seen == watch.version):
                watch, _version = await following.next()
                frame, seen = watch.since(seen), watch.version
                for step in json.loads(frame.partition(b"data: ")[2])["steps"]:
                    yield StepChange(
                        **{name: step.get(name) for name in StepChange.__struct_fields__ if name != "status"},
                        status=StepStatus(step["status"]),
                    )

    # -- questions
    async def questions(self) -> Sequence[AnswerableApproval]:
        """Return the questions that wait for an answer in the task's session, oldest first. Raises: NotFoundError."""
        session_id, caller = (await self._task()).session_id, await self.link.caller()
        with raised_as_ours():
            reply = await list_approvals(self._service, caller, _stays, session=session_id, limit=MOST_QUESTIONS)
        return cast("Page[AnswerableApproval]", reply.document).items

    async def answer(self, question: AnswerableApproval, choice: Verdict, *, reason: str = "") -> None:
        """Answer a question as it was shown; the first answer counts.

        Raises: ConflictError, somebody was first, or the answer is not one that is offered; StartedByRunError.
        """
        await check_person(self._store.sessions, "answer a question")
        with raised_as_ours():
            body = AnswerBody(choice=choice, input_digest=question.input_digest, reason=reason)
            await answer_approval(self._service, await self.link.caller(), _stays, question.id, body)

    # -- control
    async def pause(self, *, reason: str = "") -> None:
        """Let nothing of the task start; what runs is handed back."""
        await self._tasks.pause(await self._task(), reason=reason)

    async def resume(self, *, model: str = "", budget: str = "", limits: Mapping[str, Json] | None = None) -> None:
        """Continue a paused task, or rerun the steps of an ended one that did not complete.

        ``model`` replaces the model of the agent steps that run again. ``budget`` is what its session may use in all
        from now on, as in :meth:`Soong.run`. ``limits`` sets limits of its plan by their names there, in all from the
        task's beginning.

        Raises:
            UsageError: the budget or a limit cannot be read, or the plan has no limits; nothing was changed.
            StartedByRunError: a run started this program, and a run cannot change a budget.
        """
        of_session, of_task = parse_budget(budget), limits_from(limits or {}, "limits")
        if budget or limits:
            await check_person(self._store.sessions, "change a budget")
        task = await self._task()
        await raise_limits(self._store.budgets, task, of_session=of_session, of_task=of_task)
        await self._tasks.resume(task, model=model)

    async def retry(self, *, from_step: str = "") -> None:
        """Run what did not complete again; with ``from_step`` also that step and all that came of it."""
        await self._tasks.retry(await self._task(), from_step=from_step)

    async def cancel(self, *, reason: str = "") -> None:
        """Cancel the task: nothing of it starts any more, what runs is stopped."""
        await self._tasks.cancel(await self._task(), reason=reason)

    async def set_priority(self, priority: int, steps: Sequence[str] = ()) -> None:
        """Change the priority of steps, higher first; of all that have not ended, where none is named."""
        await self._tasks.set_priority(await self._task(), priority, steps)

    async def abort_run(self, run_id: str, call: str = "", *, reason: str = "", goes_on: bool = False) -> None:
        """End a run with its tool calls, as ``aborted_tools``; where its agent ``goes_on``, one call alone (EXE-07).

        Raises: ConflictError when the call, or any, is not under way, with those that are.
        """
        run = await self._store.runs.run(run_id)
        task = await self._store.tasks.task(run.identity.task_id)
        await self._tasks.abort(task, run.id, call, reason=reason, goes_on=goes_on)

    async def dispatch_worker(
        self,
        *,
        count: int = 1,
        max_steps: int | None = None,
        agent: str = "",
        model: str = "",
        instructions: str = "",
        allowed_tools: Sequence[str] | None = None,
        script: str = "",
        pool: str = "",
    ) -> None:
        """Let ``count`` more runs take the task's ready steps one by one, each at most ``max_steps``.

        They do what steps of ``claim: pull`` wait for, with this agent, model and these tools.
        """
        await self._tasks.dispatch_worker(
            await self._task(),
            count=count,
            max_steps=max_steps,
            agent=agent,
            model=model,
            instructions=instructions,
            allowed_tools=allowed_tools,
            script=script,
            pool=pool,
        )

    async def update(self, change: Mapping[str, Json]) -> None:
        """Change a running task, all or nothing: the arguments of the tool ``agent.task_update``."""
        await self._tasks.update(await self._task(), change)

    @property
    def _tasks(self) -> TaskService:
        return self._service.client.tasks

    async def _task(self) -> Task:
        return await self._store.tasks.task(self.id)

    async def until_over(self, session_id: str) -> TaskStatus:
        """Return when nothing more happens to the task by itself. Raises: UnavailableError."""
        store, next_s, lived_s, home = self._store, 0.0, time.monotonic(), self._service.client.settings.home

        async def is_owned() -> bool:
            return bool(await store.sessions.owners())

        stall_reasons = StallReasons(
            self.id, lambda: self.link.control or None, lambda: self._is_paused(session_id), is_owned
        )

        async def look() -> None:
            nonlocal next_s, lived_s
            began_s = time.monotonic()
            if began_s < next_s:
                return
            record = read_record(home) if self.link.control else None
            if not self.link.control or (record is not None and record.is_process_alive):
                lived_s = began_s
            elif began_s > lived_s + timing.GRACE_S:  # no other has taken its place
                raise UnavailableError(f"the service has ended; continue the task: {program()} resume {self.id}")
            view, workers = await snapshot_of(store, self.id), await store.sessions.workers()
            next_s = began_s + PAUSE_PER_LOOK * (time.monotonic() - began_s)
            lacking = [(step.step_id, step.needs) for step in view.steps if step.key in view.lacks]
            await stall_reasons.refresh(
                is_manned=any(worker.state is ProcessState.LIVE for worker in workers),
                has_begun=any(step.fence for step in view.steps),
                missing=missing_function(lacking, workers),
                is_over=view.task.status.is_terminal,
            )

        return await until_over(self._service, self.id, session_id, look)

    async def _is_paused(self, session_id: str) -> bool:
        """Pause a task that nobody can run; return whether nothing of it runs then."""
        try:
            async with asyncio.timeout(timing.RELEASE_LIMIT_S):
                await self._tasks.pause(await self._task(), reason="no worker can run it")
                await until_over(self._service, self.id, session_id)
        except (TimeoutError, UnavailableError):
            return False
        return True


async def _stays() -> bool:
    """Say that a program in the same process has not left."""
    return False


def _why(found: TaskResult) -> str:
    """Return the reason of the task, or the first failed step with its error."""
    failed = next((step for step in found.steps if step.status is StepStatus.FAILED), None)
    if found.status is not TaskStatus.FAILED or failed is None or failed.error is None:
        return found.reason
    return f"step {failed.id!r}: {failed.error.type}: {failed.error.message}"
