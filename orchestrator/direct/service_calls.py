"""Direct calls of the tools that work on a service's rows: each is made by a run of its own, without a model (EXE-12).

Agents start agents, plan and look at their tasks through the service that runs them. A program or a person does the
same by the scripted agent ``builtin.calls``: the owner of the session runs it, so surface, hooks, policy and record are
those of any agent. All calls of one :class:`ServiceCalls` belong to one session, and see the same tasks.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from soong.orchestrator.approvals.approval import check_person
from soong.shared.agents.definition import DEFINITION, builtin_definitions
from soong.shared.core import timing
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import SoongError, StartedByRunError, UnavailableError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewTask
from soong.shared.permissions.request import PermissionCallback
from soong.shared.sandbox.marked_project import project_id
from soong.shared.tools.definition import Handler, HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.tools.surface import Surface

if TYPE_CHECKING:
    from soong.orchestrator.client.client import Client
    from soong.orchestrator.embedded.starter import Attachment

SCRIPT: Final = "script"
SCRIPTED_AGENT: Final = "builtin.calls"


@dataclass(slots=True)
class ServiceCalls:
    """Makes calls through the service of the settings, which the first call attaches to or starts. Closed by its owner.

    ``session`` holds the rules of the calls; ``callback`` answers what they ask, also for the agents that they start.
    """

    settings: Settings
    session: Session
    surface: Surface
    role: Role
    callback: PermissionCallback | None = None
    channel: str = "sdk"
    has_rules: bool = False
    """Whether its caller allows anything by rules: a program that a run started may not."""
    tell: Callable[[str], None] = lambda _sentence: None
    _attachment: "Attachment | None" = None
    _client: "Client | None" = None
    _responder: "asyncio.Task[None] | None" = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def bound(self, tool: ToolDefinition) -> ToolDefinition:
        """Return a tool whose handler makes the call through the service."""
        return replace(tool, handler=self._handler(tool.name))

    async def close(self) -> None:
        """Let go of the service; one that was started here and that nobody else needs ends. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(SoongError):  # a session that stays open costs its owner little
                await client.tasks.request_close(self.session.id)
            await client.close()
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            await attachment.release()
            await attachment.wait_until_gone(timing.END_LIMIT_S)

    def _handler(self, tool: str) -> Handler:
        async def handle(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
            try:
                result, run_id = await self._call(tool, call_input)
            except (StartedByRunError, UnavailableError) as error:
                raise ToolError(ErrorType.EXECUTION_FAILED, str(error)) from error
            if result.error is not None:
                failure = result.error
                raise ToolError(
                    failure.type, failure.message, hint=failure.hint, details=failure.details, data=result.data
                )
            metadata: Mapping[str, Json] = {**result.metadata, "service_run_id": run_id}
            return replace(result, tool_call_id=context.tool_call_id, metadata=metadata, evidence=())

        return handle

    async def _call(self, tool: str, arguments: JsonObject) -> tuple[ToolResult, str]:
        """Return how a run that made this call alone had it end, and the run's id. Raises: ToolError."""
        client = await self._opened()
        task = self._task(tool, arguments)
        opening = asyncio.create_task(client.subscriber.subscribe_session(self.session.id))
        try:
            from soong.orchestrator.client.client import Submission

            await client.submit(Submission(self.session, task))
            if self.callback is not None and self._responder is None:
                self._responder = client.attach(self.session, self.callback, channel=self.channel)
            async with contextlib.aclosing(client.follow(task.id, new=opening, for_result=True)) as views:
                async for _view in views:
                    pass
        except asyncio.CancelledError:
            with contextlib.suppress(SoongError, TimeoutError):  # the service ends it with its session otherwise
                async with asyncio.timeout(timing.COMMAND_LIMIT_S):
                    await client.tasks.cancel(await client.store.tasks.task(task.id), reason="the call was aborted")
            raise
        finally:
            opening.cancel()
        return await self._result(client, task)

    async def _result(self, client: "Client", task: NewTask) -> tuple[ToolResult, str]:
        from soong.shared.agents.messages import results_of  # the model library

        run_id = task.root_run.identity.run_id
        results = results_of(await client.store.runs.nodes(run_id))
        if not results:
            reason = (await client.store.tasks.task(task.id)).reason or "its run ended before it"
            raise ToolError(ErrorType.EXECUTION_FAILED, f"the call was not made: {reason}", details={"run_id": run_id})
        return results[0], run_id

    def _task(self, tool: str, arguments: JsonObject) -> NewTask:
        calls: JsonObject = {"calls": [{"call": tool, "with": dict(arguments)}]}
        spec = StepSpec(id="ask", script=SCRIPTED_AGENT, inputs=calls)
        definition = builtin_definitions().get(ORCHESTRATOR)
        return new_ask(
            spec,
            self.session,
            title=f"call of {tool}",
            role=self.role,
            definition=definition.id,
            model=SCRIPT,
            surface={**self.surface.as_json(), DEFINITION: definition.to_json()},
            now_us=SystemClock().now_us(),
        )

    async def _opened(self) -> "Client":
        async with self._opening:
            if self._client is None:
                from soong.orchestrator.client.bootstrap import open_client  # SQLAlchemy and Redis
                from soong.orchestrator.embedded.starter import attach

                if self._attachment is None:
                    self._attachment = await attach(self.settings, tell=self.tell)
                client = await open_client(self._attachment.settings)
                try:
                    if self.callback is not None or self.has_rules:
                        await check_person(client.store.sessions, "answer, or allow, what a tool asks for")
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client


def session_of_calls(session: Session, settings: Settings) -> Session:
    """Return a session of direct calls as the service stores it: of a principal and, in a deployment, of a project."""
    marked = "" if settings.is_embedded else project_id(Path(session.project))
    return replace(session, principal=settings.principal, project_id=marked)
