"""Runs that wait for consent without a slot, in memory, and the closing of questions that nobody waits for."""

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.status import RunEvent
from soong.shared.engine.tasks.status import StepEvent, StepStatus, advance_step
from soong.shared.engine.tasks.step import Lease, Step
from soong.shared.permissions.request import PermissionRequest, RequestState
from tests.model.memory.logs import move_run, note_run, note_step
from tests.model.memory.rows import Rows


def is_parked(rows: Rows, held: Lease) -> bool:
    """Say whether a step is parked under that fence: an answer that was lost is given again."""
    step = rows.steps.get(held.step_key)
    if step is None or step.status is not StepStatus.BLOCKED:
        return False
    return (step.run_id, step.fence) == (held.run_id, held.fence)


def parked(rows: Rows, step: Step, asked: list[str], max_parked: int, now_us: int) -> bool:
    """Park a held step if its session has room for another one; say whether it has."""
    others = [each for each in rows.steps.values() if each.session_id == step.session_id]
    if any(each.holder_run_id == step.run_id and each.status.is_leased for each in others):
        return False  # what it holds beside its own would wait with it
    if sum(each.status is StepStatus.BLOCKED for each in others) >= max_parked:
        return False
    rows.steps[step.key] = replace(step, status=advance_step(step.status, StepEvent.PARK), worker_id="")
    rows.unparked.discard(step.key)
    run = move_run(rows, step.run_id, RunEvent.PARK)
    rows.runs[run.id] = replace(run, worker_id="")
    note_step(rows, step, EventType.STEP_BLOCKED, now_us, fence=step.fence)
    note_step(rows, step, EventType.RUN_PARKED, now_us, fence=step.fence, requests=list(asked))
    return True


def unpark(rows: Rows, request: PermissionRequest, now_us: int) -> bool:
    """Let the run of a question that was just closed go on, if it was parked; say whether it was."""
    step = rows.steps.get(request.identity.step_key)
    if step is None or step.status is not StepStatus.BLOCKED or step.run_id != request.identity.run_id:
        return False
    rows.steps[step.key] = replace(step, status=advance_step(step.status, StepEvent.UNPARK))
    rows.unparked.add(step.key)
    move_run(rows, step.run_id, RunEvent.UNPARK)
    note_step(rows, step, EventType.STEP_UNPARKED, now_us, request=request.id)
    return True


def pending_of(rows: Rows, run_id: str) -> list[PermissionRequest]:
    """Return the open questions of a run."""
    return [
        request
        for request in rows.requests.values()
        if request.identity.run_id == run_id and rows.request_states[request.id] is RequestState.PENDING
    ]


def withdraw_of(rows: Rows, run_id: str, reason: str, now_us: int) -> None:
    """Withdraw the open questions of a run that does not go on."""
    for request in pending_of(rows, run_id):
        withdraw(rows, request, reason, now_us)


def withdraw(rows: Rows, request: PermissionRequest, reason: str, now_us: int) -> None:
    """Close a pending question without a decision, and tell its run."""
    rows.request_states[request.id] = RequestState.WITHDRAWN
    data = {"request_id": request.id, "tool_call_id": request.tool_call_id, "reason": reason}
    note_run(rows, request.identity.run_id, EventType.PERMISSION_WITHDRAWN, now_us, **data)
