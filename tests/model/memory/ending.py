"""How steps end in memory, and what their end does to the steps that wait for them."""

from collections.abc import Iterator

from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType, NewNode, NodeKind
from soong.shared.engine.runs.status import EndReason, RunEvent
from soong.shared.engine.tasks.claims import ended_with_worker, poisoned
from soong.shared.engine.tasks.failure_report import FailureReport, is_unclean, of_map
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.status import STEP_ENDS, StepEvent, StepStatus, advance_step
from soong.shared.engine.tasks.step import Outcome, Step, StepEnd, StepError, StepResult
from tests.model.memory.logs import end_run, note_step, tell_step, write_events, write_nodes
from tests.model.memory.making import unlock_step
from tests.model.memory.parking import withdraw_of
from tests.model.memory.rows import Rows

_STEP_EVENT = {
    StepStatus.COMPLETED: (StepEvent.COMPLETE, EventType.STEP_COMPLETED, RunEvent.COMPLETE),
    StepStatus.FAILED: (StepEvent.FAIL, EventType.STEP_FAILED, RunEvent.FAIL),
    StepStatus.CANCELLED: (StepEvent.CANCEL, EventType.STEP_CANCELLED, RunEvent.CANCEL),
}


def write_end(rows: Rows, end: StepEnd, now_us: int) -> None:
    """Write what a worker says of a step that it holds, and unlock what waited for it."""
    event, note, run_event = _STEP_EVENT[end.status]
    write_nodes(rows, end.run_id, _with_result(end), now_us)
    write_events(rows, end.run_id, end.events, now_us)
    step = replace(_move(rows, end.step_key, event, now_us), output=end.output, error=end.error)
    if end.status is StepStatus.COMPLETED:
        step = replace(step, outcome=end.outcome)
    rows.steps[step.key] = step
    note_step(rows, step, note, now_us, fence=end.fence, **({} if end.error is None else end.error.as_json()))
    rows.runs[end.run_id] = replace(rows.run(end.run_id), usage=end.usage)
    end_run(rows, end.run_id, run_event, end.end_reason, now_us)
    if rows.stopping.pop(step.key, None) is not None and end.status is StepStatus.FAILED:
        rows.settled.add(step.key)
    if end.status is StepStatus.COMPLETED:
        unlock_after(rows, step.key, now_us)


def _with_result(end: StepEnd) -> tuple[NewNode, ...]:
    if end.status is not StepStatus.COMPLETED or any(node.kind is NodeKind.RESULT for node in end.nodes):
        return end.nodes
    return (*end.nodes, NewNode(NodeKind.RESULT, {"v": 1, "output": end.output}))


def unlock_after(rows: Rows, step_key: str, now_us: int) -> None:
    """Count a step as done for its dependents and for its map."""
    for key in sorted(rows.dependents.get(step_key, ())):
        if rows.step(key).status is not StepStatus.PENDING:
            continue
        left = rows.step(key).open_deps - 1
        rows.steps[key] = replace(rows.step(key), open_deps=left)
        if left == 0:
            unlock_step(rows, key, now_us)
    map_key = rows.step(step_key).map_key
    if map_key and rows.step(map_key).status is StepStatus.WAITING:
        left = rows.step(map_key).open_deps - 1
        rows.steps[map_key] = replace(rows.step(map_key), open_deps=left)
        if left == 0:
            complete_map(rows, map_key, now_us)


def complete_map(rows: Rows, map_key: str, now_us: int) -> None:
    """Complete a map step whose children have all ended well enough, or that has none."""
    step = replace(_move(rows, map_key, StepEvent.COMPLETE, now_us), outcome=_map_outcome(rows, map_key))
    rows.steps[map_key] = step
    rows.untold[map_key] = now_us
    unlock_after(rows, map_key, now_us)


def fail_map(rows: Rows, map_key: str, error: StepError, now_us: int) -> None:
    """Fail a map step; its failure is settled like any other."""
    step = replace(_move(rows, map_key, StepEvent.FAIL, now_us), error=error, open_deps=0)
    rows.steps[map_key] = step
    note_step(rows, step, EventType.STEP_FAILED, now_us, **error.as_json())


