"""Builders for the tool system: small real tools, a gate and a log that remember what they were told."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.tools.definition import HandlerOutput, Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.hooks.chain import NO_HOOKS, Hooks
from soong.shared.tools.pipeline import DECIDED_EVENT, PipelineConfig, RunScope, ToolPipeline
from soong.shared.tools.ports import CallRecord, GateCall, StartedCall, ToolCall, Verdict
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.result import ArtifactRef, TextBlock, ToolFailure, ToolResult

TEXT_INPUT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}}


async def echo(_context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    return call_input.get("text", "")


def make_tool(name: str = "test.echo", **overrides: Any) -> ToolDefinition:
    tool = ToolDefinition(name, f"the tool {name}", TEXT_INPUT, echo, Permission.READONLY)
    return replace(tool, **overrides)


def make_registry(*tools: ToolDefinition) -> ToolRegistry:
    registry = ToolRegistry()
    for tool in tools:
        registry.register(tool)
    return registry


def make_identity(**overrides: Any) -> RunIdentity:
    return replace(RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, "reviewer"), **overrides)


def make_run_dirs(project: Path, **overrides: Any) -> RunDirs:
    place = RunDirs(project, project, project.parent / "run", (project,))
    return replace(place, **overrides)


ALLOWED = Verdict(is_allowed=True, author="rule", rule="test")


@dataclass
class RecordingGate:
    """Gives the same verdict to every call and keeps the questions."""

    verdict: Verdict = ALLOWED
    asked: list[GateCall] = field(default_factory=list)
    before: Callable[[], Awaitable[None]] | None = None

    async def decide(self, call: GateCall) -> Verdict:
        self.asked.append(call)
        if self.before is not None:
            await self.before()
        return self.verdict


@dataclass
class RecordingLog:
    """Keeps every entry in order, as (word, call id or type)."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    starts: list[StartedCall] = field(default_factory=list)
    ends: list[tuple[ToolCall, ToolResult, int]] = field(default_factory=list)
    records: list[CallRecord] = field(default_factory=list)
    notes: list[tuple[str, JsonObject]] = field(default_factory=list)
    decided: list[JsonObject] = field(default_factory=list)
    """What policy alone decided; apart from the other notes, as every permitted call has one."""
    fails_start: Exception | None = None

    async def started(self, started: StartedCall) -> None:
        if self.fails_start is not None:
            raise self.fails_start
        self.entries.append(("started", started.call.id))
        self.starts.append(started)

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        self.entries.append(("finished", call.id))
        self.ends.append((call, result, duration_ms))
        self.records.append(record or CallRecord())

    async def note(self, type: str, data: JsonObject) -> None:
        if type == DECIDED_EVENT:
            self.decided.append(data)
            return
        self.entries.append(("note", type))
        self.notes.append((type, data))


@dataclass
class Artifacts:
    stored: list[bytes] = field(default_factory=list)

    async def put(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        self.stored.append(data)
        return ArtifactRef(hashlib.sha256(data).hexdigest(), len(data), media_type, name)

    async def put_made(self, make: Callable[[], bytes], media_type: str, name: str) -> ArtifactRef:
        return await self.put(make(), media_type, name)


@dataclass
class PipelineHarness:
    """A pipeline and what is around it."""

    pipeline: ToolPipeline
    gate: RecordingGate
    log: RecordingLog
    artifacts: Artifacts

    async def call(self, tool: str, arguments: Json = None, /, **fields: Json) -> ToolResult:
        return await self.pipeline.execute(ToolCall("call_1", tool, fields if arguments is None else arguments))

    @property
    def ended(self) -> ToolResult:
        """The last recorded result."""
        return self.log.ends[-1][1]


def error_of(result: ToolResult) -> ToolFailure:
    """Return the error of a result that has one."""
    assert result.error is not None, result
    return result.error


def text_of(result: ToolResult) -> str:
    """Return the text of a result, block by block."""
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))


def gives(value: Any) -> Any:
    """Return a handler that gives this."""

    async def handler(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        return value  # type: ignore[no-any-return]

    return handler


def raising(error: BaseException) -> Any:
    async def handler(_context: ToolContext, _call_input: JsonObject) -> HandlerOutput:
        raise error

    return handler


def make_bench(
    tools: Sequence[ToolDefinition],
    *,
    project: Path = Path("/nonexistent/project"),
    verdict: Verdict = ALLOWED,
    hooks: Hooks = NO_HOOKS,
    config: PipelineConfig | None = None,
    place: Mapping[str, Any] | None = None,
    gate: RecordingGate | None = None,
    **more: Any,
) -> PipelineHarness:
    gate, log, artifacts = gate or RecordingGate(verdict), RecordingLog(), Artifacts()
    run = RunScope(make_identity(), 7, make_run_dirs(project, **(place or {})))
    registered = make_registry(*tools).definitions()
    config = config or PipelineConfig()
    pipeline = ToolPipeline(registered, run, gate, log, hooks=hooks, artifacts=artifacts, config=config, **more)
    return PipelineHarness(pipeline, gate, log, artifacts)
