"""How steps end in memory, what their end does to the steps that wait for them, and which steps a worker gets."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.identity import Role, step_key
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason, RunEvent, RunStatus, Usage
from soong.shared.engine.runs.store import CallStatus
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.change import why_failed
from soong.shared.engine.tasks.claims import (
    ClaimingRun,
    ClaimRefusal,
    RequestedStep,
    ended_with_worker,
    limited,
    poisoned,
    refusal,
)
from soong.shared.engine.tasks.failure_report import FailureReport, is_unclean, of_map
from soong.shared.engine.tasks.spec import (
    STEP_ENDS,
    ClaimMode,
    FailurePolicy,
    StepEvent,
    StepGate,
    StepKind,
    StepStatus,
    TaskEvent,
    TaskStatus,
    advance_step,
    advance_task,
)
from soong.shared.engine.tasks.step import Claim, Lease, Outcome, Step, StepEnd, StepError, StepResult, Task
from soong.shared.engine.tasks.store import FinishedTask
from soong.shared.permissions.request import PermissionRequest, RequestState
from tests.model.memory.rows import (
    Part,
    Rows,
    end_run,
    move_run,
    note_run,
    note_step,
    open_step,
    tell_step,
    transaction,
    unlock_step,
    write_events,
    write_nodes,
)

_STEP_EVENT = {
    StepStatus.COMPLETED: (StepEvent.COMPLETE, EventType.STEP_COMPLETED, RunEvent.COMPLETE),
    StepStatus.FAILED: (StepEvent.FAIL, EventType.STEP_FAILED, RunEvent.FAIL),
    StepStatus.CANCELLED: (StepEvent.CANCEL, EventType.STEP_CANCELLED, RunEvent.CANCEL),
}

FEW_RUNS = 32
"""Of a task with more, the folders are looked for after its end."""

_TASK_ENDS = {
    TaskEvent.COMPLETE: (EventType.TASK_COMPLETED, RunEvent.COMPLETE, EndReason.COMPLETED),
    TaskEvent.FAIL: (EventType.TASK_FAILED, RunEvent.FAIL, EndReason.FAILED),
    TaskEvent.CANCEL: (EventType.TASK_CANCELLED, RunEvent.CANCEL, EndReason.CANCELLED),
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


def skip_below(rows: Rows, step_key: str, now_us: int, outcome: Outcome | None = None) -> None:
    """Skip every step that needs, at whatever distance, one that will not complete; open what waited for its end."""
    joins = []
    for step in _below(rows, step_key):
        if step.status is not StepStatus.PENDING:
            continue
        if step.gate is StepGate.ENDED:
            joins.append(step.key)
            continue
        moved = replace(_move(rows, step.key, StepEvent.SKIP, now_us), outcome=outcome)
        rows.steps[step.key] = moved
        note_step(rows, moved, EventType.STEP_SKIPPED, now_us, because=step_key)
        if step.run_id:
            end_run(rows, step.run_id, RunEvent.CANCEL, EndReason.CANCELLED, now_us)
    recount(rows, sorted(joins), now_us)


def recount(rows: Rows, step_keys: Iterable[str], now_us: int) -> int:
    """Count again what pending steps wait for; open those that wait for nothing. Return how many."""
    opened = 0
    for key in step_keys:
        step = rows.step(key)
        if step.status is not StepStatus.PENDING or not step.open_deps:
            continue
        left = sum(not _is_done(rows, rows.step(parent), step.gate) for parent in set(step.depends_on))
        rows.steps[key] = replace(step, open_deps=min(left, step.open_deps))
        if not left:
            opened += 1
            open_step(rows, key, now_us)
    return opened


def _is_done(rows: Rows, parent: Step, gate: StepGate) -> bool:
    is_any_end = gate is StepGate.ENDED
    if parent.status is StepStatus.FAILED:
        return parent.key in rows.settled and (is_any_end or parent.on_failure is FailurePolicy.KEEP)
    return parent.status is StepStatus.COMPLETED or (is_any_end and parent.status in STEP_ENDS)


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
    open_calls = [
        call
        for (run_id, _), call in rows.calls.items()
        if run_id == step.run_id and call.is_write and call.status is CallStatus.STARTED
    ]
    return FailureReport(step.error, step.progress, last.get(NodeKind.RESULT), last.get(NodeKind.ASSISTANT), open_calls)


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
            rest.extend(rows.dependents.get(key, ()) if rows.step(key).gate is not StepGate.ENDED else ())
            yield rows.step(key)


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


def close_with_task(rows: Rows, session_id: str) -> bool:
    session = rows.session(session_id)
    mine = [task.status for task in rows.tasks.values() if task.session_id == session_id]
    closes = session.closes_with_task and all(status is TaskStatus.COMPLETED for status in mine)
    if closes:
        rows.sessions[session_id] = replace(session, is_closed=True)
    return closes


def tell_maps(rows: Rows, task: Task, now_us: int) -> None:
    for step in rows.steps_of(task.id):
        if step.kind is StepKind.MAP and step.status is StepStatus.COMPLETED:
            tell_step(rows, step.key, now_us)


def end_task(rows: Rows, task: Task, event: TaskEvent, reason: str, now_us: int) -> Task:
    ended = replace(task, status=advance_task(task.status, event), reason=reason, ended_us=now_us)
    rows.tasks[task.id] = ended
    tell_maps(rows, task, now_us)
    note, run_event, end_reason = _TASK_ENDS[event]
    note_run(rows, task.root_run_id, note, now_us, task=task.id, reason=reason)
    end_run(rows, task.root_run_id, run_event, end_reason, now_us)
    return ended


def finish(rows: Rows, task: Task, now_us: int) -> FinishedTask | None:
    """End a task of which nothing is left."""
    if task.status.is_terminal:
        return FinishedTask(task.id, task.status)
    tell_maps(rows, task, now_us)
    steps = rows.steps_of(task.id)
    unsettled = [step for step in steps if step.status is StepStatus.FAILED and step.key not in rows.settled]
    is_open = [step for step in steps if step.status not in STEP_ENDS]
    if not unsettled and all(step.status is StepStatus.PENDING and step.open_deps for step in is_open):
        recount(rows, [step.key for step in is_open], now_us)
    if unsettled or is_open:
        return None
    own = [step for step in steps if not (step.is_pull_worker or step.map_key or _is_left_out(step))]
    lost = [step for step in own if step.status is not StepStatus.COMPLETED]
    kept = [step for step in lost if step.status is StepStatus.FAILED and step.on_failure is FailurePolicy.KEEP]
    stopped = rows.stopped.get(task.id)
    has_losses = bool(lost) if stopped else len(lost) > len(kept)
    is_recorded = not has_losses and has_no_folders(rows, task)
    reason = (
        (stopped or why_failed([(one.status, one.step_id) for one in lost if one not in kept])) if has_losses else ""
    )
    status = end_task(rows, task, TaskEvent.FAIL if has_losses else TaskEvent.COMPLETE, reason, now_us).status
    is_closed = not has_losses and close_with_task(rows, task.session_id)
    if is_recorded:
        rows.recorded.add(task.id)
    return FinishedTask(task.id, status, is_closed, is_recorded)


def _is_left_out(step: Step) -> bool:
    """Say whether the plan's own conditions skipped a step."""
    return step.status is StepStatus.SKIPPED and step.outcome is not None


