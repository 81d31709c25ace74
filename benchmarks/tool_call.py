"""T1: what one tool call costs beside the function that it calls.

The same function, an addition of two integers told as JSON text, is called in turn

- directly, as the handler alone: no parsing, no validation;
- through the :class:`shared.tools.pipeline.ToolPipeline` without persistence: lookup, strict parsing, validation,
  traits and risk, digest, policy, time limit, rendering, redaction, a log that keeps nothing;
- through the same pipeline with the worker's call log over a SQLite store whose commits wait for the disk;
- through Pydantic AI's own :class:`pydantic_ai.tool_manager.ToolManager`, which parses and validates the arguments of a
  ``ToolCallPart`` and calls the function in a ``FunctionToolset``: no permission, no time limit, no record.

Rounds are interleaved, so that whatever else the machine does falls on all of them; figures are medians of rounds.
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
from collections.abc import AsyncIterator, Awaitable, Callable
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
from benchmarks.report import Figure, table
from shared.adapters.sql.store import SqlStore, open_store
from shared.clock import SystemClock
from shared.identity import Role, RunIdentity
from shared.jsontext import JsonObject
from shared.permissions.policy import Policy, evaluate
from shared.permissions.rules import Effect
from shared.tasks.step import Claim
from shared.testing.builders import make_session, make_step, make_task, make_worker
from shared.tools.definition import HandlerOutput, Permission, ToolContext, ToolDefinition, Workplace
from shared.tools.pipeline import RunScope, ToolPipeline
from shared.tools.ports import CallLog, GateCall, StartedCall, ToolCall, Verdict
from shared.tools.result import ArtifactRef, ToolResult
from worker.call_log import RunCallLog

NAME: Final = "T1-tool-call"
PEER: Final = "Pydantic AI ToolManager"
LIMIT_US: Final = 200.0
"""What a call through the pipeline without persistence may cost more than its handler."""

ARGUMENTS: Final = '{"a": 20, "b": 22}'
INPUT: Final[JsonObject] = {"a": 20, "b": 22}
PLACE: Final = Workplace(Path("/project"), Path("/project"), Path("/run"))

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


class _NoProgress:
    async def report(self, message: str, data: JsonObject | None = None) -> None:
        del message, data


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of calling the function, and how often a round does it."""

    name: str
    call: Call
    per_round: int


@dataclass(frozen=True, slots=True)
class Found:
    """Medians in microseconds a call, and the transactions of one persisted call."""

    direct_us: float
    pipeline_us: float
    persisted_us: float
    peer_us: float
    transactions: float

    @property
    def over_handler_us(self) -> float:
        return self.pipeline_us - self.direct_us

    def figures(self) -> list[Figure]:
        """Return the lines of the report; "over the handler" is held to :data:`LIMIT_US`."""
        over, peer_over = self.over_handler_us, self.peer_us - self.direct_us
        return [
            Figure(NAME, "none", "over the handler", "us", round(over, 1), PEER, round(peer_over, 1), over / peer_over),
            Figure(NAME, "none", "call", "us", round(self.pipeline_us, 1), PEER, round(self.peer_us, 1), self._ratio),
            Figure(NAME, "none", "handler alone", "us", round(self.direct_us, 2), "-", None, None),
            Figure(NAME, "sqlite", "call", "us", round(self.persisted_us, 1), "-", None, None),
            Figure(NAME, "sqlite", "transactions", "1/call", self.transactions, "-", None, None),
        ]

    @property
    def _ratio(self) -> float:
        return self.pipeline_us / self.peer_us


def direct_call() -> Call:
    context = ToolContext(_identity(), PLACE, "call", "effect", 1, _NoProgress())
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
        samples: dict[str, list[float]] = {each.name: [] for each in candidates}
        for number in range(rounds + 1):
            for each in candidates:
                elapsed_us = await _timed(each)
                if number:
                    samples[each.name].append(elapsed_us)
        made = (rounds + 1) * max(1, per_round // 10)
        transactions = ((ledger.transactions() or 0) - before) / made
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return Found(medians["direct"], medians["pipeline"], medians["persisted"], medians["peer"], transactions)


async def _check(candidates: list[Candidate]) -> None:
    """See that each of them gives the sum, so that no failure is measured."""
    for each in candidates:
        result: Any = await each.call()
        if (result.data if isinstance(result, ToolResult) else result) != 42:
            raise AssertionError(f"{each.name} gave {result!r}")


async def _timed(candidate: Candidate) -> float:
    call = candidate.call
    gc.collect()  # nobody pays for what another left behind
    start = time.perf_counter()
    for _ in range(candidate.per_round):
        await call()
    return (time.perf_counter() - start) * 1e6 / candidate.per_round


@asynccontextmanager
async def _persisted() -> AsyncIterator[tuple[Call, SqliteLedger]]:
    """Yield the call whose record a store keeps, under a claim like a worker's, and the store's ledger."""
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as folder:
        database = Path(folder) / "bench.db"
        store = await open_store(f"sqlite:///{database}", migrate=True)
        try:
            claim = await _claim(store)
            log = RunCallLog(store, _NoArtifacts(), SystemClock(), claim.identity.run_id, claim.fence)
            yield pipeline_call(claim.identity, claim.fence, log), SqliteLedger(database)
        finally:
            await store.close()


async def _claim(store: SqlStore) -> Claim:
    session, worker = make_session(owner_id="own_bench"), make_worker()
    await store.open_session(session)
    await store.register_worker(worker)
    await store.create_task(make_task(session.id, make_step("a")))
    advance = await store.advance(
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
