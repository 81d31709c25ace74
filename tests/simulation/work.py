"""What a child agent does in a simulation: it writes to its log, waits, and ends as its script says.

A resumed run goes on where its log ends, as a real one does; a poisonous step ends the process that runs it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.agents.runtime.permission_gate import DecisionInbox, RunGate
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.tasks.plan.plan import bind_step
from soong.shared.engine.tasks.spec import BoundStep, ClaimMode, StepStatus
from soong.shared.engine.tasks.step import Claim, Lease, Step, StepEnd
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.signing import Signer
from soong.shared.storage.store import Store
from soong.shared.tools.definition import Permission, Risk, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.limits import TimeLimit, UntimedGate
from soong.shared.tools.ports import GateCall
from soong.worker.held_runs import AdditionalSteps
from soong.worker.parking import ParkingCoordinator, RunParking
from tests.simulation.borders import never
from tests.waiting import others_run

HOME: Final = "/home/simulated"
SIGNER: Final = Signer(Ed25519PrivateKey.from_private_bytes(b"simulated deployments have one!!"))
"""The same in every run: a seed's story holds its id."""


async def _unused(_context: ToolContext, _input: JsonObject) -> None:
    raise AssertionError("a gate runs no tool")


TOOL: Final = ToolDefinition(
    name="sim.write",
    description="Write.",
    input_schema={"type": "object"},
    handler=_unused,
    permission=Permission.WRITE,
    tags=frozenset({"write"}),
)


@dataclass(slots=True)
class AskedCalls:
    """The calls of the runs of one worker process that need consent."""

    store: Store
    notifier: Notifier
    inbox: DecisionInbox
    clock: Clock
    lot: ParkingCoordinator
    host: "Host"
    effects: "Effects"

    @classmethod
    def of(
        cls,
        store: Store,
        notifier: Notifier,
        board: Subscriber,
        clock: Clock,
        host: "Host",
        effects: "Effects",
        lot: ParkingCoordinator,
    ) -> "AskedCalls":
        return cls(store, notifier, DecisionInbox(store.consent, board, ""), clock, lot, host, effects)

    async def make(self, claim: Claim, number: int, limit: TimeLimit, interruption: StopSignal) -> None:
        """Make so many calls in one turn; what a former life of the run has ended or begun is not made again."""
        task = asyncio.current_task()
        assert task is not None
        run_id = claim.identity.run_id
        self.inbox.worker_id = self.host.worker_id
        held = Lease(claim.step_key, run_id, claim.fence)
        parking = RunParking(self.lot, self.host.worker_id, held, interruption, task, _nothing_is_kept)
        policy = Policy.from_json(claim.policy)
        gate = RunGate(
            self.store,
            self.notifier,
            self.inbox,
            self.clock,
            policy,
            claim.token,
            home=HOME,
            interruption=interruption,
            waiting=parking.waiting,
        )
        known = {row.tool_call_id for row in await self.store.runs.calls(run_id)} if claim.is_resumed else set()
        asked = UntimedGate(gate, limit)
        with self.lot.entered(parking):
            calls = [f"call_{place}" for place in range(number) if f"call_{place}" not in known]
            await _together([self._make(claim, call_id, asked, parking) for call_id in calls])

    async def _make(self, claim: Claim, call_id: str, gate: UntimedGate, parking: RunParking) -> None:
        with parking.call():
            verdict = await gate.decide(_gate_call(claim, call_id))
            row = _row(claim, call_id, verdict.decision_id if verdict.is_allowed else "")
            if verdict.is_allowed:
                await self.store.runs.start_call(row, claim.fence, events=(), now_us=self.clock.now_us())
                self.host.acts(claim)
                self.effects.happened(claim.identity.run_id, call_id)
                await asyncio.sleep(0.5)
            await self.store.runs.end_call(
                claim.identity.run_id,
                claim.fence,
                call_id,
                result={"error": None if verdict.error is None else str(verdict.error)},
                nodes=(),
                events=(),
                now_us=self.clock.now_us(),
                call=row,
            )


async def _nothing_is_kept() -> None:
    """Everything of a simulated run is written at once."""


async def _together(works: Sequence["asyncio.Future[None] | object"]) -> None:
    """Wait for all; when one raises or we are interrupted, end the others before going on."""
    tasks: list[asyncio.Task[None]] = [asyncio.get_running_loop().create_task(work) for work in works]  # type: ignore[arg-type]  # coroutines
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _gate_call(claim: Claim, call_id: str) -> GateCall:
    call_input: JsonObject = {"path": f"/work/out/{call_id}"}
    return GateCall(
        identity=claim.identity,
        fence=claim.fence,
        tool_call_id=call_id,
        definition=TOOL,
        permission_input=call_input,
        input_digest=digest(call_input),
        traits=Traits(),
        target=Target(kind="path", scope="/work/out", shown=f"/work/out/{call_id}", precondition="absent"),
        risk=Risk.WRITE,
        cwd="/work",
    )


def _row(claim: Claim, call_id: str, decision_id: str) -> CallRow:
    run_id = claim.identity.run_id
    return CallRow(run_id, call_id, TOOL.name, f"{run_id}/{call_id}", True, "", {}, {}, decision_id, CallStatus.STARTED)


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