def has_no_folders(rows: Rows, task: Task) -> bool:
    """Say whether a task that completes has only few runs, and none of them a folder."""
    runs = [run for run in rows.runs.values() if run.identity.task_id == task.id]
    folders = [
        run
        for run in runs
        if run.usage != Usage()
        or (run.id != task.root_run_id and run.started_us is not None and run.status is not RunStatus.COMPLETED)
    ]
    return len(runs) <= FEW_RUNS and not folders


def scopes_of(step: Step) -> tuple[str, ...]:
    """Return the concurrency limit scopes that a lease of the step counts in."""
    named = (("session", step.session_id), ("definition", step.definition), ("model", step.model), ("pool", step.pool))
    return tuple(f"{kind}:{name}" for kind, name in named if name)


def counted_leases(rows: Rows) -> Counter[str]:
    """Return how many live leases each concurrency limit scope has; a step held beside another counts where that
    does not.
    """
    leases: Counter[str] = Counter()
    for step in rows.steps.values():
        if step.status.is_leased:
            own = rows.steps.get(rows.run(step.holder_run_id).identity.step_key) if step.holder_run_id else None
            shared = scopes_of(own) if own is not None and own.status.is_leased else ()
            leases.update(scope for scope in scopes_of(step) if scope not in shared)
    return leases


