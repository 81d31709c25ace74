"""One prompt of a front end: an ask, followed to its answer and reported with its plan in the protocol (ACP-02)."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import acp
from acp import schema

from soong.orchestrator.acp.questions import ENDED, FrontEndQuestions
from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.events import follow_live
from soong.orchestrator.operations.outcome import read_result, snapshot_of, tasks_planned_by
from soong.orchestrator.operations.progress import until_over
from soong.orchestrator.schemas.task import TaskResult
from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.jsontext import Json, dump, inert
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.engine.wire.notifier import AnswerDelta
from soong.shared.storage.store import Store

MAX_ENTRIES: Final = 500
MAX_CHARS: Final = 300
_RUNNING: Final = frozenset({StepStatus.RUNNING, StepStatus.WAITING, StepStatus.BLOCKED, StepStatus.EXPANDING})
_Status = Literal["pending", "in_progress", "completed"]

MAX_CALL_CHARS: Final = 2_000


async def plan_of(store: Store, task_id: str) -> list[schema.PlanEntry]:
    """Return the steps of a task in order. A plan has no status for failure: the entry's text has the step's end."""
    entries = []
    for step in (await snapshot_of(store, task_id)).steps[:MAX_ENTRIES]:
        title = step.step_id if step.title in ("", step.step_id) else f"{step.step_id}: {step.title}"
        said = f"{inert(' '.join(title.split()))[:MAX_CHARS]}{_ending(step)}"
        entries.append(acp.plan_entry(said, priority="medium", status=_status(step)))
    return entries


def _ending(step: Step) -> str:
    match step.status:
        case StepStatus.FAILED:
            why = step.error.message if step.error is not None else ""
            return f" (failed{': ' if why else ''}{inert(why)[:MAX_CHARS]})"
        case StepStatus.CANCELLED | StepStatus.SKIPPED:
            return f" ({step.status})"
        case StepStatus.BLOCKED:
            return " (waits for an answer)"
        case _:
            return ""


def _status(step: Step) -> _Status:
    if step.status.is_terminal:
        return "completed"
    return "in_progress" if step.status in _RUNNING else "pending"


def text_of_prompt(blocks: Sequence[object]) -> str:
    """Return a prompt as the goal of an ask. Attachments of the front end are named, and their text is added."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case schema.TextContentBlock(text=text):
                parts.append(text)
            case schema.ResourceContentBlock(uri=uri):
                parts.append(f"[{uri}]")
            case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents(uri=uri, text=text)):
                parts.append(f"[{uri}]\n{text}")
            case _:
                parts.append("[content that is not text is left out]")
    return "\n".join(parts)


