"""T1: what one tool call costs beside the function that it calls.

The same function, an addition of two integers told as JSON text, is called in turn

- directly, as the handler alone: no parsing, no validation;
- through the :class:`soong.shared.tools.pipeline.ToolPipeline` without persistence: lookup, strict parsing, validation,
  traits and risk, digest, policy, time limit, rendering, redaction, a log that keeps nothing;
- through the same pipeline with the worker's call log over a SQLite store whose commits wait for the disk;
- through Pydantic AI's own :class:`pydantic_ai.tool_manager.ToolManager`, which parses and validates the arguments of a
  ``ToolCallPart`` and calls the function in a ``FunctionToolset``: no permission, no time limit, no record.

Rounds are interleaved, so that whatever else the machine does falls on all of them; figures are medians of rounds. What
is held to the limit is CPU time of the calling thread, on which all of a call without persistence happens: on a machine
with nothing else to do it is the elapsed time, on a busy one that says more of the others than of us.
``PYTHONPATH=. python -P -m benchmarks.tool_call --profile`` shows where the pipeline's time goes.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage

from benchmarks.ledger import SqliteLedger
from benchmarks.report import Figure, Finding, table
from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.rules import Effect
from soong.shared.storage.sql.store import SqlStore, open_store
from soong.shared.tools.definition import NO_PROGRESS, HandlerOutput, Permission, RunDirs, ToolContext, ToolDefinition
from soong.shared.tools.pipeline import RunScope, ToolPipeline
from soong.shared.tools.ports import CallLog, GateCall, StartedCall, ToolCall, Verdict
from soong.shared.tools.result import ArtifactRef, ToolResult
from tests.model.builders import make_session, make_step, make_task, make_worker

PART: Final = "tool-call"
NAME: Final = "T1-tool-call"
PEER: Final = "Pydantic AI ToolManager"
LIMIT_US: Final = 200.0
"""What a call through the pipeline without persistence may cost more than its handler."""

ARGUMENTS: Final = '{"a": 20, "b": 22}'
INPUT: Final[JsonObject] = {"a": 20, "b": 22}
PLACE: Final = RunDirs(Path("/project"), Path("/project"), Path("/run"))

Call = Callable[[], Awaitable[object]]


async def _add(_context: ToolContext, call_input: JsonObject) -> HandlerOutput:
    return int(str(call_input["a"])) + int(str(call_input["b"]))


async def _plain_add(a: int, b: int) -> int:
    """Add two integers."""
    return int(str(a)) + int(str(b))


_NUMBERS: Final[JsonObject] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
ADD: Final = ToolDefinition("bench.add", "Add two integers.", _NUMBERS, _add, Permission.READONLY)


class _PolicyGate:
    """The policy alone, as a worker asks it first; a read needs no more."""

    def __init__(self) -> None:
        self._policy = Policy()

    async def decide(self, call: GateCall) -> Verdict:
        verdict = evaluate(self._policy, call)
        is_allowed = verdict.effect is Effect.ALLOW
        return Verdict(is_allowed, "rule", verdict.rule, verdict.reason, error=verdict.error)


class _NullLog:
    """Keeps nothing."""

    async def started(self, started: StartedCall) -> None:
        del started

    async def finished(self, call: ToolCall, result: ToolResult, *, duration_ms: int, **_more: object) -> None:
        del call, result, duration_ms

    async def note(self, type: str, data: JsonObject) -> None:
        del type, data


class _NoArtifacts:
    async def put(self, data: bytes, media_type: str, name: str) -> ArtifactRef:
        raise AssertionError(f"a number needs no artifact: {name} of {media_type}, {len(data)} bytes")

    async def put_made(self, make: Callable[[], bytes], media_type: str, name: str) -> ArtifactRef:
        return await self.put(make(), media_type, name)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of calling the function, and how often a round does it."""

    name: str
    call: Call
    per_round: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one call, elapsed and of the calling thread's CPU; medians of rounds."""

    elapsed_us: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """What a call costs by each way, and the transactions of one persisted call."""

    direct: Cost
    pipeline: Cost
    persisted: Cost
    peer: Cost
    transactions: float

    @property
    def over_handler_us(self) -> float:
        """What the pipeline without persistence costs more than its handler; held to :data:`LIMIT_US`."""
        return self.pipeline.cpu_us - self.direct.cpu_us

    def finding(self) -> Finding:
        """Return the lines of the report and whether the limit held."""
        cost = f"a tool call costs {self.over_handler_us:.0f} us more than its handler, not {LIMIT_US:.0f}"
        return Finding(self.figures(), [cost] if self.over_handler_us > LIMIT_US else [])

    def figures(self) -> list[Figure]:
        """Return the lines of the report."""
        peer_over_us = self.peer.cpu_us - self.direct.cpu_us
        return [
            _figure("none", "cpu over the handler", self.over_handler_us, peer_over_us),
            _figure("none", "call", self.pipeline.elapsed_us, self.peer.elapsed_us),
            _figure("none", "handler alone", self.direct.elapsed_us),
            _figure("sqlite", "call", self.persisted.elapsed_us),
            _figure("sqlite", "transactions", self.transactions, unit="1/call"),
        ]


