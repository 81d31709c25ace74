"""Soong as an agent of the Agent Client Protocol, for editors (ACP-02).

A client of the service like ``soong ask``: a session of the protocol is a session of ours under the same id, a prompt
is an ask in it, and the editor's user is the responder of the session.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final

import acp
from acp import RequestError, schema

from soong.orchestrator.acp.questions import FrontEndQuestions
from soong.orchestrator.acp.turn import PromptTurn, plan_of, text_of, text_of_prompt
from soong.orchestrator.approvals.responders import refusal_reason
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client, Submission
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.outcome import read_result
from soong.orchestrator.operations.preparation import follow_up, prepared_ask
from soong.orchestrator.operations.problems import raised_as_ours
from soong.orchestrator.operations.responder import ProgramResponder
from soong.orchestrator.operations.submissions import AskBody, FollowUpBody, Ids
from soong.shared.core.errors import NotFoundError, SoongError
from soong.shared.core.identity import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.tasks.asks import follows
from soong.shared.engine.tasks.spec import TaskKind
from soong.shared.engine.tasks.step import Task

MANY: Final = 1000
"""Asks of one session, and sessions that one was forked from."""

log = get_logger(__name__)
PAGE: Final = 50
VERSION: Final = "1"


class SessionConversation(Value):
    """The conversation of a session. ``origin`` is the run that a fork without an ask continues."""

    client: Client
    session_id: str
    origin: str = ""

    async def asks(self) -> Sequence[Task]:
        """Return all asks that it consists of, oldest first."""
        found: list[Task] = []
        seen: set[str] = set()
        session_id, own = self.session_id, await asks_of(self.client, self.session_id)
        while len(seen) < MANY:
            found[:0] = reversed(own)
            seen.add(session_id)
            former = await self._run(_origin_of(own) or (self.origin if session_id == self.session_id else ""))
            if former is None or former.identity.session_id in seen:
                break
            session_id = former.identity.session_id
            # Asks of that session after the fork are not a part of it.
            own = _until(former.identity.task_id, await asks_of(self.client, session_id))
        return found

    async def last_run(self) -> Run | None:
        """Return the run that another prompt, or a fork, continues: that of the last ask that completed. None: none."""
        own = await asks_of(self.client, self.session_id)
        for task in own:
            run = await self.client.store.runs.run(task.root_run_id)
            if run.status is RunStatus.COMPLETED:
                return run
        return await self._run(_origin_of(own) or self.origin)

    async def _run(self, run_id: str) -> Run | None:
        """Return a run that may be continued; None for one that is no longer kept, or belongs to someone else."""
        if not run_id:
            return None
        try:
            run = await self.client.store.runs.run(run_id)
            session = await self.client.store.sessions.session(run.identity.session_id)
        except NotFoundError:
            return None
        return run if session.principal == self.client.settings.principal else None


def _origin_of(asks: Sequence[Task]) -> str:
    """Return the run that the first ask of a session, which are given newest first, continues."""
    return follows(asks[-1].inputs) if asks else ""


def _until(task_id: str, asks: Sequence[Task]) -> list[Task]:
    """Return the asks up to this one; they are given newest first."""
    return list(dropwhile(lambda task: task.id != task_id, asks))


async def asks_of(client: Client, session_id: str) -> list[Task]:
    """Return the asks of a session, newest first."""
    tasks = await client.store.tasks.list_tasks(session_id=session_id, limit=MANY)
    return [task for task in tasks if task.kind is TaskKind.ASK]


@dataclass(slots=True)
class _OpenSession:
    """A session that the front end has opened. ``turn`` is the prompt that is worked on."""

    cwd: Path
    origin: str = ""
    """The run whose conversation a fork continues."""
    turn: PromptTurn | None = None
    answering: "asyncio.Task[None] | None" = None
    is_busy: bool = False


@dataclass(slots=True)
class OrchestratorAgent:
    """One connection. ``connected`` gives the service, which is started when it is first needed."""

    settings: Settings
    agent: str
    connected: Callable[[], Awaitable[DirectCalls]]
    _connection: Any = None
    _open: dict[str, _OpenSession] = field(default_factory=dict)

    def on_connect(self, conn: Any) -> None:
        self._connection = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> schema.InitializeResponse:
        del protocol_version, client_capabilities, client_info
        sessions = schema.SessionCapabilities(
            list=schema.SessionListCapabilities(),
            resume=schema.SessionResumeCapabilities(),
            fork=schema.SessionForkCapabilities(),
            close=schema.SessionCloseCapabilities(),
        )
        can = schema.AgentCapabilities(
            load_session=True,
            prompt_capabilities=schema.PromptCapabilities(embedded_context=True),
            session_capabilities=sessions,
        )
        about = schema.Implementation(name="soong", title="Soong", version=VERSION)
        return schema.InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION, agent_capabilities=can, agent_info=about, auth_methods=[]
        )

    async def authenticate(self, method_id: str, **_: Any) -> schema.AuthenticateResponse | None:
        raise RequestError.invalid_params({"details": f"there is no sign-in {method_id[:100]!r}; none is needed"})

    # -- sessions
    async def new_session(self, cwd: str, **_: Any) -> schema.NewSessionResponse:
        session_id = new_id("sess")
        self._open[session_id] = _OpenSession(_folder(cwd))
        return schema.NewSessionResponse(session_id=session_id)

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> schema.ResumeSessionResponse:
        await self._opened(session_id, cwd)
        return schema.ResumeSessionResponse()

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> schema.LoadSessionResponse | None:
        """Open a session and send its conversation again."""
        service = await self._opened(session_id, cwd)
        for task in await self._conversation(service.client, session_id).asks():
            await self._send(session_id, acp.update_user_message_text(task.title))
            if plan := await plan_of(service.store, task.id):
                await self._send(session_id, acp.update_plan(plan))
            answer = text_of((await read_result(service.store, task.id, service.client.settings.runs)).answer)
            await self._send(session_id, acp.update_agent_message_text(answer or f"({task.status})"))
        return schema.LoadSessionResponse()

    async def fork_session(self, session_id: str, cwd: str, **_: Any) -> schema.ForkSessionResponse:
        """Begin a session with the conversation of another, as its last completed ask left it.

        Nothing else is taken over: no task under way, no grant, no rule of the other session.
        """
        service = await self._opened(session_id, cwd)
        former = await self._conversation(service.client, session_id).last_run()
        fork_id = new_id("sess")
        self._open[fork_id] = _OpenSession(_folder(cwd), origin=former.id if former is not None else "")
        return schema.ForkSessionResponse(session_id=fork_id)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        client = (await self._service()).client
        found: dict[str, schema.SessionInfo] = {}
        for task in await client.store.tasks.list_tasks(kind=TaskKind.ASK, limit=MANY):
            session = await client.store.sessions.session(task.session_id)
            if session.principal != client.settings.principal:
                continue  # it could not be opened
            if cwd and session.cwd != str(_folder(cwd)):
                continue
            known = found.get(session.id)
            updated = known.updated_at if known is not None else rfc3339(task.created_us)
            found[session.id] = schema.SessionInfo(
                session_id=session.id, cwd=session.cwd, title=task.title[:200], updated_at=updated
            )
        listed = list(found.values())
        start = int(cursor) if cursor and cursor.isdigit() else 0
        following = str(start + PAGE) if start + PAGE < len(listed) else None
        return schema.ListSessionsResponse(sessions=listed[start : start + PAGE], next_cursor=following)

    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse | None:
        """Let go of a session: its task is cancelled, its rows stay."""
        session = self._session(session_id)
        await self.cancel(session_id)
        await _stop(session)
        del self._open[session_id]
        return schema.CloseSessionResponse()

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> schema.SetSessionModeResponse | None:
        del session_id
        raise RequestError.invalid_params({"details": f"there is no mode {mode_id[:100]!r}: rules are in config.toml"})

    async def set_config_option(self, config_id: str, session_id: str, value: Any, **_: Any) -> Any:
        del session_id, value
        raise RequestError.invalid_params({"details": f"there is no option {config_id[:100]!r}"})

    # -- prompts
    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> schema.PromptResponse:
        """Give the prompt to an agent as a goal and follow it to its answer."""
        session = self._session(session_id)
        if session.is_busy:
            raise RequestError.invalid_request({"details": "the session works on a prompt; cancel it first"})
        session.is_busy = True
        try:
            return await self._asked(session_id, session, text_of_prompt(prompt))
        except SoongError as error:
            raise RequestError(-32603, str(error)) from error
        finally:
            session.is_busy, session.turn = False, None
            await _stop(session)

    async def cancel(self, session_id: str, **_: Any) -> None:
        session = self._open.get(session_id)
        if session is None or session.turn is None:
            return
        try:
            await session.turn.cancel()
        except SoongError as error:  # a notification has no answer; the prompt's own tells how it ended
            log.warning("prompt_not_cancelled", session=session_id, error=str(error))

    async def _asked(self, session_id: str, session: _OpenSession, goal: str) -> schema.PromptResponse:
        calls = await self._calls()
        service, caller, client = calls.service, calls.caller, calls.service.client
        ready = await self._prepared(client, session_id, session, goal)
        questions = FrontEndQuestions(self._connection, session_id, client.store.runs)
        root = ready.task.root_run.identity
        await client.submit(ready)
        session.turn = PromptTurn(self._connection, service, ready.session, ready.task.id, root.run_id, questions)
        refusal = caller.refusal or refusal_reason(ready.session, caller.principal)
        if refusal:
            await self._send(session_id, acp.update_agent_thought_text(f"Questions are not answered here: {refusal}\n"))
        else:
            responder = ProgramResponder(service, caller, ready.session, questions)
            session.answering = asyncio.create_task(responder.run())
        return await session.turn.run()

    async def _prepared(self, client: Client, session_id: str, session: _OpenSession, goal: str) -> Submission:
        """Bind a goal: the first of the session, or another one that continues what completed last."""
        catalogue, settings = Catalogue.of(self.settings), self.settings.of_user
        former = await self._conversation(client, session_id).last_run()
        try:
            row = await client.store.sessions.session(session_id)
        except NotFoundError:
            body = AskBody.model_construct(
                goal=goal,
                agent=former.identity.definition if former is not None else self.agent,
                model=former.identity.model if former is not None else "",
                project=str(session.cwd),
                approval_mode="prompt",
            )
            ids, follows = Ids(session_id, new_id("task")), former.id if former is not None else ""
            with raised_as_ours():
                return prepared_ask(body, settings.principal, ids, catalogue, settings, follows=follows)
        agent, model = ("", "") if former is not None else (self.agent, settings.model)
        return follow_up(FollowUpBody.model_construct(goal=goal, agent=agent, model=model), row, former, catalogue)

    # -- common
    async def _service(self) -> ServiceParts:
        return (await self._calls()).service

    async def _calls(self) -> DirectCalls:
        try:
            return await self.connected()
        except SoongError as error:
            raise RequestError(-32603, str(error)) from error

    def _session(self, session_id: str) -> _OpenSession:
        try:
            return self._open[session_id]
        except KeyError:
            raise RequestError.resource_not_found(session_id[:100]) from None

    def _conversation(self, client: Client, session_id: str) -> SessionConversation:
        opened = self._open.get(session_id)
        return SessionConversation(client, session_id, opened.origin if opened is not None else "")

    async def _opened(self, session_id: str, cwd: str) -> ServiceParts:
        """Open a stored session. Raises: RequestError, for one that is not there or belongs to another folder."""
        service = await self._service()
        try:
            row = await service.store.sessions.session(session_id)
            works_in, principal = row.cwd, row.principal
        except NotFoundError:  # it has had no prompt yet
            works_in, principal = str(self._session(session_id).cwd), self.settings.principal
        if principal != self.settings.principal:
            raise RequestError.resource_not_found(session_id[:100])
        folder = _folder(cwd)
        if works_in != str(folder):
            raise RequestError.invalid_params({"details": f"the session works in {works_in}, not in {folder}"})
        self._open.setdefault(session_id, _OpenSession(folder))
        return service

    async def _send(self, session_id: str, update: Any) -> None:
        await self._connection.session_update(session_id, update)

    async def close(self) -> None:
        """Let go of everything: the front end has gone. Tasks under way continue."""
        for session in self._open.values():
            await _stop(session)


def _folder(cwd: str) -> Path:
    """Raises: RequestError."""
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise RequestError.invalid_params({"details": f"cwd {cwd[:300]!r} is not an absolute path of a folder"})
    return path.resolve()


async def _stop(session: _OpenSession) -> None:
    answering, session.answering = session.answering, None
    await cancelled(answering)