def poison(rows: Rows, step: Step, now_us: int) -> None:
    """Fail a step that has lost its lease too often, or that had failed and whose function still ran."""
    error = ended_with_worker(step.lost_to) if step.error else poisoned(step.lost_leases, step.lost_to)
    moved = replace(_move(rows, step.key, StepEvent.QUARANTINE, now_us), error=error)
    rows.steps[step.key] = moved
    note_step(rows, moved, EventType.STEP_FAILED, now_us, **error.as_json())
    end_run(rows, step.run_id, RunEvent.FAIL, EndReason.LEASE_LOST, now_us)


def cancel_step(rows: Rows, step: Step, reason: str, now_us: int) -> None:
    """Cancel a step that has not ended, with its run."""
    rows.stopping.pop(step.key, None)
    if not step.status.is_leased:
        withdraw_of(rows, step.run_id, "its step was cancelled", now_us)
    tell_step(rows, step.key, now_us)
    moved = _move(rows, step.key, StepEvent.CANCEL, now_us)
    note_step(rows, moved, EventType.STEP_CANCELLED, now_us, reason=reason)
    if step.run_id:
        end_run(rows, step.run_id, RunEvent.CANCEL, EndReason.CANCELLED, now_us)


def cancel_all(rows: Rows, task_id: str, reason: str, now_us: int) -> frozenset[str]:
    """Cancel what is not leased, ask for the rest; return the workers that hold it. Failures become final."""
    for step in rows.steps_of(task_id):
        if step.status.is_leased:
            rows.stopping[step.key] = reason
        elif step.status is StepStatus.FAILED:
            rows.settled.add(step.key)
        elif step.status not in STEP_ENDS:
            cancel_step(rows, step, reason, now_us)
    return frozenset(step.worker_id for step in rows.steps_of(task_id) if step.status.is_leased)


def cancel_unheld(rows: Rows, task_id: str, reason: str, now_us: int) -> None:
    """Cancel what is not leased, and leave the rest to end by itself. Failures become final."""
    for step in rows.steps_of(task_id):
        if step.status is StepStatus.FAILED:
            rows.settled.add(step.key)
        elif step.status not in STEP_ENDS and not step.status.is_leased:
            cancel_step(rows, step, reason, now_us)


def skip_below(rows: Rows, step_key: str, now_us: int) -> None:
    """Skip every step that waits, at whatever distance, for one that will not complete."""
    for step in _below(rows, step_key):
        if step.status is not StepStatus.PENDING:
            continue
        moved = _move(rows, step.key, StepEvent.SKIP, now_us)
        note_step(rows, moved, EventType.STEP_SKIPPED, now_us, because=step_key)
        if step.run_id:
            end_run(rows, step.run_id, RunEvent.CANCEL, EndReason.CANCELLED, now_us)


def result_of(rows: Rows, step_key: str) -> StepResult:
    """Return what dependents see of a step, with what remains of one that did not end cleanly."""
    step = rows.step(step_key)
    children = rows.children_of(step_key) if step.kind is StepKind.MAP else []
    output = [result_of(rows, child.key).output for child in children] if step.kind is StepKind.MAP else step.output
    result = StepResult(step.step_id, step.status, output, step.outcome or Outcome.CLEAN)
    if not is_unclean(step.status, step.outcome):
        return result
    told = _remains(rows, step).added_to(result)
    if step.kind is not StepKind.MAP:
        return told
    unclean = [child for child in children if is_unclean(child.status, child.outcome)]
    return of_map(told, [result_of(rows, child.key) for child in unclean])


def _remains(rows: Rows, step: Step) -> FailureReport:
    last = {node.kind: node.payload for node in rows.nodes.get(step.run_id, ())}
    return FailureReport(step.error, step.progress, last.get(NodeKind.RESULT), last.get(NodeKind.ASSISTANT))


def _move(rows: Rows, step_key: str, event: StepEvent, now_us: int) -> Step:
    step = rows.step(step_key)
    moved = replace(step, status=advance_step(step.status, event), ended_us=now_us)
    rows.steps[step_key] = moved
    return moved


def _map_outcome(rows: Rows, map_key: str) -> Outcome:
    children = rows.children_of(map_key)
    is_clean = all(child.outcome is Outcome.CLEAN for child in children)
    return Outcome.CLEAN if is_clean else Outcome.PARTIAL


def _below(rows: Rows, step_key: str) -> Iterator[Step]:
    seen: set[str] = set()
    rest = list(rows.dependents.get(step_key, ()))
    while rest:
        key = rest.pop()
        if key not in seen:
            seen.add(key)
            rest.extend(rows.dependents.get(key, ()))
            yield rows.step(key)
