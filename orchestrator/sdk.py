"""The service from a program: the same client as ``soong run``, with a function in place of the terminal."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from soong.orchestrator.approvals.approval import check_person
from soong.orchestrator.client.catalog import Catalogue, deployed_hint, deployed_modules
from soong.orchestrator.client.client import Client, Submission, TaskSnapshot
from soong.orchestrator.client.explanation import preview_of
from soong.orchestrator.client.outcome import outcome_of
from soong.orchestrator.client.stall_reasons import StallReasons
from soong.orchestrator.client.submission import (
    SessionTerms,
    ask_submission,
    existing_folder,
    program_folder,
    submission,
)
from soong.orchestrator.client.tail import listen_to_answers
from soong.orchestrator.client.task_limits import limits_from, raise_limits
from soong.orchestrator.embedded.service_file import ServiceRecord
from soong.orchestrator.embedded.starter import attach
from soong.orchestrator.schemas.task import TaskResult
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.texts import require_text
from soong.shared.engine.runs.budgets import parse_budget
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.plan.kinds.agent import read_settings
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR, Plan
from soong.shared.engine.tasks.plan.reader import load_plan, plan_from_json
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.engine.wire.events import AnswerDelta
from soong.shared.engine.wire.notifier import Subscription
from soong.shared.permissions.consent import Preview, StepGrant
from soong.shared.permissions.elicitation import ElicitationCallback
from soong.shared.permissions.request import PermissionCallback

PlanSource: TypeAlias = str | Path | Mapping[str, Json]
"""A plan file, or the plan itself as a mapping."""


class Soong:
    """A connection to a service. Made by :meth:`embedded` or :meth:`connect`, each a context to be entered."""

    def __init__(self, client: Client, settings: Settings, record: ServiceRecord | None = None) -> None:
        self._client = client
        self._record = record
        self._settings = settings
        self._catalogue = Catalogue.of(settings)

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
            async with _client(attachment.settings) as client:
                yield cls(client, attachment.settings, attachment.record)
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
        async with _client(loaded) as client:
            yield cls(client, loaded)

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
        terms = self._terms(project, None, allow, "", "", None)
        catalogue = self._catalogue.at(terms.project)
        return preview_of(self._read(plan, catalogue), inputs or {}, terms, catalogue, self._settings)

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

        Cancelling it leaves the task to the service; :meth:`result` shows its state later.

        Raises:
            UsageError: the plan, an input or a rule is wrong; nothing was written.
            UnavailableError: no worker can run it, and why; the task has been paused.
            StartedByRunError: a run started this program, which therefore neither answers nor allows anything.
        """
        callback = _answering(permission_callback, elicitation_callback)
        if callback or allow or step_grants:
            await check_person(self._client.store.sessions, "answer, or allow, what a plan asks for")
        terms = self._terms(project, callback, allow, model, budget, settings, max_concurrent)
        prepared = self._prepare(plan, inputs or {}, step_grants, terms)
        return await self._followed(prepared, callback)

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
        callback = _answering(permission_callback, elicitation_callback)
        if callback or allow:
            await check_person(self._client.store.sessions, "answer, or allow, what an agent asks for")
        terms = self._terms(project, callback, allow, model, budget, settings, max_workers)
        prepared = ask_submission(goal, agent, terms, self._catalogue, self._client.clock)
        return await self._followed(prepared, callback, on_answer)

    async def _followed(
        self,
        prepared: Submission,
        callback: PermissionCallback | None,
        on_answer: Callable[[AnswerDelta], object] | None = None,
    ) -> TaskResult:
        """Write a submission and follow it to its end, answering its questions by the callback."""
        session, task = prepared.session, prepared.task
        helpers: list[asyncio.Task[None]] = []
        try:
            if on_answer:
                helpers.append(await self._listening(task.root_run.identity.run_id, on_answer))
            await self._client.submit(prepared)
            # Only now: it would take the interpreter from the thread that writes the rows. A look follows it.
            opening = asyncio.create_task(self._client.subscriber.subscribe_session(session.id))
            if callback:
                helpers.append(self._client.attach(session, callback, channel="sdk"))
            view = await self._last_view(task.id, new=opening)
        finally:
            await _cancelled(helpers)
        if view.task.status is TaskStatus.COMPLETED and not session.closes_with_task:
            await self._client.close_when_done(view.task)
        return await self._result(view)

    async def _listening(self, run_id: str, on_answer: Callable[[AnswerDelta], object]) -> "asyncio.Task[None]":
        """Begin to pass on a run's answers, before it can begin to write one."""
        is_listening = asyncio.Event()
        listening = asyncio.create_task(
            listen_to_answers(self._client.subscriber, run_id, on_answer, is_listening=is_listening)
        )
        listening.add_done_callback(lambda _: is_listening.set())
        await is_listening.wait()
        return listening

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
    ) -> str:
        """Start a plan and return its task's id at once; nobody is asked, what no ``allow`` rule covers is denied.

        Raises:
            UsageError: the plan, an input or a rule is wrong; nothing was written.
            StartedByRunError: a run started this program, which therefore allows nothing.
        """
        if allow or step_grants:
            await check_person(self._client.store.sessions, "allow what a plan asks for")
        terms = self._terms(project, None, allow, model, budget, settings, max_concurrent)
        prepared = self._prepare(plan, inputs or {}, step_grants, terms)
        await self._client.submit(prepared)
        return prepared.task.id

    async def wait(self, task_id: str) -> TaskResult:
        """Wait until a task has ended or is paused. Raises: NotFoundError."""
        task = await self._task(task_id)
        return await self._result(await self._last_view(task.id))

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
        task = await self._task(task_id)
        return await self._result(await self._client.view(task.id))

    async def _result(self, view: TaskSnapshot) -> TaskResult:
        return TaskResult.of_outcome(await outcome_of(self._client.store, view, self._settings.runs))

    async def _last_view(self, task_id: str, *, new: "asyncio.Task[Subscription] | None" = None) -> TaskSnapshot:
        last: TaskSnapshot | None = None
        stall_reasons = StallReasons(self._client, lambda: self._record)
        async with contextlib.aclosing(self._client.follow(task_id, new=new, for_result=True)) as views:
            async for view in views:
                await stall_reasons.refresh(view)
                last = view
        assert last is not None
        return last

    def _terms(
        self,
        project: str | Path,
        callback: PermissionCallback | None,
        allow: Sequence[str],
        model: str,
        budget: str,
        settings: Mapping[str, Json] | None,
        max_concurrent: int = 0,
    ) -> SessionTerms:
        return SessionTerms(
            project=Path(project),
            cwd=program_folder(existing_folder(Path(project))),
            approval_mode=ApprovalMode.DENY if callback is None else ApprovalMode.PROMPT,
            model=model or self._settings.model,
            allow=allow,
            principal=self._settings.principal,
            budget=(budget,),
            settings=read_settings(settings or {}),
            max_concurrent=max_concurrent,
        )

    def _prepare(
        self, plan: PlanSource, inputs: Mapping[str, Json], grants: Sequence[StepGrant | str], terms: SessionTerms
    ) -> Submission:
        catalogue = self._catalogue.at(terms.project)
        read = self._read(plan, catalogue)
        shown = [grant for grant in grants if isinstance(grant, StepGrant)]
        if named := [grant for grant in grants if isinstance(grant, str)]:
            shown += preview_of(read, inputs, terms, catalogue, self._settings).grants(named)
        return submission(read, inputs, replace(terms, step_grants=shown), catalogue, self._client.clock)

    def _read(self, plan: PlanSource, catalogue: Catalogue) -> Plan:
        known = replace(catalogue.known(deployed_modules(self._settings)), module_hint=deployed_hint(self._settings))
        return load_plan(plan, known) if isinstance(plan, str | Path) else plan_from_json(plan, "plan", known)


def _answering(
    permission: PermissionCallback | None, elicitation: ElicitationCallback | None
) -> PermissionCallback | None:
    """Return the one callback of a session of which a program has given two."""
    if elicitation is None:
        return permission
    from soong.orchestrator.approvals.responders import answering  # most programs answer no servers

    return answering(permission, elicitation)


async def _cancelled(helpers: Sequence["asyncio.Task[None]"]) -> None:
    """Cancel tasks and wait until they have closed what they opened."""
    for helper in helpers:
        helper.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)


def _with_program_folder(settings: Settings) -> Settings:
    """Let the service find step functions and tools next to the program, as the program itself does."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if settings.import_path or not file:
        return settings
    folders = dict.fromkeys((*settings.import_folders, str(Path(file).absolute().parent)))
    return settings.model_copy(update={"import_path": os.pathsep.join(folders)})


@contextlib.asynccontextmanager
async def _client(settings: Settings) -> AsyncIterator[Client]:
    from soong.orchestrator.client.bootstrap import open_client

    async with await open_client(settings) as client:
        yield client
