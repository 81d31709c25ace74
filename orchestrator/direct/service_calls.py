"""Direct calls of the tools that work on a service's rows: each is made by a run of its own, without a model (EXE-12).

Agents start agents, plan and look at their tasks through the service that runs them. A program or a person does the
same by the scripted agent ``builtin.calls``: the owner of the session runs it, so surface, hooks, policy and record are
those of any agent. All calls of one :class:`ServiceCalls` belong to one session, and see the same tasks.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from soong.shared.agents.definition import DEFINITION, builtin_definitions
from soong.shared.core import timing
from soong.shared.core.errors import SoongError, StartedByRunError, UnavailableError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewTask
from soong.shared.permissions.request import PermissionCallback
from soong.shared.storage.store import Store
from soong.shared.tools.definition import Handler, HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.tools.surface import Surface

if TYPE_CHECKING:
    from soong.orchestrator.embedded.starter import Attachment
    from soong.orchestrator.http.own_api import OwnApi
    from soong.orchestrator.operations.calls import DirectCalls
    from soong.shared.engine.tasks.service import TaskService

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
    _own: "OwnApi | None" = None
    _calls: "DirectCalls | None" = None
    """The same until the end: calls under way and the responder work with it, at whichever service."""
    _tasks: "TaskService | None" = None
    """The service to which the session was written, if it was."""
    _attachment: "Attachment | None" = None
    _responder: "asyncio.Task[None] | None" = None

    def bound(self, tool: ToolDefinition) -> ToolDefinition:
        """Return a tool whose handler makes the call through the service."""
        return replace(tool, handler=self._handler(tool.name))

    async def close(self) -> None:
        """Let go of the service; one that was started here and that nobody else needs ends. Idempotent."""
        responder, self._responder = self._responder, None
        if responder is not None:
            responder.cancel()
            await asyncio.gather(responder, return_exceptions=True)
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            with contextlib.suppress(SoongError):  # a session that stays open costs its owner little
                await tasks.request_close(self.session.id)
        own, self._own = self._own, None
        if own is not None:
            await own.close()
        if self._attachment is not None:
            await self._attachment.wait_until_gone(timing.END_LIMIT_S)

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
        calls = await self._opened()
        service, task = calls.service, self._task(tool, arguments)
        client = service.client
        try:
            from soong.orchestrator.client.client import Submission
            from soong.orchestrator.operations.progress import until_over
            from soong.orchestrator.operations.responder import ProgramResponder

            await client.submit(Submission(self.session, task))
            self._tasks = client.tasks
            if self.callback is not None and self._responder is None:
                responder = ProgramResponder(service, calls.caller, self.session, self.callback)
                self._responder = asyncio.create_task(responder.run())
            await until_over(service, task.id, self.session.id)
        except asyncio.CancelledError:
            with contextlib.suppress(SoongError, TimeoutError):  # the service ends it with its session otherwise
                async with asyncio.timeout(timing.COMMAND_LIMIT_S):
                    await client.tasks.cancel(await client.store.tasks.task(task.id), reason="the call was aborted")
            raise
        return await self._result(service.store, task)

    async def _result(self, store: Store, task: NewTask) -> tuple[ToolResult, str]:
        from soong.shared.agents.messages import results_of  # the model library

        run_id = task.root_run.identity.run_id
        results = results_of(await store.runs.nodes(run_id))
        if not results:
            reason = (await store.tasks.task(task.id)).reason or "its run ended before it"
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

    async def _opened(self) -> "DirectCalls":
        if self._own is None:
            from soong.orchestrator.http.own_api import OwnApi  # SQLAlchemy, Redis and FastAPI

            is_person = self.callback is not None or self.has_rules
            purpose = "answer, or allow, what a tool asks for" if is_person else ""

            async def attached(_may_start: bool) -> "Attachment":
                from soong.orchestrator.embedded.starter import attach

                self._attachment = await attach(self.settings)
                return self._attachment

            self._own = OwnApi(self.channel, attached, purpose=purpose)
        self._calls = self._calls or await self._own.calls(may_start=True)
        return self._calls
