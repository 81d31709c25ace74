"""Calls that ask a person, in a simulation: the product's own gate and parking, over a tool that does nothing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from soong.shared.agents.runtime.permission_gate import DecisionInbox, RunGate
from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.engine.wire.notifier import Notifier, Subscriber
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.signing import Signer
from soong.shared.storage.store import Store
from soong.shared.tools.definition import Permission, Risk, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.ports import GateCall
from soong.shared.tools.time_limit import TimeLimit, UntimedGate
from soong.worker.parking import ParkingCoordinator, RunParking

if TYPE_CHECKING:
    from tests.simulation.work import Effects, Host

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