def claimable(rows: Rows, pools: Sequence[str], capabilities: Sequence[str]) -> list[Step]:
    """Return the ready steps that such a worker may run, whatever the concurrency limits say, oldest first."""
    return [
        step
        for step in rows.steps.values()
        if step.status is StepStatus.READY
        and step.claim_mode is ClaimMode.ASSIGNED
        and rows.task(step.task_id).status is TaskStatus.RUNNING
        and step.pool in pools
        and set(step.needs) <= set(capabilities)
    ]


def choose(rows: Rows, ready: Iterable[Step], quota: int) -> tuple[list[Step], bool]:
    """Choose at most ``quota`` steps by fairness, priority and age, within the concurrency limits; say whether more
    could go.
    """
    waiting = list(ready)
    leases = counted_leases(rows)
    chosen: list[Step] = []
    while True:
        allowed = [step for step in waiting if _fits(rows, step, leases)]
        if len(chosen) >= quota or not allowed:
            return chosen, bool(allowed)
        # min keeps the first of equals: the oldest.
        step = min(allowed, key=lambda step: _place(rows, step))
        rows.last_claimed[step.session_id] = max(rows.last_claimed.values(), default=0) + 1
        leases.update(scopes_of(step))
        chosen.append(step)
        waiting.remove(step)


def _place(rows: Rows, step: Step) -> tuple[int, bool, int]:
    return rows.last_claimed.get(step.session_id, 0), step.key not in rows.unparked, -step.priority


def _fits(rows: Rows, step: Step, leases: Counter[str]) -> bool:
    limits = limits_now(rows)
    return all(leases[scope] < limits[scope] for scope in scopes_of(step) if scope in limits)


def limits_now(rows: Rows) -> dict[str, int]:
    return rows.concurrency_limits | dict.fromkeys(rows.paused_scopes, 0)


def claim_steps(
    rows: Rows,
    worker_id: str,
    *,
    claim: int,
    pools: Sequence[str],
    capabilities: Sequence[str],
    live_workers: int,
    now_us: int,
) -> tuple[tuple[Claim, ...], bool]:
    """Claim for a live worker at most its share; say whether claimable work is left."""
    ready = claimable(rows, pools, capabilities)
    worker = rows.workers.get(worker_id)
    is_live = worker is not None and worker.state is ProcessState.LIVE
    share = _share(rows, worker_id, len(ready), max(live_workers, 1))
    chosen, is_left = choose(rows, ready, min(claim, share) if is_live else 0)
    return tuple(claim_step(rows, step, worker_id, now_us) for step in chosen), is_left


def _share(rows: Rows, worker_id: str, ready: int, live_workers: int) -> int:
    """Return a worker's even share of what is ready, or what brings it to its even share of all that is to be done."""
    holders = [step.worker_id for step in rows.steps.values() if step.status.is_leased]
    each = ceil((ready + len(holders)) / live_workers)
    return max(ceil(ready / live_workers), each - holders.count(worker_id))


def claim_step(rows: Rows, ready: Step, worker_id: str, now_us: int, *, holder_run_id: str = "") -> Claim:
    """Claim a ready step for its own run, or for another run that holds it beside its own."""
    tell_step(rows, ready.key, now_us)
    status = advance_step(ready.status, StepEvent.CLAIM)
    fence = ready.fence + 1
    step = replace(
        ready,
        status=status,
        fence=fence,
        worker_id=worker_id,
        holder_run_id=holder_run_id,
        started_us=ready.started_us or now_us,
        ended_us=None,
    )
    rows.steps[step.key] = step
    run = move_run(rows, step.run_id, RunEvent.START)
    is_resumed = run.started_us is not None or run.identity.role is Role.FORK
    rows.runs[run.id] = replace(run, fence=fence, worker_id=worker_id, started_us=run.started_us or now_us)
    by: dict[str, Json] = {"claimed_by": holder_run_id} if holder_run_id else {}
    note_step(rows, step, EventType.STEP_CLAIMED, now_us, fence=fence, worker=worker_id, **by)
    note_step(rows, step, EventType.RUN_RESUMED if is_resumed else EventType.RUN_STARTED, now_us, fence=fence)
    return _told(rows, step, is_resumed=is_resumed)


