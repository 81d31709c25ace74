"""The service from a program: the operations in its own process, with a function in place of the terminal."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from soong.orchestrator.approvals.approval import check_person
from soong.orchestrator.approvals.responders import answering
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.client.program import existing_folder, program_folder
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.embedded.own_modules import keep_modules
from soong.orchestrator.embedded.starter import attach
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.events import follow_lines, pass_on_answers
from soong.orchestrator.operations.preparation import Prepare, Work, prepared, prepared_ask, prepared_here
from soong.orchestrator.operations.problems import raised_as_ours
from soong.orchestrator.operations.responder import ProgramResponder
from soong.orchestrator.operations.submissions import AskBody, StepGrantBody, SubmissionBody, previewed
from soong.orchestrator.operations.tasks import list_tasks
from soong.orchestrator.schemas.task import TaskResult, TaskSchema
from soong.orchestrator.sdk.task import ServiceLink, TaskHandle
from soong.shared.core import timing
from soong.shared.core.errors import ConflictError, InvalidConfigError, UnavailableError
from soong.shared.core.jsontext import Json, require_text
from soong.shared.core.log_lines import LogLine
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.functions import known_functions, versions_of
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR
from soong.shared.engine.tasks.plan.reader import plan_text
from soong.shared.engine.tasks.python_plan.definition import PlanDefinition
from soong.shared.engine.tasks.python_plan.function_step import step_modules
from soong.shared.engine.tasks.python_plan.signature import Typed
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.wire.notifier import AnswerDelta
from soong.shared.permissions.consent import Preview, StepGrant
from soong.shared.permissions.request import ElicitationCallback, PermissionCallback
from soong.shared.toolsets.modules import refuse_at_import

PlanSource: TypeAlias = str | Path | Mapping[str, Json] | PlanDefinition
"""A plan file, the plan itself as a mapping, or a function with ``@plan``."""

IN_PROCESS: Final[list[Callable[[], AbstractAsyncContextManager["Soong"]]]] = []
"""A service that replaces all others in this process (soong.testing); the last one counts."""


class Soong:
    """A connection to a service. Made by :meth:`embedded` or :meth:`connect`, each a context to be entered."""

    def __init__(self, client: Client, settings: Settings, control: str = "") -> None:
        self._client = client
        self._service = ServiceParts(client, open_metrics(settings), open_artifacts(settings))
        self._settings = settings.of_user
        self._link = ServiceLink(self._service, settings.principal, control)
        self._catalogue = Catalogue.of(settings).with_deployed_modules(settings)

    @classmethod
    def embedded(cls, **settings: object) -> AbstractAsyncContextManager["Soong"]:
        """Use the living service of the home, or an ephemeral one that ends when nobody needs it any more.

        ``settings`` are those of the environment without their prefix, such as ``agent_home`` and ``workers``; a
        service that runs already keeps its own.

        Raises:
            InvalidConfigError: a wrong setting, or a deployment is named: then use :meth:`connect`.
            UnavailableError: the service did not start; says why.
        """
        return _entered(lambda: cls._of_home(load_settings(**settings)))

    @classmethod
    @contextlib.asynccontextmanager
    async def _of_home(cls, loaded: Settings) -> AsyncIterator["Soong"]:
        if loaded.database_url:
            raise InvalidConfigError("SOONG_DATABASE_URL names a deployment; use Soong.connect(), or unset it")
        attachment = await attach(with_program_folder(loaded))
        try:
            control = attachment.record.control if attachment.record is not None else ""
            async with cls._opened(attachment.settings, control) as soong:
                yield soong
        finally:
            await attachment.release()
            await attachment.wait_until_gone(timing.END_LIMIT_S)

    @classmethod
    def connect(
        cls, database_url: str = "", redis_url: str = "", **settings: object
    ) -> AbstractAsyncContextManager["Soong"]:
        """Use a deployment by its two URLs, or by SOONG_DATABASE_URL and SOONG_REDIS_URL.

        Raises:
            InvalidConfigError: a wrong setting, or one of the URLs is missing.
            UnavailableError, SchemaVersionError: the database cannot be used.
        """
        urls = {"database_url": database_url or None, "redis_url": redis_url or None}
        return _entered(lambda: cls._opened(load_settings(**urls, **settings)))

    @classmethod
    @contextlib.asynccontextmanager
    async def _opened(cls, settings: Settings, control: str = "") -> AsyncIterator["Soong"]:
        if not (settings.database_url or control):
            raise InvalidConfigError("no database is named: pass database_url or set SOONG_DATABASE_URL")
        async with await open_client(settings) as client:
            soong = cls(client, settings, control)
            try:
                yield soong
            finally:
                await soong._service.close()

    def preview(
        self,
        plan: PlanSource,
        inputs: Mapping[str, object] | None = None,
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
        inputs: Mapping[str, object] | None = None,
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

        Cancelling it leaves the task to the service; :meth:`tasks` finds it later.

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
        session, task = ready.session, self.task(ready.task.id)
        helpers: list[asyncio.Task[None]] = []
        listener = self._service.subscriptions.session(session.id)  # it opens while the submission is written
        try:
            if on_answer:
                # It begins before the run can begin to write an answer.
                run_id = ready.task.root_run.identity.run_id
                answers = self._service.subscriptions.answer(run_id)
                helpers.append(asyncio.create_task(pass_on_answers(answers, run_id, on_answer)))
                await answers.opened(timing.SHORT_LIMIT_S)
            await self._client.submit(ready)
            if callback:
                responder = ProgramResponder(self._service, await self._link.caller(), session, callback)
                helpers.append(asyncio.create_task(responder.run()))
            status = await task.until_over(session.id)
        finally:
            await cancelled(*helpers)
            await listener.close()
        if status is TaskStatus.COMPLETED and not session.closes_with_task:
            await self._close_when_done(session.id)
        return await task.details()

    async def start(
        self,
        plan: PlanSource,
        inputs: Mapping[str, object] | None = None,
        *,
        allow: Sequence[str] = (),
        step_grants: Sequence[StepGrant | str] = (),
        project: str | Path = ".",
        model: str = "",
        max_concurrent: int = 0,
        budget: str = "",
        settings: Mapping[str, Json] | None = None,
        tags: Sequence[str] = (),
        approvals: Literal["inbox", "deny"] = "deny",
    ) -> TaskHandle[Any]:
        """Start a plan and return its task at once.

        With ``approvals="inbox"`` its questions wait for an answer by anyone with the right (:meth:`TaskHandle.answer`,
        ``soong approvals``, the console); otherwise nobody is asked, and what no ``allow`` rule covers is denied. All
        else is as for :meth:`run`.

        Raises:
            UsageError: the plan, an input or a rule is wrong; nothing was written.
            StartedByRunError: a run started this program, which therefore allows nothing.
        """
        if allow or step_grants:
            await check_person(self._client.store.sessions, "allow what a plan asks for")
        common = self._common(project, None, allow, model, budget, settings, max_concurrent, tags)
        common["approval_mode"] = ApprovalMode(approvals)
        body = self._body(plan, inputs, step_grants, common)
        ready = await self._prepared(prepared, body)
        await self._client.submit(ready)
        return TaskHandle(self._link, ready.task.id, plan.read if isinstance(plan, PlanDefinition) else None)

    def task(self, task_id: str) -> TaskHandle[Any]:
        """Return the handle of a task by its id; one that does not exist is refused when it is used."""
        return TaskHandle(self._link, task_id)

    async def tasks(
        self, *, status: Sequence[TaskStatus] = (), title: str = "", tag: str = "", since: str = "", limit: int = 50
    ) -> Sequence[TaskSchema]:
        """Return tasks, newest first: those in one of these states, whose title has this text, with this tag, made
        ``since`` so long ago (``12h``, ``30d``).

        Raises: UsageError, the age cannot be read.
        """
        with raised_as_ours():
            found = await list_tasks(
                self._service, await self._link.caller(), status=status, title=title, tag=tag, since=since, limit=limit
            )
        return found.items

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

    async def _close_when_done(self, session_id: str) -> None:
        """Close a session that does not close with its tasks, once all are completed: a job may read it then."""
        tasks = await self._client.store.tasks.list_tasks(session_id=session_id)
        if all(one.status is TaskStatus.COMPLETED for one in tasks):
            # Asked for in any case, and done by the next owner.
            with contextlib.suppress(ConflictError, UnavailableError, TimeoutError):
                async with asyncio.timeout(timing.CLOSE_LIMIT_S):
                    await self._client.tasks.close_session(session_id)

    def _body(
        self,
        plan: PlanSource,
        inputs: Mapping[str, object] | None,
        grants: Sequence[StepGrant | str],
        common: Mapping[str, Any],
    ) -> SubmissionBody:
        # Not validated: the reading of the plan says what is wrong with it, in its own words.
        given: Any = {"plan": plan, "source": "plan", "step_grants": [], **common}
        if isinstance(plan, PlanDefinition):
            given |= {"plan": plan.document, "source": plan.name, "inputs": plan.inputs(inputs or {})}
        elif isinstance(plan, str | Path):
            given |= {"plan": plan_text(plan), "source": str(plan)}
        given.setdefault("inputs", Typed(Any, "the inputs").json(inputs or {}))
        given["versions"] = versions_of(known_functions())
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
        ready = await asyncio.to_thread(prepared_here, prepare, body, self._catalogue, self._settings)
        keep_modules(self._settings, ready.task.id)
        return ready


@contextlib.asynccontextmanager
async def _entered(service: Callable[[], AbstractAsyncContextManager[Soong]]) -> AsyncIterator[Soong]:
    refuse_at_import()
    async with (IN_PROCESS[-1] if IN_PROCESS else service)() as soong:
        yield soong


def with_program_folder(settings: Settings) -> Settings:
    """Let the service find step functions and tools next to the program, as the program itself does, and import the
    modules whose steps the program has.
    """
    modules, folders = step_modules()
    functions = tuple(dict.fromkeys((*settings.functions, *modules)))
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    own = [*folders, *([str(Path(file).absolute().parent)] if file and not settings.import_path else [])]
    path = os.pathsep.join(dict.fromkeys((*settings.import_folders, *own)))
    return settings.model_copy(update={"functions": functions, "import_path": path})