@dataclass(slots=True)
class PromptTurn:
    """Follows one task for one front end. :meth:`cancel` ends it."""

    connection: Any
    service: ServiceParts
    session: Session
    task_id: str
    root_run_id: str
    questions: FrontEndQuestions
    is_cancelled: bool = False
    _shown: str = ""
    """The text of the model's turn that arrives, as far as it has been sent."""
    _turn: int = 0
    _calls: set[str] = field(default_factory=set)

    async def run(self) -> schema.PromptResponse:
        """Follow the task to its end and return how the turn ended."""
        telling = [asyncio.create_task(self._tell_agent()), asyncio.create_task(self._tell_plan())]
        try:
            await until_over(self.service, self.task_id, self.session.id, self.questions.settle)
        finally:
            await cancelled(*telling)
        await self.questions.settle(is_over=True)
        if plan := await plan_of(self.service.store, self.task_id):
            await self._send(acp.update_plan(plan))
        result = await read_result(self.service.store, self.task_id, self.service.client.settings.runs)
        await self._say_end(result)
        is_cancelled = self.is_cancelled or result.status is TaskStatus.CANCELLED
        return schema.PromptResponse(stop_reason="cancelled" if is_cancelled else "end_turn", usage=await self._usage())

    async def cancel(self) -> None:
        """Cancel the task with everything that works for it."""
        self.is_cancelled = True
        task = await self.service.store.tasks.task(self.task_id)
        if not task.status.is_terminal:
            await self.service.client.tasks.cancel(task, reason="cancelled in the editor")

    async def _tell_plan(self) -> None:
        service = self.service
        with service.feeds.follow(
            ("plan", self.task_id),
            lambda: plan_of(service.store, self.task_id),
            lambda: service.subscriptions.session(self.session.id),
        ) as following:
            while True:
                with suppress(UnavailableError):
                    if plan := await following.next():
                        await self._send(acp.update_plan(plan))

    # -- what the agent of the ask says and does
    async def _tell_agent(self) -> None:
        async with aclosing(follow_live(self.service, self.root_run_id)) as events:
            async for said in events:
                if isinstance(said, AnswerDelta):
                    await self._tell_answer(said)
                else:
                    await self._tell_call(said)

    async def _tell_answer(self, delta: AnswerDelta) -> None:
        """Send what is new of the answer that arrives; what was sent cannot be taken back."""
        text = delta.applied_to(self._shown if delta.turn == self._turn else "")
        if delta.turn != self._turn:
            before, self._turn, self._shown = self._shown, delta.turn, ""
            text = f"\n\n{text}" if before and text else text
        if text.startswith(self._shown) and len(text) > len(self._shown):
            await self._send(acp.update_agent_message_text(text[len(self._shown) :]))
            self._shown = text

    async def _tell_call(self, event: Event) -> None:
        call_id, tool = str(event.data.get("tool_call_id", "")), str(event.data.get("tool", ""))
        if event.type == EventType.TOOL_STARTED and call_id not in self._calls:
            self._calls.add(call_id)
            said = dump(event.data.get("input"))[:MAX_CALL_CHARS]
            await self._send(acp.start_tool_call(call_id, inert(tool), kind=_kind(tool), status="in_progress"))
            content = [acp.tool_content(acp.text_block(said))]
            await self._send(acp.update_tool_call(call_id, content=content))
        elif (status := ENDED.get(event.type)) and call_id in self._calls:
            summary = inert(str(event.data.get("message") or event.data.get("summary") or ""))
            told = [acp.tool_content(acp.text_block(summary))] if summary else None
            await self._send(acp.update_tool_call(call_id, status=status, content=told))

    # -- the end
    async def _say_end(self, result: TaskResult) -> None:
        """Send the rest: the answer, if it did not arrive piece by piece, or why there is none."""
        if result.status is TaskStatus.COMPLETED:
            rest = rest_of(text_of(result.answer), self._shown)
            if rest:
                await self._send(acp.update_agent_message_text(rest))
        elif not self.is_cancelled:
            run = await self.service.store.runs.run(self.root_run_id)
            why = run.end_reason if run.end_reason is not None else result.status
            words = f"\n\nThe task {result.id} is {result.status}: {why}."
            await self._send(acp.update_agent_message_text(words))
        for denial in result.denials:
            await self._send(acp.update_agent_thought_text(f"{denial.step}: {denial.tool} was denied. "))

    async def _usage(self) -> schema.Usage | None:
        store = self.service.store
        task = await store.tasks.task(self.task_id)
        tasks = (task, *await tasks_planned_by(store, task))
        runs = [run for one in tasks for run in await store.runs.list_runs(task_id=one.id)]
        read = sum(run.usage.input_tokens for run in runs)
        written = sum(run.usage.output_tokens for run in runs)
        cached = sum(run.usage.cached_tokens for run in runs)
        return schema.Usage(
            total_tokens=read + written, input_tokens=read - cached, output_tokens=written, cached_read_tokens=cached
        )

    async def _send(self, update: Any) -> None:
        try:
            await self.connection.session_update(self.session.id, update)
        except (ConnectionError, SoongError):  # the front end has gone; its task goes on without it
            return


def rest_of(answer: str, shown: str) -> str:
    """Return what of an answer has not been shown; an answer is stored without blanks at its end."""
    if answer.startswith(shown):
        return answer[len(shown) :]
    if answer.startswith(shown.rstrip()):
        return answer[len(shown.rstrip()) :].lstrip()
    return f"\n\n{answer}"


def text_of(answer: Json) -> str:
    if isinstance(answer, str):
        return answer
    return "" if answer is None else f"```json\n{dump(answer)}\n```"


def _kind(tool: str) -> schema.ToolKind:
    if tool.startswith("agent."):
        return "think"
    if tool in ("code.read_file", "code.list_dir"):
        return "read"
    if tool == "code.search":
        return "search"
    if tool == "code.run_command":
        return "execute"
    return "edit" if tool.startswith("code.") else "other"