def _told(rows: Rows, step: Step, *, is_resumed: bool) -> Claim:
    run, session = rows.run(step.run_id), rows.session(step.session_id)
    results = [result_of(rows, key) for key in step.depends_on]
    return Claim(
        step_key=step.key,
        fence=step.fence,
        identity=run.identity,
        spec=step.spec,
        task_inputs=rows.task(step.task_id).inputs,
        task_title=rows.task(step.task_id).title,
        dependencies={result.step_id: result for result in results},
        surface=run.surface,
        token=run.token,
        attempt=step.attempt,
        project=session.project,
        cwd=session.cwd,
        policy=session.policy,
        is_resumed=is_resumed,
    )


class MemoryAdditionalClaims(Part):
    """The part of the task store in which a run takes steps beside its own."""

    @transaction
    def claim_additional(
        self,
        worker_id: str,
        holder: Lease,
        step_id: str,
        *,
        pools: Sequence[str],
        capabilities: Sequence[str],
        now_us: int,
    ) -> Claim | ClaimRefusal:
        own = self._own_step(worker_id, holder)
        key = step_key(own.task_id, step_id)
        sought = self._sought(self.rows.steps[key]) if key in self.rows.steps else None
        refused = refusal(self._claiming_run(worker_id, own), step_id, sought, pools=pools, capabilities=capabilities)
        if refused is None:
            refused = self._over_a_limit(self.rows.step(key), own)
        if refused is not None:
            return refused
        self.rows.last_claimed[own.session_id] = max(self.rows.last_claimed.values(), default=0) + 1
        return claim_step(self.rows, self.rows.step(key), worker_id, now_us, holder_run_id=holder.run_id)

    def _own_step(self, worker_id: str, holder: Lease) -> Step:
        step = self.rows.steps.get(holder.step_key)
        lease = (worker_id, holder.run_id, holder.fence)
        if step is None or not step.status.is_leased or (step.worker_id, step.run_id, step.fence) != lease:
            raise LeaseLostError(holder.run_id, holder.fence)
        return step

    def _claiming_run(self, worker_id: str, own: Step) -> ClaimingRun:
        had = [step for step in self.rows.steps_of(own.task_id) if step.holder_run_id == own.run_id]
        open_ids = [step.step_id for step in had if step.status.is_leased]
        worker = self.rows.workers.get(worker_id)
        is_live = worker is not None and worker.state is ProcessState.LIVE
        is_stopping = not is_live or own.key in self.rows.stopping
        return ClaimingRun(own.step_id, next(iter(open_ids), ""), len(had), own.spec.max_steps, is_stopping)

    def _sought(self, step: Step) -> RequestedStep:
        has_run = bool(step.run_id) and self.rows.run(step.run_id).started_us is not None
        return RequestedStep(
            step_id=step.step_id,
            kind=step.kind,
            status=step.status,
            open_deps=step.open_deps,
            pool=step.pool,
            needs=step.needs,
            is_paused=self.rows.task(step.task_id).status is TaskStatus.PAUSED,
            is_pull_worker=step.is_pull_worker,
            has_begun=has_run and step.claim_mode is ClaimMode.ASSIGNED,
        )

    def _over_a_limit(self, step: Step, own: Step) -> ClaimRefusal | None:
        leases, limits = counted_leases(self.rows), limits_now(self.rows)
        for scope in scopes_of(step):
            if scope not in scopes_of(own) and scope in limits and leases[scope] >= limits[scope]:
                return limited(step.step_id, scope)
        return None