def _figure(store: str, metric: str, ours: float, theirs: float | None = None, *, unit: str = "us") -> Figure:
    peer = "-" if theirs is None else PEER
    ratio = round(ours / theirs, 4) if theirs else None
    return Figure(NAME, store, metric, unit, round(ours, 2), peer, None if theirs is None else round(theirs, 2), ratio)


def direct_call() -> Call:
    context = ToolContext(_identity(), PLACE, "call", "effect", 1, NO_PROGRESS)
    return lambda: _add(context, INPUT)


def pipeline_call(identity: RunIdentity, fence: int, log: CallLog) -> Call:
    """Return the call through a pipeline; every call has an id of its own."""
    pipeline = ToolPipeline([ADD], RunScope(identity, fence, PLACE), _PolicyGate(), log, artifacts=_NoArtifacts())
    numbers = count()
    return lambda: pipeline.execute(ToolCall(f"call_{next(numbers)}", ADD.name, ARGUMENTS))


async def peer_call() -> Call:
    """Return the call through Pydantic AI's tool manager."""
    context: RunContext[None] = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    manager = await ToolManager[None](FunctionToolset([_plain_add])).for_run_step(context)
    numbers = count()
    return lambda: manager.handle_call(ToolCallPart("_plain_add", ARGUMENTS, f"call_{next(numbers)}"))


async def measure(rounds: int, per_round: int = 200) -> Found:
    """Measure all candidates, round after round; the first round warms up and is not counted."""
    async with _persisted() as (persisted, ledger):
        candidates = [
            Candidate("direct", direct_call(), per_round * 10),
            Candidate("pipeline", pipeline_call(_identity(), 1, _NullLog()), per_round),
            Candidate("persisted", persisted, max(1, per_round // 10)),
            Candidate("peer", await peer_call(), per_round),
        ]
        await _check(candidates)
        before = ledger.transactions() or 0
        samples: dict[str, list[Cost]] = {each.name: [] for each in candidates}
        for number in range(rounds + 1):
            for each in candidates:
                cost = await _timed(each)
                if number:
                    samples[each.name].append(cost)
        made = (rounds + 1) * max(1, per_round // 10)
        transactions = ((ledger.transactions() or 0) - before) / made
    medians = {name: _median(costs) for name, costs in samples.items()}
    return Found(medians["direct"], medians["pipeline"], medians["persisted"], medians["peer"], transactions)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(cost.elapsed_us for cost in costs), statistics.median(cost.cpu_us for cost in costs))


async def _check(candidates: list[Candidate]) -> None:
    """See that each of them gives the sum, so that no failure is measured."""
    for each in candidates:
        result: Any = await each.call()
        if (result.data if isinstance(result, ToolResult) else result) != 42:
            raise AssertionError(f"{each.name} gave {result!r}")


async def _timed(candidate: Candidate) -> Cost:
    call = candidate.call
    gc.collect()  # nobody pays for what another left behind
    began_s, began_cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(candidate.per_round):
        await call()
    elapsed_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
    return Cost(elapsed_s * 1e6 / candidate.per_round, cpu_s * 1e6 / candidate.per_round)


@asynccontextmanager
async def _persisted() -> AsyncIterator[tuple[Call, SqliteLedger]]:
    """Yield the call whose record a store keeps, under a claim like a worker's, and the store's ledger."""
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as folder:
        database = Path(folder) / "bench.db"
        store = await open_store(f"sqlite:///{database}", migrate=True)
        try:
            claim = await _claim(store)
            log = RunCallLog(store.runs, _NoArtifacts(), SystemClock(), claim.identity.run_id, claim.fence)
            yield pipeline_call(claim.identity, claim.fence, log), SqliteLedger(database)
        finally:
            await store.close()


async def _claim(store: SqlStore) -> Claim:
    session, worker = make_session(owner_id="own_bench"), make_worker()
    await store.sessions.open_session(session)
    await store.sessions.register_worker(worker)
    await store.tasks.create_task(make_task(session.id, make_step("a")))
    advance = await store.claims.advance(
        worker.id, (), claim=1, pools=("default",), capabilities=(), live_workers=1, now_us=SystemClock().now_us()
    )
    return advance.claims[0]


def _identity() -> RunIdentity:
    return RunIdentity("sess_bench", "run_bench", "agent_bench", Role.WORKER, "default_worker_agent")


async def profile(number: int) -> pstats.Stats:
    """Profile the pipeline without persistence."""
    call = pipeline_call(_identity(), 1, _NullLog())
    profiler = cProfile.Profile()
    await call()
    profiler.enable()
    for _ in range(number):
        await call()
    profiler.disable()
    return pstats.Stats(profiler, stream=sys.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--profile", action="store_true", help="show where the pipeline's time goes")
    options = parser.parse_args()
    if options.profile:
        asyncio.run(profile(2000)).sort_stats("tottime").print_stats(40)
        return 0
    found = asyncio.run(measure(options.rounds))
    print(table(found.figures()))
    return 0 if found.over_handler_us < LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())
