"""The order of a turn's calls: parallel groups, and the effect of a failure (EXE-03, EXE-04, EXE-05).

Calls are cut into groups in the model's order; groups run one after another and nothing crosses a border. The loop
waits for every call, so nothing runs on behind a turn.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.execution import parsed
from soong.shared.tools.permission_check import effective_traits
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.tools.schema import repaired
from soong.shared.tools.surface import DELEGATION_TOOLS

ABORTED_EVENT: Final = "aborted_tools"


class GroupKind(StrEnum):
    """READS and AGENTS run in parallel; READ (not concurrency-safe) and WRITE run alone."""

    READS = "reads"
    READ = "read"
    WRITE = "write"
    AGENTS = "agents"

    @property
    def is_parallel(self) -> bool:
        return self in (GroupKind.READS, GroupKind.AGENTS)


class Group(Value):
    kind: GroupKind
    calls: tuple[ToolCall, ...]


Lookup: TypeAlias = Callable[[str], ToolDefinition | None]
Note: TypeAlias = Callable[[str, JsonObject], Awaitable[None]]


class Executor(Protocol):
    """The executor of a turn's calls; :class:`soong.shared.tools.pipeline.ToolPipeline` is one."""

    def resolve(self, name: str) -> ToolDefinition | None: ...
    async def execute(self, call: ToolCall) -> ToolResult: ...
    async def refuse(self, call: ToolCall, type: ErrorType, message: str) -> ToolResult: ...


def plan_groups(calls: Sequence[ToolCall], lookup: Lookup) -> tuple[Group, ...]:
    """Cut a turn's calls into groups. Pure but for the tools' trait functions; an unknown tool counts as a write."""
    groups: list[Group] = []
    for call in calls:
        kind = _kind_of(call, lookup(call.tool))
        if groups and groups[-1].kind is kind and kind.is_parallel:
            groups[-1] = Group(kind, (*groups[-1].calls, call))
        else:
            groups.append(Group(kind, (call,)))
    return tuple(groups)


async def run_turn(
    calls: Sequence[ToolCall], executor: Executor, *, parallel_limit: int = 10, note: Note | None = None
) -> list[ToolResult]:
    """Run a turn's calls and return one terminal result for each, in the model's order.

    A failed or denied write stops the calls after it, which end as ``not_run``; a failed read or agent call stops
    nothing. Agent calls are bounded by the limits that queue them alone.

    Raises:
        asyncio.CancelledError: the turn was interrupted; every call of it has its recorded result.
        LeaseLostError: the run is no longer ours; calls without result are left as they are.
    """
    groups = plan_groups(calls, executor.resolve)
    if note is not None:
        await note(
            "tool_queued",
            {
                "groups": [[call.id for call in group.calls] for group in groups],
                "kinds": [group.kind.value for group in groups],
                "tools": {call.id: call.tool for group in groups for call in group.calls},
            },
        )
    ended: list[ToolResult] = []
    begun: set[int] = set()
    for position, group in enumerate(groups):
        limit = None if group.kind is GroupKind.AGENTS else parallel_limit
        try:
            results = await _run_group(group, executor, limit, begun)
        except asyncio.CancelledError as signal:
            unfinished = [call for each in groups[position:] for call in each.calls]
            if note is not None:  # kept back, so it is written with the ends of the calls that follow
                reason = str(signal.args[0]) if signal.args else "the run was interrupted"
                await note(ABORTED_EVENT, {"calls": [call.id for call in unfinished], "reason": reason})
            await _abort_all([call for call in unfinished if id(call) not in begun], executor)
            raise
        ended += results
        if group.kind is GroupKind.WRITE and results[-1].is_error:
            message = f"not run: the earlier write {group.calls[-1].id!r} ({group.calls[-1].tool}) did not succeed"
            later = [call for following in groups[position + 1 :] for call in following.calls]
            ended += [await executor.refuse(call, ErrorType.NOT_RUN, message) for call in later]
            break
    if note is not None:
        await note("tool_yielded", {"calls": [result.tool_call_id for result in ended]})
    return ended


async def _run_group(group: Group, executor: Executor, limit: int | None, begun: set[int]) -> list[ToolResult]:
    room = asyncio.Semaphore(limit or len(group.calls))

    async def one(call: ToolCall) -> ToolResult:
        async with room:
            begun.add(id(call))  # from here on the executor records its end, whatever happens
            return await executor.execute(call)

    if len(group.calls) == 1:
        return [await one(group.calls[0])]
    return await _together([asyncio.ensure_future(one(call)) for call in group.calls])


async def _together(tasks: Sequence["asyncio.Future[ToolResult]"]) -> list[ToolResult]:
    """Wait for all. When one raises (the run is lost) or we are interrupted, end the others before continuing."""
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _abort_all(calls: Sequence[ToolCall], executor: Executor) -> None:
    """Record the end of calls that were never made; later interrupts wait for it."""
    for call in calls:
        with contextlib.suppress(asyncio.CancelledError):
            await executor.refuse(call, ErrorType.ABORTED, "aborted before it started")


def _kind_of(call: ToolCall, definition: ToolDefinition | None) -> GroupKind:
    if definition is None:
        return GroupKind.WRITE
    if definition.is_agent_tool or definition.name in DELEGATION_TOOLS:
        return GroupKind.AGENTS
    call_input: Json = {}
    if definition.traits is not None:  # it looks at the input; what is not an object will be refused and touch nothing
        with contextlib.suppress(ToolError):
            call_input = repaired(definition.input_schema, parsed(call.arguments))
    traits = effective_traits(definition, call_input if isinstance(call_input, dict) else {})
    if not traits.is_read_only:
        return GroupKind.WRITE
    return GroupKind.READS if traits.is_concurrency_safe else GroupKind.READ
