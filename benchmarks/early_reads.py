"""S1: from the end of a model's stream to the next request, where the answer makes calls that only read (EXE-10).

A stream of our own makes five reads and then writes text for longer than each of them takes. Peer is the same answer in
one piece, whose reads begin at its end. The loop and the pipeline are the real ones, and the run's log is in memory. So
this measures what is left of a read when the stream has ended.
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from benchmarks.report import Figure, Finding
from soong.shared.agents.loop import run_agent
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.tools.definition import Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from tests.unit.agents.parts import Notebook, RuleGate, make_task

NAME: Final = "early-reads"
LIMIT_MS: Final = 50.0
READS: Final = 5
READ_S: Final = 0.1
WRITING_S: Final = 0.15
"""How long the model writes text after its last call."""
RUNS: Final = 10

_INPUT: Final[JsonObject] = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@dataclass(slots=True)
class _Answer:
    """A model that makes its reads in the first turn and answers in the second; notes when the first has ended."""

    ended_s: float = 0.0
    waited_ms: float = field(default=0.0)

    async def stream(self, messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        if self._is_second(messages):
            yield "done"
            return
        for number in range(READS):
            yield {number: DeltaToolCall("test__read", f'{{"name": "{number}"}}', tool_call_id=f"c{number}")}
        await asyncio.sleep(WRITING_S)
        yield "I have asked for five files."
        self.ended_s = time.perf_counter()

    async def whole(self, messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if self._is_second(messages):
            return ModelResponse(parts=[TextPart("done")])
        await asyncio.sleep(WRITING_S)
        self.ended_s = time.perf_counter()
        calls = [ToolCallPart("test__read", {"name": str(number)}, f"c{number}") for number in range(READS)]
        return ModelResponse(parts=calls)

    def _is_second(self, messages: list[ModelMessage]) -> bool:
        if self.ended_s:
            self.waited_ms = (time.perf_counter() - self.ended_s) * 1000
        return len(messages) > 1


async def _read(_context: ToolContext, call_input: JsonObject) -> Json:
    await asyncio.sleep(READ_S)
    return call_input["name"]


async def _run(*, is_streamed: bool) -> float:
    answer, notebook = _Answer(), Notebook()
    tool = ToolDefinition("test.read", "Read.", _INPUT, _read, Permission.READONLY)
    task = replace(make_task(tools=(tool,)), is_streamed=is_streamed)
    scope = RunScope(task.identity, 1, RunDirs(Path("/p"), Path("/p"), Path("/r")))
    pipeline = ToolPipeline((tool,), scope, RuleGate(), notebook)
    model = FunctionModel(answer.whole, stream_function=answer.stream)
    await run_agent(task, model, pipeline, notebook, notebook, SystemClock())
    return answer.waited_ms


async def _measure(rounds: int) -> Finding:
    ours: list[float] = []
    peer: list[float] = []
    await _run(is_streamed=True)  # imports and first calls
    for _ in range(rounds * RUNS):
        ours.append(await _run(is_streamed=True))
        peer.append(await _run(is_streamed=False))
    own, other = statistics.median(ours), statistics.median(peer)
    name = "S1-early-reads"
    figure = Figure(
        name, "none", "p50, to next request", "ms", round(own, 3), "one piece", round(other, 3), own / other
    )
    slowest = statistics.quantiles(ours, n=20)[-1]
    broken = f"{name}: the 95th percentile is {slowest:.1f} ms, more than {LIMIT_MS:g} ms after the stream's end"
    return Finding((figure,), (broken,) if slowest > LIMIT_MS else ())


def run(rounds: int) -> Finding:
    """Measure both in turn, so that whatever else the machine does falls on both."""
    return asyncio.run(_measure(rounds))
