"""What a child agent does in a simulation: it writes to its log, waits, and ends as its script says.

A resumed run goes on where its log ends, as a real one does; a poisonous step ends the process that runs it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.spec import BoundStep, ClaimMode, StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step, StepEnd
from soong.shared.storage.store import Store
from soong.shared.tools.time_limit import TimeLimit
from soong.worker.held_runs import AdditionalSteps
from tests.simulation.asking import AskedCalls
from tests.simulation.borders import never
from tests.waiting import others_run


@dataclass(slots=True)
class Effects:
    """Counts by run and call."""

    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def happened(self, run_id: str, call_id: str) -> None:
        self.seen[run_id, call_id] += 1

    def repeated(self) -> list[tuple[str, str]]:
        return [call for call, times in self.seen.items() if times > 1]


@dataclass(slots=True)
class SimulationHarness:
    """What all work of a deployment has in common."""

    starts: Counter[str] = field(default_factory=Counter)
    acts: int = 0
    effects: Effects = field(default_factory=Effects)


class Host(Protocol):
    """The worker process in which the work is done."""

    @property
    def worker_id(self) -> str: ...

    @property
    def additional(self) -> AdditionalSteps:
        """What the process's runs hold beside their own steps."""

    def kill(self) -> None: ...

    def acts(self, claim: Claim) -> None:
        """Check an act: its process holds the lease, unless the lease has just been released."""


@dataclass(slots=True)
class ScriptedWork:
    """Implements ``soong.worker.run.AgentSteps``."""

    store: Store
    clock: Clock
    host: Host
    bench: SimulationHarness
    asked: AskedCalls

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        script = bound.inputs
        if "does" not in script:
            return await Pulling(self.store, self.host, self._work).run(claim)
        self.bench.starts[claim.step_key] += 1
        try:
            await self._write_log(claim, script)
            if script["does"] == "asks":
                await self.asked.make(claim, _number(script["asks"]), limit, interruption)
            return await self._end(claim, script)
        except asyncio.CancelledError:
            if script["does"] == "stubborn":
                await asyncio.sleep(1.0)
            raise

    async def _work(self, claim: Claim, script: JsonObject) -> StepEnd:
        """Work on a step that the run holds beside its own."""
        self.bench.starts[claim.step_key] += 1
        await self._act(claim, script)
        return await self._end(claim, script)

    async def _write_log(self, claim: Claim, script: JsonObject) -> None:
        """Write what is not written yet, each entry under the fence, with pauses in between."""
        run_id = claim.identity.run_id
        done = len(await self.store.runs.nodes(run_id)) if claim.is_resumed else 0
        for number in range(done, _number(script["writes"])):
            await self._act(claim, script)
            await self.store.runs.append(
                run_id,
                claim.fence,
                nodes=[NewNode(NodeKind.ASSISTANT, {"v": 1, "number": number})],
                events=[NewEvent(EventType.MODEL_REQUESTED), NewEvent(EventType.MODEL_RESPONDED)],
                now_us=self.clock.now_us(),
            )
        await self._act(claim, script)
        if script["writes"]:
            held = Lease(claim.step_key, run_id, claim.fence)
            await self.store.claims.report_progress(self.host.worker_id, held, "nearly", now_us=self.clock.now_us())

    async def _act(self, claim: Claim, script: JsonObject) -> None:
        self.host.acts(claim)
        self.bench.acts += 1
        await asyncio.sleep(float(str(script["pause_s"])))

    async def _end(self, claim: Claim, script: JsonObject) -> StepEnd:
        is_first = claim.attempt <= _number(script["first"])
        match script["does"]:
            case "broken":
                return claim.failed("execution_failed", "simulated: it never works")
            case "flaky" if is_first:
                return claim.failed("provider_failed", "simulated: it works later", retryable=True)
            case "raise" if is_first:
                raise RuntimeError("simulated: it raised")
            case "self_cancel" if is_first:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await others_run()
            case "slow":
                await asyncio.sleep(15.0)
            case "poison" if self.bench.starts[claim.step_key] <= _number(script["first"]):
                self.host.kill()
                await never()
        output: Json = {"sum": 1 + total(script["from"]), "items": list(range(_number(script["items"])))}
        return StepEnd(
            claim.step_key, claim.identity.run_id, claim.fence, StepStatus.COMPLETED, EndReason.COMPLETED, output=output
        )


def total(value: Json) -> int:
    """Return the sum of all ``sum`` fields in outputs, however they are nested."""
    if isinstance(value, list | tuple):
        return sum(total(item) for item in value)
    if isinstance(value, dict):
        return _number(value.get("sum") or 0)
    return 0


def _number(value: Json) -> int:
    return int(str(value))


class Holder(Protocol):
    """The worker process, with what its runs hold beside their own steps."""

    @property
    def additional(self) -> AdditionalSteps: ...


@dataclass(frozen=True, slots=True)
class Pulling:
    """``work`` is what becomes of a claimed step by its script, the same as if its own run had it."""

    store: Store
    host: Holder
    work: Callable[[Claim, JsonObject], Awaitable[StepEnd]]

    async def run(self, own: Claim) -> StepEnd:
        holder = Lease(own.step_key, own.identity.run_id, own.fence)
        while (claim := await self._claim(own, holder)) is not None:
            script = bind_step(claim.spec, claim.task_inputs, claim.dependencies).inputs
            if script["is_greedy"]:
                await self._claim(own, holder)  # which is refused: one at a time
            end = await self.work(claim, script)
            if script["is_unreported"] and end.status is StepStatus.COMPLETED:
                return _answer(own, end)
            await self.host.additional.end(holder, end)
        return _answer(own)

    async def _claim(self, own: Claim, holder: Lease) -> Claim | None:
        """Take the first step that is given; None when none is."""
        for step in await self.store.tasks.steps(own.identity.task_id):
            if _is_open(step):
                claim = await self.host.additional.claim(holder, step.step_id)
                if isinstance(claim, Claim):
                    return claim
        return None


def _is_open(step: Step) -> bool:
    return step.status is StepStatus.READY and step.claim_mode is ClaimMode.PULL


def _answer(own: Claim, last: StepEnd | None = None) -> StepEnd:
    """Return the pull worker's own end: with the result of the step that it did not report, if there is one."""
    return StepEnd(
        own.step_key,
        own.identity.run_id,
        own.fence,
        StepStatus.COMPLETED,
        EndReason.COMPLETED,
        output=None if last is None else last.output,
    )
