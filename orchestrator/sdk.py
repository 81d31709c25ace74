"""The service from a program: the operations in its own process, with a function in place of the terminal."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from soong.orchestrator.approvals.approval import check_person, provenance_here
from soong.orchestrator.approvals.responders import answering
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.client.program import existing_folder, program_folder
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.client.stall_reasons import StallReasons
from soong.orchestrator.client.task_limits import limits_from, raise_limits
from soong.orchestrator.embedded.child import modules_text
from soong.orchestrator.embedded.service_file import ServiceRecord
from soong.orchestrator.embedded.starter import attach
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.events import follow_lines, pass_on_answers
from soong.orchestrator.operations.feeds import PAUSE_PER_LOOK
from soong.orchestrator.operations.outcome import missing_function, read_result, snapshot_of
from soong.orchestrator.operations.preparation import Prepare, Work, prepared, prepared_ask, prepared_here
from soong.orchestrator.operations.problems import raised_as_ours
from soong.orchestrator.operations.progress import until_over
from soong.orchestrator.operations.responder import ProgramResponder
from soong.orchestrator.operations.submissions import AskBody, StepGrantBody, SubmissionBody, previewed
from soong.orchestrator.schemas.task import TaskResult
from soong.shared.core import timing
from soong.shared.core.errors import ConflictError, InvalidConfigError, UnavailableError
from soong.shared.core.jsontext import Json, require_text
from soong.shared.core.log_lines import LogLine
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.runs.budgets import parse_budget
from soong.shared.engine.sessions.session import ApprovalMode, ProcessState
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR
from soong.shared.engine.tasks.plan.reader import plan_text
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.wire.notifier import AnswerDelta
from soong.shared.permissions.consent import Preview, StepGrant
from soong.shared.permissions.request import ElicitationCallback, PermissionCallback

PlanSource: TypeAlias = str | Path | Mapping[str, Json]
"""A plan file, or the plan itself as a mapping."""


class Soong:
    """A connection to a service. Made by :meth:`embedded` or :meth:`connect`, each a context to be entered."""

    def __init__(self, client: Client, settings: Settings, record: ServiceRecord | None = None) -> None:
        self._client = client
        self._service = ServiceParts(client, open_metrics(settings), open_artifacts(settings))
        self._record = record
        self._settings = settings.of_user
        self._catalogue = Catalogue.of(settings).with_deployed_modules(settings)

    @classmethod
    @contextlib.asynccontextmanager
    async def embedded(cls, **settings: object) -> AsyncIterator["Soong"]:
        """Use the living service of the home, or an ephemeral one that ends when nobody needs it any more.

        ``settings`` are those of the environment without their prefix, such as ``agent_home`` and ``workers``; a
        service that runs already keeps its own.

        Raises:
            InvalidConfigError: a wrong setting, or a deployment is named: then use :meth:`connect`.
            UnavailableError: the service did not start; says why.
        """
        loaded = load_settings(**settings)
        if loaded.database_url:
            raise InvalidConfigError("SOONG_DATABASE_URL names a deployment; use Soong.connect(), or unset it")
        attachment = await attach(_with_program_folder(loaded))
        try:
            async with cls._opened(attachment.settings, attachment.record) as soong:
                yield soong
        finally:
            await attachment.release()
            await attachment.wait_until_gone(timing.END_LIMIT_S)

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, database_url: str = "", redis_url: str = "", **settings: object) -> AsyncIterator["Soong"]:
        """Use a deployment by its two URLs, or by SOONG_DATABASE_URL and SOONG_REDIS_URL.

        Raises:
            InvalidConfigError: a wrong setting, or one of the URLs is missing.
            UnavailableError, SchemaVersionError: the database cannot be used.
        """
        loaded = load_settings(database_url=database_url or None, redis_url=redis_url or None, **settings)
        if not loaded.database_url:
            raise InvalidConfigError("no database is named: pass database_url or set SOONG_DATABASE_URL")
        async with cls._opened(loaded) as soong:
            yield soong

    @classmethod
    @contextlib.asynccontextmanager
    async def _opened(cls, settings: Settings, record: ServiceRecord | None = None) -> AsyncIterator["Soong"]:
        async with await open_client(settings) as client:
            soong = cls(client, settings, record)
            try:
                yield soong
            finally:
                await soong._service.close()

    def preview(
        self,
        plan: PlanSource,
        inputs: Mapping[str, Json] | None = None,
        *,
        allow: Sequence[str] = (),
        project: str | Path = ".",
    ) -> Preview:
        """Return what the steps of a plan will ask for, each scope resolved and judged. Nothing is started.

        ``preview.grants(["step"])`` is the yes to what is shown of a step, for ``step_grants`` of :meth:`run`.

        Raises:
            UsageError: the plan, an input or a rule is wrong.
        """
        with raised_as_ours():
            return previewed(
                self._body(plan, inputs, (), self._common(project, None, allow)), self._catalogue, self._settings
            )

    async def run(
        self,
        plan: PlanSource,
        inputs: Mapping[str, Json] | None = None,
        *,
        permission_callback: PermissionCallback | None = None,
        elicitation_callback: ElicitationCallback | None = None,
        allow: Sequence[str] = (),
        step_grants: Sequence[StepGrant | str] = (),
        project: str | Path = ".",
        model: str = "",
        max_concurrent: int = 0,
        budget: str = "",
        settings: Mapping[str, Json] | None = None,
        tags: Sequence[str] = (),
    ) -> TaskResult:
        """Run a plan to its end. A failed step is an outcome, not an exception.

        ``project`` is the folder that the steps work in. Relative paths start at the current folder if it lies in the
        project, otherwise at the project, as in :func:`open_tools`.
        ``permission_callback`` is the one voice that grants in this session; without it only ``allow`` rules
        (``tool:scope``) do, and what would ask is denied. ``elicitation_callback`` answers what MCP servers ask during
        calls; without it the other callback does. ``step_grants`` are steps whose ``permissions`` are allowed
        beforehand, for that step alone: as they were shown (:meth:`preview`), or by id as they are now. At most
        ``max_concurrent`` of its steps run at once; 0 takes the settings' limit, if there is one. ``budget`` is what
        its agents may use in all, such as ``2usd``, ``200ktok`` or ``2usd,200ktok``; empty: the configuration's.
        ``settings`` say how the models of all its agents are asked, such as ``{"temperature": 0}``.
        ``tags`` are words by which lists are filtered, besides those of the plan.

        Cancelling it leaves the task to the service; :meth:`result` shows its state later.

        Raises:
            UsageError: the plan, an input or a rule is wrong; nothing was written.
            UnavailableError: no worker can run it, and why; the task has been paused.
            StartedByRunError: a run started this program, which therefore neither answers nor allows anything.
        """
        callback = answering(permission_callback, elicitation_callback)
        if callback or allow or step_grants:
            await check_person(self._client.store.sessions, "answer, or allow, what a plan asks for")
        common = self._common(project, callback, allow, model, budget, settings, max_concurrent, tags)
        body = self._body(plan, inputs, step_grants, common)
        return await self._followed(await self._prepared(prepared, body), callback)

    async def ask(
        self,
        goal: str,
        *,
        agent: str = ORCHESTRATOR,
        model: str = "",
        permission_callback: PermissionCallback | None = None,
        elicitation_callback: ElicitationCallback | None = None,
        allow: Sequence[str] = (),
        project: str | Path = ".",
        max_workers: int = 0,
        budget: str = "",
        settings: Mapping[str, Json] | None = None,
        on_answer: Callable[[AnswerDelta], object] | None = None,
        tags: Sequence[str] = (),
    ) -> TaskResult:
        """Give an agent a goal and wait for its end; ``answer`` of the result is what it answers.

        ``agent`` is the id of its definition, ``model`` that of agents whose definitions name none. At most
        ``max_workers`` agents of it run on workers at once; 0 takes the settings' limit, if there is one. ``on_answer``
        gets what the agent's model writes while it writes it; some pieces may be missing, and a new turn or an answer
        that broke off starts at 0 (:meth:`AnswerDelta.applied_to`). ``settings`` say how its own model is asked.
        Everything else is as for :meth:`run`.

        Raises:
            UsageError: the goal is empty, no model is named, or a rule is wrong; nothing was written.
            NotFoundError: the agent definition is unknown.
            UnavailableError: no worker can run what it started, and why; the task has been paused.
            StartedByRunError: a run started this program, which therefore neither answers nor allows anything.
        """
        callback = answering(permission_callback, elicitation_callback)
        if callback or allow:
            await check_person(self._client.store.sessions, "answer, or allow, what an agent asks for")
        common = self._common(project, callback, allow, model, budget, settings, max_workers, tags)
        body = AskBody.model_construct(goal=goal, agent=agent, **common)
        return await self._followed(await self._prepared(prepared_ask, body), callback, on_answer)

    async def _followed(
        self,
        ready: Submission,
        callback: PermissionCallback | None,
        on_answer: Callable[[AnswerDelta], object] | None = None,
    ) -> TaskResult:
        """Write a submission and follow it to its end, answering its questions by the callback."""
        session, task = ready.session, ready.task
        helpers: list[asyncio.Task[None]] = []
        listener = self._service.subscriptions.session(session.id)  # it opens while the submission is written
        try:
            if on_answer:
                # It begins before the run can begin to write an answer.
                run_id = task.root_run.identity.run_id
                answers = self._service.subscriptions.answer(run_id)
                helpers.append(asyncio.create_task(pass_on_answers(answers, run_id, on_answer)))
                await answers.opened(timing.SHORT_LIMIT_S)
            await self._client.submit(ready)
            if callback:
                provenance = await provenance_here(self._client.store.sessions)
                caller = local_caller(self._settings.principal, provenance, "sdk", self._client.clock.now_us())
                responder = ProgramResponder(self._service, caller, session, callback)
                helpers.append(asyncio.create_task(responder.run()))
            status = await self._until_over(task.id, session.id)
        finally:
            await cancelled(*helpers)
            await listener.close()
        if status is TaskStatus.COMPLETED and not session.closes_with_task:
            await self._close_when_done(session.id)
        return await self.result(task.id)

    async def submit(
        self,
        plan: PlanSource,
        inputs: Mapping[str, Json] | None = None,
        *,
        allow: Sequence[str] = (),
        step_grants: Sequence[StepGrant | str] = (),
        project: str | Path = ".",
        model: str = "",
        max_concurrent: int = 0,
        budget: str = "",
        settings: Mapping[str, Json] | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        """Start a plan and return its task's id at once; nobody is asked, what no ``allow`` rule covers is denied.

        Raises:
            UsageError: the plan, an input or a rule is wrong; nothing was written.
            StartedByRunError: a run started this program, which therefore allows nothing.
        """
        if allow or step_grants:
            await check_person(self._client.store.sessions, "allow what a plan asks for")
        common = self._common(project, None, allow, model, budget, settings, max_concurrent, tags)
        body = self._body(plan, inputs, step_grants, common)
        ready = await self._prepared(prepared, body)
        await self._client.submit(ready)
        return ready.task.id

    async def wait(self, task_id: str) -> TaskResult:
        """Wait until a task has ended or is paused. Raises: NotFoundError."""
        task = await self._task(task_id)
        await self._until_over(task.id, task.session_id)
        return await self.result(task.id)

    async def pause(self, task_id: str, *, reason: str = "") -> None:
        """Let nothing of a task start; what runs is handed back.

        All commands for a task raise: NotFoundError; ConflictError, its owner's refusal; UnavailableError when no
        orchestrator did it in time (it stays asked for).
        """
        await self._tasks.pause(await self._task(task_id), reason=reason)

    async def resume(
        self, task_id: str, *, model: str = "", budget: str = "", limits: Mapping[str, Json] | None = None
    ) -> None:
        """Continue a paused task, or rerun the steps of an ended one that did not complete.

        ``model`` replaces the model of the agent steps that run again. ``budget`` is what its session may use in all
        from now on, as in :meth:`run`. ``limits`` sets limits of its plan by their names there, in all from the task's
        beginning.

        Raises:
            UsageError: the budget or a limit cannot be read, or the plan has no limits; nothing was changed.
            StartedByRunError: a run started this program, and a run cannot change a budget.
        """
        of_session, of_task = parse_budget(budget), limits_from(limits or {}, "limits")
        if budget or limits:
            await check_person(self._client.store.sessions, "change a budget")
        task = await self._task(task_id)
        await raise_limits(self._client.store.budgets, task, of_session=of_session, of_task=of_task)
        await self._tasks.resume(task, model=model)

    async def retry(self, task_id: str, *, from_step: str = "") -> None:
        """Run what did not complete again; with ``from_step`` also that step and all that came of it."""
        await self._tasks.retry(await self._task(task_id), from_step=from_step)

    async def cancel(self, task_id: str, *, reason: str = "") -> None:
        """Cancel a task: nothing of it starts any more, what runs is stopped."""
        await self._tasks.cancel(await self._task(task_id), reason=reason)

    async def set_priority(self, task_id: str, priority: int, steps: Sequence[str] = ()) -> None:
        """Change the priority of steps, higher first; of all that have not ended, where none is named."""
        await self._tasks.set_priority(await self._task(task_id), priority, steps)

    async def abort_run(self, run_id: str, call: str = "", *, reason: str = "", goes_on: bool = False) -> None:
        """End a run with its tool calls, as ``aborted_tools``; where its agent ``goes_on``, one call alone (EXE-07).

        Raises: ConflictError when the call, or any, is not under way, with those that are.
        """
        run = await self._client.store.runs.run(run_id)
        task = await self._task(run.identity.task_id)
        await self._tasks.abort(task, run.id, call, reason=reason, goes_on=goes_on)

    async def dispatch_worker(
        self,
        task_id: str,
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
            await self._task(task_id),
            count=count,
            max_steps=max_steps,
            agent=agent,
            model=model,
            instructions=instructions,
            allowed_tools=allowed_tools,
            script=script,
            pool=pool,
        )

    async def update(self, task_id: str, change: Mapping[str, Json]) -> None:
        """Change a running task, all or nothing: the arguments of the tool ``agent.task_update``."""
        await self._tasks.update(await self._task(task_id), change)

    @property
    def _tasks(self) -> TaskService:
        return self._client.tasks

    async def _task(self, task_id: str) -> Task:
        require_text("the task id", task_id)
        return await self._client.store.tasks.task(task_id)

    async def result(self, task_id: str) -> TaskResult:
        """Return the current state of a task. Raises: NotFoundError."""
        require_text("the task id", task_id)
        return await read_result(self._service.store, task_id, self._service.client.settings.runs)

    async def logs(self, run_id: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[LogLine]:
        """Yield the lines that the code of a run printed, logged and raised, after one; without secrets.

        ``follow``: continue until the run has ended. Raises: NotFoundError.
        """
        require_text("the run id", run_id)
        await self._client.store.runs.run(run_id)
        if follow:
            async with contextlib.aclosing(follow_lines(self._service, run_id, after=after)) as following:
                async for line in following:
                    yield line
            return
        while page := await self._client.store.runs.lines(run_id, after=after):
            for line in page:
                yield line
            after = page[-1].number

    async def _until_over(self, task_id: str, session_id: str) -> TaskStatus:
        store, next_s = self._client.store, 0.0

        async def is_owned() -> bool:
            return bool(await store.sessions.owners())

        stall_reasons = StallReasons(
            task_id,
            lambda: None if self._record is None else self._record.control,
            modules_text(self._settings.functions, self._settings.import_folders),
            lambda: self._is_paused(task_id, session_id),
            is_owned,
        )

        async def look() -> None:
            nonlocal next_s
            began_s = time.monotonic()
            if began_s < next_s:
                return
            view, workers = await snapshot_of(store, task_id), await store.sessions.workers()
            next_s = began_s + PAUSE_PER_LOOK * (time.monotonic() - began_s)
            lacking = [(step.step_id, step.needs) for step in view.steps if step.key in view.lacks]
            await stall_reasons.refresh(
                is_manned=any(worker.state is ProcessState.LIVE for worker in workers),
                has_begun=any(step.fence for step in view.steps),
                missing=missing_function(lacking, workers),
                is_over=view.task.status.is_terminal,
            )

        return await until_over(self._service, task_id, session_id, look)

    async def _is_paused(self, task_id: str, session_id: str) -> bool:
        """Pause a task that nobody can run; return whether nothing of it runs then."""
        try:
            async with asyncio.timeout(timing.RELEASE_LIMIT_S):
                await self._tasks.pause(await self._task(task_id), reason="no worker can run it")
                await until_over(self._service, task_id, session_id)
        except (TimeoutError, UnavailableError):
            return False
        return True

    async def _close_when_done(self, session_id: str) -> None:
        """Close a session that does not close with its tasks, once all are completed: a job may read it then."""
        tasks = await self._client.store.tasks.list_tasks(session_id=session_id)
        if all(one.status is TaskStatus.COMPLETED for one in tasks):
            # Asked for in any case, and done by the next owner.
            with contextlib.suppress(ConflictError, UnavailableError, TimeoutError):
                async with asyncio.timeout(timing.CLOSE_LIMIT_S):
                    await self._tasks.close_session(session_id)

    def _body(
        self,
        plan: PlanSource,
        inputs: Mapping[str, Json] | None,
        grants: Sequence[StepGrant | str],
        common: Mapping[str, Any],
    ) -> SubmissionBody:
        # Not validated: the reading of the plan says what is wrong with it, in its own words.
        given: Any = {"plan": plan, "source": "plan", "inputs": inputs or {}, "step_grants": [], **common}
        if isinstance(plan, str | Path):
            given |= {"plan": plan_text(plan), "source": str(plan)}
        body = SubmissionBody.model_construct(**given)
        shown = [grant for grant in grants if isinstance(grant, StepGrant)]
        if named := [grant for grant in grants if isinstance(grant, str)]:
            with raised_as_ours():
                shown += previewed(body, self._catalogue, self._settings).grants(named)
        consents = [StepGrantBody.model_construct(step=one.step_id, grant_digest=one.digest) for one in shown]
        return body.model_copy(update={"step_grants": consents})

    def _common(
        self,
        project: str | Path,
        callback: PermissionCallback | None,
        allow: Sequence[str],
        model: str = "",
        budget: str = "",
        settings: Mapping[str, Json] | None = None,
        max_concurrent: int = 0,
        tags: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what plans and goals are submitted with."""
        folder = existing_folder(Path(project))
        return {
            "project": str(folder),
            "cwd": str(program_folder(folder)),
            "approval_mode": ApprovalMode.DENY if callback is None else ApprovalMode.PROMPT,
            "allow": allow,
            "model": model,
            "budget": budget,
            "settings": settings or {},
            "max_concurrent": max_concurrent,
            "tags": tags,
        }

    async def _prepared(self, prepare: Prepare[Work], body: Work) -> Submission:
        return await asyncio.to_thread(prepared_here, prepare, body, self._catalogue, self._settings)


def _with_program_folder(settings: Settings) -> Settings:
    """Let the service find step functions and tools next to the program, as the program itself does."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if settings.import_path or not file:
        return settings
    folders = dict.fromkeys((*settings.import_folders, str(Path(file).absolute().parent)))
    return settings.model_copy(update={"import_path": os.pathsep.join(folders)})
