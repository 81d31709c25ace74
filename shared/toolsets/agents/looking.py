"""Looking at agents: which there may be, which workers live, how a run is doing, and waiting for its end (DIS-02)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from soong.shared.agents.definition import AgentDefinition
from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.sessions.session import SessionStore, Worker
from soong.shared.engine.tasks.claims import lacking
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step, Task
from soong.shared.engine.wire.notifier import VERSION, Subscriber, announced
from soong.shared.permissions.rules import METADATA_KEY
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, JsonBlock, ToolError, ToolFailure, ToolResult
from soong.shared.toolsets.tasks.showing import result_facts, step_facts, task_tool

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import Ledger


LAST_EVENTS: Final = 10
MAX_RUNS: Final = 1000
"""Newest runs of a session among which those that workers have are looked for."""


DefinitionsOf: TypeAlias = Callable[[Path], Iterable[AgentDefinition]]
"""Returns the agent definitions that may be named in a project."""

T = TypeVar("T")


_UNDER_WAY: Final = frozenset({StepStatus.RUNNING, StepStatus.BLOCKED, StepStatus.EXPANDING})

MAX_NAMED: Final = 10
"""Failed steps that the error of a task names."""
_SAME_TYPE: Final = frozenset({ErrorType.BUDGET_EXCEEDED.value})
"""Errors of steps that are those of the call, too. A denial is not among them: the call itself was allowed."""
START_ANOTHER: Final = "start another one with what is to be different"
GIVE_AGAIN: Final = (
    "agent.dispatch_worker with a step_id gives a failed step to a worker again, with what you change; with "
    "leave_failed it waits for the rest of a task"
)


class LookingTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over rows and agent definitions."""

    store: "Ledger"
    definitions: DefinitionsOf = lambda _project: ()

    def tools(self) -> tuple[ToolDefinition, ...]:
        return (
            task_tool(
                "agent.list_agent_definitions",
                "List agent definitions",
                "List the kinds of agents that may be started: id, what each is for, its mode and its tools.",
                "agents definitions kinds roles",
                {},
                (),
                self._list_definitions,
            ),
            task_tool(
                "agent.list_workers",
                "List workers",
                "List the living workers: version, pools, slots and how many are busy, the runs of your session that "
                "each has, and what waits for a slot.",
                "workers slots pools capacity queue",
                {},
                (),
                self._list_workers,
            ),
            task_tool(
                "agent.inspect_agent",
                "Inspect agent",
                "Show how an agent that you started is doing: its state, what it cost, its last events and its result.",
                "inspect agent run status progress cost result",
                {"run_id": {"type": "string", "description": "Id of its run.", "minLength": 1, "maxLength": 64}},
                ("run_id",),
                self._inspect,
            ),
        )

    async def _list_definitions(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        known = await asyncio.to_thread(self.definitions, context.run_dirs.project)
        listed: Json = {"agents": [_definition_facts(one) for one in known]}
        # The descriptions of a project's definitions are its author's words (PER-21).
        metadata: dict[str, Json] = {METADATA_KEY: True} if any(is_of_project(one.id) for one in known) else {}
        return ToolResult(context.tool_call_id, (JsonBlock(listed),), data=listed, metadata=metadata)

    async def _list_workers(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        workers = await self.store.sessions.workers()
        backlog = await self.store.claims.backlog()
        runs: dict[str, list[Json]] = {one.id: [] for one in workers}
        # The agent must not see the work of other sessions: it gets only the number of their busy slots.
        for run in await self.store.runs.run_page(session_id=context.identity.session_id, limit=MAX_RUNS):
            if run.status is RunStatus.RUNNING and run.worker_id in runs:
                runs[run.worker_id].append({"run_id": run.id, "agent": run.identity.definition})
        listed: list[Json] = [{**_worker_facts(one), "runs": runs[one.id]} for one in workers]
        return {"workers": listed, "ready_steps_by_pool": dict(backlog.ready)}

    async def _inspect(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        run = await self._descendant(context, str(call_input["run_id"]))
        events = await self.store.runs.events(run.id, after_seq=max(0, run.last_seq - LAST_EVENTS))
        facts = _run_facts(run)
        facts["last_events"] = [_event_facts(event) for event in events]
        if run.identity.step_key:
            step = await self.store.tasks.step(run.identity.step_key)
            facts["step"] = step_facts(step, {})
            if step.status.is_terminal:
                facts |= result_facts(await self.store.tasks.result(step.key))
        return facts

    async def _descendant(self, context: ToolContext, run_id: str) -> Run:
        """Return a run below the calling one. Raises: ToolError."""
        own = context.identity
        try:
            run = found = await self.store.runs.run(run_id)
            while run.identity.parent_run_id and run.identity.session_id == own.session_id:
                if run.identity.parent_run_id == own.run_id:
                    return found
                run = await self.store.runs.run(run.identity.parent_run_id)
        except NotFoundError:
            pass  # refused below, in the same words as a run of others
        problem = f"you have started no run {run_id[:80]!r}"
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint="agent.dispatch_worker returns the ids of runs")


def _definition_facts(one: AgentDefinition) -> dict[str, Json]:
    tools: Json = None if one.suggested_tools is None else list(one.suggested_tools)
    facts: dict[str, Json] = {"id": one.id, "name": one.name, "description": one.description, "mode": one.mode.value}
    return {**facts, "tools": tools, **({"model": one.model} if one.model else {})}


def _worker_facts(one: Worker) -> dict[str, Json]:
    return {
        "id": one.id,
        "node_name": one.node_name,
        "state": one.state.value,
        "version": announced(one.capabilities, VERSION),
        "pools": list(one.pools),
        "slots": one.slots,
        "busy": one.busy,
    }


def _run_facts(run: Run) -> dict[str, Json]:
    return {
        "run_id": run.id,
        "role": run.identity.role.value,
        "agent": run.identity.definition,
        "model": run.identity.model,
        "status": run.status.value,
        "end_reason": None if run.end_reason is None else run.end_reason.value,
        "attempt": run.attempt,
        "usage": run.usage.as_json(),
    }


def _event_facts(event: Event) -> dict[str, Json]:
    shown = {name: value for name, value in event.data.items() if isinstance(value, str | int | float | bool)}
    return {"type": str(event.type), **{name: v[:200] if isinstance(v, str) else v for name, v in shown.items()}}


async def wait_until(subscriber: Subscriber, session_id: str, look: Callable[[], Awaitable[T | None]]) -> T:
    """Return what ``look`` finds, as soon as it finds something; it looks again whenever the session's rows change."""
    subscription = await subscriber.subscribe_session(session_id)
    try:
        while (found := await look()) is None:
            await asyncio.sleep(timing.LEAST_PAUSE_S)
            await subscription.wait(timing.POLL_ROWS_S)
    finally:
        await subscription.close()
    return found


def moves_by_itself(step: Step) -> bool:
    """Say whether a step will change although nobody decides anything: it runs, or is about to. A map step moves by its
    items, and a step that is to be pulled by its pull workers, which are steps, too.
    """
    match step.status:
        case StepStatus.READY:
            return step.claim_mode is ClaimMode.ASSIGNED
        case StepStatus.PENDING:
            return step.not_before_us is not None and not step.open_deps
        case StepStatus.FAILED:
            return step.error is not None and step.error.retryable and step.attempt < step.max_attempts
        case status:
            return status in _UNDER_WAY


@dataclass(slots=True)
class Patience:
    """The time limit for steps that no living worker can take. One for each wait. A worker that starts in time resets
    it; an abandoned step stays where it is, and may run later.
    """

    sessions: SessionStore
    limit_s: float
    _since_s: float | None = None

    async def lacks(self, steps: Sequence[Step]) -> Mapping[str, str]:
        """Return by step key why no worker takes what alone keeps these steps moving, once the time is over."""
        moving = [step for step in steps if moves_by_itself(step)]
        if not moving or any(step.status is not StepStatus.READY for step in moving):
            self._since_s = None
            return {}
        workers = await self.sessions.workers()
        found = {step.key: words for step in moving if (words := lacking(step.pool, step.needs, workers))}
        if len(found) < len(moving):
            self._since_s = None
            return {}
        now_s = asyncio.get_running_loop().time()
        self._since_s = now_s if self._since_s is None else self._since_s
        return found if now_s - self._since_s >= self.limit_s else {}


def needs_decision(steps: Sequence[Step], left: Collection[str]) -> bool:
    """Say whether somebody has to decide: none of these steps changes by itself, or one failed that is not ``left``."""
    failed = (step for step in steps if step.status is StepStatus.FAILED and step.on_failure is not FailurePolicy.KEEP)
    is_open = any(not moves_by_itself(step) and not step.map_key and step.step_id not in left for step in failed)
    return is_open or not any(map(moves_by_itself, steps))


def child_outcome(step: Step, facts: Mapping[str, Json], *, lack: str, hint: str) -> HandlerOutput:
    """Return the outcome of one child; ``lack`` is why no worker takes it, when it is waited for no longer."""
    return _outcome(facts, _waiting([step.step_id], lack) if lack else _failure_of(step, hint))


def task_outcome(
    task: Task, steps: Sequence[Step], facts: Mapping[str, Json], lacks: Mapping[str, str]
) -> HandlerOutput:
    """Return what a task came to that has ended, or waits for a decision of its agent."""
    if lacks:
        waiting = [step.step_id for step in steps if step.key in lacks]
        return _outcome(facts, _waiting(waiting, next(iter(lacks.values()))))
    return _outcome(facts, _failure_of_task(task, steps))


def _outcome(facts: Mapping[str, Json], failure: ToolFailure | None) -> HandlerOutput:
    plain = dict(facts)
    if failure is None:
        return plain
    return ToolResult("", (JsonBlock(plain),), failure.message, plain, error=failure)


def _waiting(step_ids: Sequence[str], lack: str) -> ToolFailure:
    problem = f"no worker takes {_named(step_ids)}: {lack}"
    return ToolFailure(ErrorType.WORKER_INCOMPATIBLE, problem, "it starts when a worker has what it needs")


def _failure_of(step: Step, hint: str) -> ToolFailure | None:
    match step.status:
        case StepStatus.COMPLETED:
            return None
        case StepStatus.CANCELLED:
            return ToolFailure(ErrorType.CANCELLED, f"step {step.step_id!r} was cancelled", hint)
        case StepStatus.FAILED if step.error is not None:
            problem = f"step {step.step_id!r} failed: {step.error.type}: {step.error.message}"
            type_ = ErrorType(step.error.type) if step.error.type in _SAME_TYPE else ErrorType.EXECUTION_FAILED
            return ToolFailure(type_, problem, hint)
        case status:
            return ToolFailure(ErrorType.EXECUTION_FAILED, f"step {step.step_id!r} ended as {status}", hint)


def _failure_of_task(task: Task, steps: Sequence[Step]) -> ToolFailure | None:
    """A task that is cancelled, or has steps that failed for good: its agent decides what becomes of them."""
    if task.status is TaskStatus.COMPLETED:
        return None
    failed = [step for step in steps if step.status is StepStatus.FAILED and not step.map_key]
    if task.status is TaskStatus.CANCELLED:
        return ToolFailure(ErrorType.CANCELLED, f"task {task.id} was cancelled", task.reason)
    if not failed and task.status is not TaskStatus.FAILED:
        return None
    types = {step.error.type for step in failed if step.error is not None}
    type_ = ErrorType.BUDGET_EXCEEDED if types and types <= _SAME_TYPE else ErrorType.EXECUTION_FAILED
    problem = (
        f"{_named([step.step_id for step in failed])} failed" if failed else f"task {task.id} failed: {task.reason}"
    )
    return ToolFailure(type_, problem, GIVE_AGAIN)


def _named(step_ids: Sequence[str]) -> str:
    names = ", ".join(map(repr, step_ids[:MAX_NAMED]))
    more = f" and {len(step_ids) - MAX_NAMED} more" if len(step_ids) > MAX_NAMED else ""
    return f"{'step' if len(step_ids) == 1 else 'steps'} {names}{more}"
