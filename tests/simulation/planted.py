"""Stores with a defect each, as somebody could write them: what the simulation must find."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.claims import ClaimingRun
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Advance, Lease, Step, StepEnd
from soong.shared.engine.tasks.verdict import GrowMap, StepVerdict
from tests.model.memory import MemoryStore
from tests.model.memory.ending import parked
from tests.model.memory.rows import Rows, held_run, transaction, write_events


class FencelessStore(MemoryStore):
    """Takes the end of whoever says to have held the step."""

    def _held(self, worker_id: str, lease: Lease) -> Step | None:
        del worker_id
        step = self.rows.steps.get(lease.step_key)
        return step if step is not None and step.status.is_leased else None


class GenerousStore(MemoryStore):
    """Gives a run an additional step although it holds one."""

    def _claiming_run(self, worker_id: str, own: Step) -> ClaimingRun:
        return replace(super()._claiming_run(worker_id, own), open_step_id="")


class SilentStore(MemoryStore):
    """Does not tell a worker what it holds, so that a claim whose answer was lost is never given back."""

    @transaction
    def leases(self, worker_id: str) -> Sequence[Lease]:
        return []


class ForgetfulStore(MemoryStore):
    """Loses a map step whose list is empty: nothing ever completes it."""

    @transaction
    def write_verdict(self, ownership: Ownership, step_key: str, verdict: StepVerdict, *, now_us: int) -> bool:
        if verdict != GrowMap(()):
            return MemoryStore.write_verdict.__wrapped__(self, ownership, step_key, verdict, now_us=now_us)  # type: ignore[attr-defined, no-any-return]  # what the decorator wraps
        self.rows.steps[step_key] = replace(self.rows.step(step_key), status=StepStatus.WAITING)
        return True


class UnfairStore(MemoryStore):
    """Forgets whose turn it was: the oldest session always comes first."""

    async def advance(self, worker_id: str, ends: Sequence[StepEnd], **wish: Any) -> Advance:
        self.rows.last_claimed.clear()
        return await super().advance(worker_id, ends, **wish)


class _OwnerlessRows(Rows):
    def owned(self, ownership: Ownership) -> object:  # type: ignore[override]
        return self.session(ownership.session_id)


class OwnerlessStore(MemoryStore):
    """Takes the word of an owner whose session has another owner by now."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = _OwnerlessRows()


class LateStore(MemoryStore):
    """Parks a run whose question has been answered: nobody will ever wake it."""

    @transaction
    def park(self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int) -> bool:
        step = self._held(worker_id, held)
        return step is not None and parked(self.rows, step, sorted(request_ids), max_parked, now_us)


class DoubleStore(MemoryStore):
    """Forgets which decisions were used, and which calls were begun."""

    @transaction
    def start_call(self, call: CallRow, fence: int, *, events: Sequence[NewEvent], now_us: int) -> None:
        held_run(self.rows, call.run_id, fence)
        write_events(self.rows, call.run_id, events, now_us)
