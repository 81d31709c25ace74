"""Looking at agents: which there may be, which workers live, and how a run that was started is doing (DIS-02)."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from soong.shared.agents.definition import AgentDefinition
from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core.errors import NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import Worker
from soong.shared.engine.wire.capabilities import VERSION, announced
from soong.shared.permissions.taint import METADATA_KEY
from soong.shared.tools.definition import HandlerOutput, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, JsonBlock, ToolError, ToolResult
from soong.shared.toolsets.tasks.showing import result_facts, step_facts, task_tool

if TYPE_CHECKING:
    from soong.shared.engine.tasks.service import Ledger

LAST_EVENTS: Final = 10
MAX_RUNS: Final = 1000
"""Newest runs of a session among which those that workers have are looked for."""


DefinitionsOf: TypeAlias = Callable[[Path], Iterable[AgentDefinition]]
"""Returns the agent definitions that may be named in a project."""


def no_definitions(_project: Path) -> Iterable[AgentDefinition]:
    return ()


class LookingTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter` over rows and agent definitions."""

    store: "Ledger"
    definitions: DefinitionsOf = no_definitions

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
        # Who wrote the project wrote what its definitions say of themselves (PER-21).
        metadata: dict[str, Json] = {METADATA_KEY: True} if any(is_of_project(one.id) for one in known) else {}
        return ToolResult(context.tool_call_id, (JsonBlock(listed),), data=listed, metadata=metadata)

    async def _list_workers(self, context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        workers = await self.store.sessions.workers()
        backlog = await self.store.claims.backlog()
        runs: dict[str, list[Json]] = {one.id: [] for one in workers}
        # What other sessions do is no business of this agent: of theirs it sees the number of busy slots.
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
            pass  # said below, in the same words as of a run of somebody else's
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
