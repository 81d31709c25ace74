"""The auditor: reads rows after every commit and holds them to what the engine promises. It believes no summary.

It keeps the rows as they were before the commit, knows which method was called with what, and stops the simulation at
the first promise that is broken.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from soong.shared.core.errors import NotOwnerError, SoongError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import Ownership, ProcessState, Session
from soong.shared.engine.tasks.spec import (
    STEP_ENDS,
    ClaimMode,
    FailurePolicy,
    StepGate,
    StepKind,
    StepStatus,
    TaskStatus,
)
from soong.shared.engine.tasks.step import Advance, Claim, Lease, Step, StepEnd, Task
from tests.model.memory.ending import counted_leases, result_of, scopes_of
from tests.model.memory.rows import Rows
from tests.simulation.borders import READS
from tests.simulation.work import total


class UnjustClaimError(AssertionError):
    """A step was claimed that should have waited for another."""


@dataclass(slots=True)
class ClaimAuditor:
    """``passed`` counts, for each session with work that could be claimed, the claims that went to others since."""

    passed: Counter[str] = field(default_factory=Counter)
    unparked: set[str] = field(default_factory=set)
    longest_wait: int = 0
    claims: int = 0
    additional_claims: int = 0

    def check(
        self, rows: Rows, worker_id: str, wish: Mapping[str, Any], advance: Advance, changed: Sequence[Step]
    ) -> None:
        """Judge the claims of one transaction, which are told in the order in which they were made."""
        claimed = [rows.steps[claim.step_key] for claim in advance.claims]
        begun = {step.key for step in changed if step.status is StepStatus.RUNNING}
        if {step.key for step in claimed} != begun:
            raise UnjustClaimError(f"told of {[step.key for step in claimed]}, claimed {begun}")
        if len(claimed) > wish["claim"]:
            raise UnjustClaimError(f"{len(claimed)} steps for a claim of {wish['claim']}")
        if not claimed:
            return
        self.claims += len(claimed)
        leases = counted_leases(rows)
        self._check_limits(rows, leases)
        for step in claimed:
            leases.subtract(scopes_of(step))
        waiting = [step for step in rows.steps.values() if _is_claimable(step, rows, wish)] + claimed
        for step in claimed:
            self._check_one(rows, step, waiting, leases, worker_id, wish)
            waiting.remove(step)
            leases.update(scopes_of(step))

    def additional(self, rows: Rows, step: Step) -> None:
        """Judge a claim of a run that goes on with its own step: it was its session's turn like any other."""
        self.additional_claims += 1
        self.passed[step.session_id] = 0
        self._check_limits(rows, counted_leases(rows))

    def _check_limits(self, rows: Rows, leases: Counter[str]) -> None:
        over = {scope: leases[scope] for scope, limit in rows.concurrency_limits.items() if leases[scope] > limit}
        if over:
            raise UnjustClaimError(f"leases beyond their concurrency limits {rows.concurrency_limits}: {over}")

    def _check_one(
        self,
        rows: Rows,
        step: Step,
        waiting: Sequence[Step],
        leases: Counter[str],
        worker_id: str,
        wish: Mapping[str, Any],
    ) -> None:
        if step.worker_id != worker_id or step.pool not in wish["pools"] or set(step.needs) - set(wish["capabilities"]):
            raise UnjustClaimError(f"{worker_id} with {wish} was given {step}")
        able = [
            one
            for one in waiting
            if all(leases[name] < rows.concurrency_limits.get(name, 1 << 30) for name in scopes_of(one))
        ]
        own = [one for one in able if one.session_id == step.session_id]
        better = [one for one in own if self._place(one) > self._place(step)]
        if better:
            raise UnjustClaimError(f"{step.key} was claimed before {better[0].key}, whose turn was before it")
        self.passed[step.session_id] = 0
        bound = len(rows.sessions) - 1
        for session_id in sorted({one.session_id for one in able} - {step.session_id}):
            self.passed[session_id] += 1
            self.longest_wait = max(self.longest_wait, self.passed[session_id])
            if self.passed[session_id] > bound:
                raise UnjustClaimError(f"{self.passed[session_id]} claims of others went before one of {session_id}")

    def moved(self, was: Step | None, step: Step) -> None:
        """Remember what was parked and may go on: it goes before what has not begun, until it begins anew."""
        if was is not None and (was.status, step.status) == (StepStatus.BLOCKED, StepStatus.READY):
            self.unparked.add(step.key)
        elif was is None or was.status in STEP_ENDS or step.status is StepStatus.BLOCKED:
            self.unparked.discard(step.key)

    def _place(self, step: Step) -> tuple[bool, int]:
        return step.key in self.unparked, step.priority


def _is_claimable(step: Step, rows: Rows, wish: Mapping[str, Any]) -> bool:
    return (
        step.status is StepStatus.READY
        and step.claim_mode is ClaimMode.ASSIGNED
        and rows.tasks[step.task_id].status is TaskStatus.RUNNING
        and step.pool in wish["pools"]
        and set(step.needs) <= set(wish["capabilities"])
    )


class BrokenPromiseError(AssertionError):
    """Rows say what they must never say."""


_S = StepStatus
_OPEN: Final = (_S.PENDING, _S.READY, _S.BLOCKED, _S.EXPANDING, _S.WAITING)
_UNLOCKS: Final = {(_S.PENDING, _S.READY), (_S.PENDING, _S.EXPANDING), (_S.WAITING, _S.COMPLETED)}
_CANCELS: Final = {(status, _S.CANCELLED) for status in _OPEN}
_BACK: Final = (_S.PENDING, _S.READY, _S.EXPANDING, _S.WAITING, _S.COMPLETED)

MOVES: Final[Mapping[str, set[tuple[StepStatus, StepStatus]]]] = {
    "advance": _UNLOCKS
    | {(_S.PENDING, _S.RUNNING), (_S.READY, _S.RUNNING)}
    | {(_S.RUNNING, end) for end in (_S.COMPLETED, _S.FAILED, _S.CANCELLED)},
    "claim_additional": {(_S.READY, _S.RUNNING)},
    "release": {(_S.RUNNING, _S.READY), (_S.RUNNING, _S.CANCELLED)},
    "park": {(_S.RUNNING, _S.BLOCKED)},
    "decide": {(_S.BLOCKED, _S.READY)},
    "expire_worker": {(_S.RUNNING, _S.READY), (_S.RUNNING, _S.FAILED), (_S.RUNNING, _S.CANCELLED)},
    "write_verdict": _UNLOCKS
    | {(_S.EXPANDING, now) for now in (_S.WAITING, _S.COMPLETED, _S.FAILED, _S.READY, _S.SKIPPED)}
    | {(_S.PENDING, _S.SKIPPED)},
    "retry_step": {(_S.FAILED, _S.PENDING)},
    "promote_due": {(_S.PENDING, _S.READY)},
    "settle_failure": _UNLOCKS | _CANCELS | {(_S.PENDING, _S.SKIPPED), (_S.WAITING, _S.FAILED)},
    "cancel_task": _CANCELS,
    "retry_task": _UNLOCKS
    | {(was, now) for was in (_S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.SKIPPED) for now in _BACK},
}
"""Every change of a step's status by the method that may make it, from before the transaction to after it."""

_QUEUED: Final = (_S.PENDING, _S.READY)


@dataclass(slots=True)
class Seen:
    """The rows as they were after the last commit. Rows are frozen values, so keeping them is keeping references."""

    steps: dict[str, Step] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)


@dataclass(slots=True)
class Auditor:
    """``rows`` returns all rows as they are now; ``now_s`` is the one true time."""

    rows: Callable[[], Rows]
    now_s: Callable[[], float]
    lease_s: float
    seen: Seen = field(default_factory=Seen)
    accepted: set[tuple[str, int]] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    """Decisions that were used."""
    given: dict[str, dict[str, Json]] = field(default_factory=dict)
    """The outputs of its dependencies that each run was told, by step id."""
    parked: int = 0
    beaten_s: dict[str, float] = field(default_factory=dict)
    claims: ClaimAuditor = field(default_factory=ClaimAuditor)
    moved_s: float = 0.0
    """When a step last changed."""
    commits: int = 0
    stale_refused: int = 0

    def committed(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], outcome: object) -> None:
        """Judge what one transaction has done. Raises: BrokenPromiseError."""
        self._note_beats(method, args, outcome)
        if method in READS or method == "beat":
            return
        self.commits += 1
        rows = self.rows()
        self._check_caller(method, args, outcome)
        self._check_fences(method, args, outcome, rows)
        if method == "retry_task":
            # The children of a map step that is expanded anew are gone; only their runs and logs stay.
            self.seen.steps = {key: step for key, step in self.seen.steps.items() if key in rows.steps}
        changed = self._changed_steps(rows)
        if changed:
            self.moved_s = self.now_s()
        for step in changed:
            self._check_step(method, self.seen.steps.get(step.key), step, rows)
        self._check_told(outcome, rows)
        if isinstance(outcome, Advance):
            self.claims.check(rows, args[0], kwargs, outcome, changed)
        for step in _around(changed, rows):
            _check_counter(step, rows)
        # Tables are compared whole first: most commits change few of them, and equal ones compare by identity.
        if rows.runs != self.seen.runs:
            self._check_runs(rows)
        if rows.tasks != self.seen.tasks:
            self._check_tasks(method, rows)
        if rows.sessions != self.seen.sessions:
            self._check_sessions(rows)
        self.seen.steps.update((step.key, step) for step in changed)

    def _changed_steps(self, rows: Rows) -> list[Step]:
        if rows.steps == self.seen.steps:
            return []
        seen = self.seen.steps
        return [step for key, step in rows.steps.items() if seen.get(key) is not step and seen.get(key) != step]

    # -- who called
    def _note_beats(self, method: str, args: Sequence[Any], outcome: object) -> None:
        match method:
            case "register_worker" | "register_owner":
                # Told again after a lost answer it writes nothing: the counter stands since the first time.
                self.beaten_s.setdefault(args[0].id, self.now_s())
            case "beat" | "beat_owner" if outcome is True:
                self.beaten_s[args[0]] = self.now_s()
            case "expire_worker" if outcome is not None and not isinstance(outcome, SoongError):
                self._check_expiry(args[0])
            case "expire_owner" if outcome is True:
                self._check_expiry(args[0])

    def _check_expiry(self, process_id: str) -> None:
        still_s = self.now_s() - self.beaten_s[process_id]
        _promise(still_s >= self.lease_s, f"{process_id} was declared gone {still_s:.3f} s after its last beat")

    def _check_caller(self, method: str, args: Sequence[Any], outcome: object) -> None:
        """An owner's write under a stale epoch is refused, one under the right epoch is not."""
        if not args or not isinstance(args[0], Ownership):
            return
        session = self.seen.sessions.get(args[0].session_id)
        is_right = session is not None and session.ownership == args[0]
        is_refused = isinstance(outcome, NotOwnerError)
        _promise(is_right != is_refused, f"{method} by {args[0]} gave {outcome!r}, and the epoch was right: {is_right}")

    def _check_fences(self, method: str, args: Sequence[Any], outcome: object, rows: Rows) -> None:
        match method:
            case "advance" if isinstance(outcome, Advance):
                self._check_ends(args[0], args[1], outcome, rows)
            case "claim_additional" if not isinstance(outcome, SoongError):
                self._check_additional(args[0], args[1], outcome, rows)
            case "release" if isinstance(outcome, frozenset):
                stale = {held.run_id for held in args[1] if not self._holds(args[0], held)}
                _promise(stale == outcome, f"hand_back told {outcome} stale, and {stale} were")
                self.stale_refused += len(stale)
            case "park" if outcome is True:
                is_again = self.seen.steps[args[1].step_key].status is _S.BLOCKED  # told again what was not heard
                _promise(is_again or self._holds(args[0], args[1]), f"{args[0]} parked {args[1]}, and did not hold it")
                self.parked += 1
            case "append" | "start_call" | "end_call":
                run_id, fence = (args[0].run_id, args[1]) if method == "start_call" else args[:2]
                run = self.seen.runs.get(run_id)
                is_held = run is not None and run.status is RunStatus.RUNNING and run.fence == fence
                is_written = not isinstance(outcome, SoongError)
                _promise(is_held or not is_written, f"{method} to {run_id} was written under the stale fence {fence}")
                self.stale_refused += not is_written
                if method == "start_call" and is_written:
                    self._check_use(args[0])

    def _check_use(self, call: CallRow) -> None:
        _promise(call.decision_id not in self.used, f"{call.decision_id} was used twice")
        self.used.add(call.decision_id)

    def _check_ends(self, worker_id: str, ends: Sequence[StepEnd], outcome: Advance, rows: Rows) -> None:
        told: set[str] = set()
        for end in ends:
            held = Lease(end.step_key, end.run_id, end.fence)
            if not self._holds(worker_id, held) or end.step_key in told:
                _promise(end.run_id in outcome.stale, f"the end of {held} was taken, and {worker_id} did not hold it")
                self.stale_refused += 1
                continue
            told.add(end.step_key)
            place = (end.run_id, end.fence)
            _promise(end.run_id not in outcome.stale, f"the end of {held} was refused, and {worker_id} held it")
            _promise(rows.steps[end.step_key].status is end.status, f"{held} ended as {end.status} and is another")
            _promise(place not in self.accepted, f"{held} was ended twice under one fence")
            self.accepted.add(place)

    def _check_additional(self, worker_id: str, holder: Lease, outcome: object, rows: Rows) -> None:
        """A step is given to a run that holds its own, one at a time, in its own task, within every concurrency
        limit (DAG-03).
        """
        _promise(self._holds(worker_id, holder), f"{holder} asked for a step, and {worker_id} did not hold it")
        if not isinstance(outcome, Claim):
            return
        step, own = rows.steps[outcome.step_key], rows.steps[holder.step_key]
        had = [one for one in self.seen.steps.values() if one.holder_run_id == holder.run_id]
        open_ones = [one.key for one in had if one.status.is_leased]
        most = own.spec.max_steps
        _promise(not open_ones, f"{holder} was given {step.key} beside {open_ones}")
        _promise(step.task_id == own.task_id, f"{holder} was given {step.key} of another task")
        _promise(most is None or len(had) < most, f"{holder} was given {step.key}, and had {len(had)} of {most}")
        _promise(step.holder_run_id == holder.run_id, f"{step.key} was given to {holder}, and its row says {step}")
        self.claims.additional(rows, step)

    def _check_told(self, outcome: object, rows: Rows) -> None:
        """A run is told what its dependencies have come to, as they stand when it is claimed."""
        for claim in _claims(outcome):
            results = [result_of(rows, key) for key in rows.steps[claim.step_key].depends_on]
            told = {result.step_id: result for result in results}
            _promise(claim.dependencies == told, f"{claim.step_key} was told {claim.dependencies}, and {told} is so")
            self.given[claim.identity.run_id] = {step_id: result.output for step_id, result in told.items()}

    def _holds(self, worker_id: str, held: Lease) -> bool:
        step = self.seen.steps.get(held.step_key)
        return (
            step is not None
            and step.status.is_leased
            and (step.worker_id, step.run_id, step.fence) == (worker_id, held.run_id, held.fence)
        )

    # -- steps
    def _check_step(self, method: str, was: Step | None, step: Step, rows: Rows) -> None:
        task = rows.tasks[step.task_id]
        self.claims.moved(was, step)
        if was is None:
            _promise(
                method in {"create_task", "submit", "write_verdict", "update_task"}, f"{method} inserted {step.key}"
            )
            _promise(step.status in {_S.PENDING, _S.READY, _S.EXPANDING}, f"{step.key} was born {step.status}")
            return
        # A retry runs again what went on without a kept failure.
        is_over = was.status is _S.COMPLETED and method != "retry_task"
        _promise(not is_over, f"{method} changed {step.key}, which had completed")
        _promise(step.fence >= was.fence, f"{method} took {step.key} from fence {was.fence} back to {step.fence}")
        if step.status is not was.status:
            move = (was.status, step.status)
            _promise(move in MOVES.get(method, ()), f"{method} moved {step.key} from {was.status} to {step.status}")
        if step.status is _S.RUNNING and was.status is not _S.RUNNING:
            worker = rows.workers.get(step.worker_id)
            _promise(step.fence > was.fence, f"{step.key} was claimed under the old fence {was.fence}")
            _promise(task.status is TaskStatus.RUNNING, f"{step.key} was claimed, and its task is {task.status}")
            _promise(
                worker is not None and worker.state is ProcessState.LIVE,
                f"{step.key} was claimed by {worker}, not live",
            )
        if was.status is _S.PENDING and step.status in {_S.READY, _S.RUNNING, _S.EXPANDING}:
            waits = [key for key in step.depends_on if not _counts_as_done(rows.steps[key], rows, step.gate)]
            _promise(not waits, f"{step.key} became {step.status} while {waits} are open")

    # -- runs and tasks
    def _check_runs(self, rows: Rows) -> None:
        for run_id, run in rows.runs.items():
            was = self.seen.runs.get(run_id)
            if was is run:
                continue
            _promise(was is None or run.fence >= was.fence, f"the fence of {run_id} fell to {run.fence}")
            _promise(was is None or run.last_seq >= was.last_seq, f"{run_id} lost events")
            check_log(run, rows)
            if (step := rows.steps.get(run.identity.step_key)) is not None:
                _check_run_of_step(run, step)
        self.seen.runs = dict(rows.runs)

    def _check_tasks(self, method: str, rows: Rows) -> None:
        for task_id, task in rows.tasks.items():
            was = self.seen.tasks.get(task_id)
            if was is task or (was is not None and was.status is task.status):
                continue
            if was is not None and was.status.is_terminal:
                _promise(method == "retry_task", f"{method} moved {task_id} from {was.status} to {task.status}")
            root = rows.runs[task.root_run_id]
            _promise(task.status.is_terminal == root.status.is_terminal, f"{task_id} is {task.status}, its root {root}")
            if method in ("finish_task", "look_and_finish"):
                _check_finished(task, rows)
        self.seen.tasks = dict(rows.tasks)

    def _check_sessions(self, rows: Rows) -> None:
        for session_id, session in rows.sessions.items():
            was = self.seen.sessions.get(session_id)
            kept = was is None or session.owner_epoch >= was.owner_epoch
            _promise(kept, f"the epoch of {session_id} fell to {session.owner_epoch}")
        self.seen.sessions = dict(rows.sessions)


def _claims(outcome: object) -> Sequence[Claim]:
    if isinstance(outcome, Advance):
        return outcome.claims
    return (outcome,) if isinstance(outcome, Claim) else ()


def _promise(is_kept: bool, otherwise: str) -> None:
    if not is_kept:
        raise BrokenPromiseError(otherwise)


def _around(changed: Iterable[Step], rows: Rows) -> list[Step]:
    """Return the steps whose counters a change concerns: its own, its dependents', its map's."""
    keys: dict[str, None] = {}
    for step in changed:
        keys.update(dict.fromkeys((step.key, *rows.dependents.get(step.key, ()), *filter(None, (step.map_key,)))))
    return [rows.steps[key] for key in keys]


def _check_counter(step: Step, rows: Rows) -> None:
    """``open_deps`` is how many of those that a step waits for are open; with none it waits for its time only."""
    if step.status is _S.PENDING:
        waits = sum(not _counts_as_done(rows.steps[key], rows, step.gate) for key in step.depends_on)
        # The owner counts for a join how steps ended that did not complete: it may be behind.
        is_right = step.open_deps >= waits if step.gate is StepGate.ENDED else step.open_deps == waits
        _promise(is_right, f"{step.key} has open_deps {step.open_deps} and waits for {waits}")
        waits = step.open_deps
        _promise(bool(waits) or step.not_before_us is not None, f"{step.key} is pending and waits for nothing")
    elif step.status is _S.WAITING:
        children = rows.children_of(step.key)
        waits = sum(not _counts_as_done(child, rows) for child in children)
        _promise(step.open_deps == waits, f"the map {step.key} has open_deps {step.open_deps}, {waits} children open")
        _promise(waits > 0, f"the map {step.key} waits for nothing")


def _counts_as_done(step: Step, rows: Rows, gate: StepGate = StepGate.WORKERS) -> bool:
    if step.status is _S.COMPLETED:
        return True
    if gate is StepGate.ENDED and step.status is not _S.FAILED:
        return step.status in STEP_ENDS
    if gate is StepGate.ENDED:
        return step.key in rows.settled
    return step.status is _S.FAILED and step.key in rows.settled and step.on_failure is FailurePolicy.KEEP


def _is_whole(task_id: str, rows: Rows) -> bool:
    own = [step for step in rows.steps_of(task_id) if not (step.is_pull_worker or step.map_key)]
    # What the plan's own conditions left out is no loss.
    left_out = [step.key for step in own if step.status is _S.SKIPPED and step.outcome is not None]
    return all(step.key in left_out or _counts_as_done(step, rows) for step in own)


def check_log(run: Run, rows: Rows) -> None:
    """Events and nodes are numbered from 1 without a gap, and the row knows the last number."""
    for name, last, log in (
        ("events", run.last_seq, [event.seq for event in rows.events.get(run.id, ())[-3:]]),
        ("nodes", run.last_node, [node.number for node in rows.nodes.get(run.id, ())[-3:]]),
    ):
        expected = list(range(max(1, last - 2), last + 1))
        _promise(log == expected, f"the last {name} of {run.id} are {log}, and its row says {last}")


def _check_run_of_step(run: Run, step: Step) -> None:
    if step.run_id != run.id:
        _promise(run.status.is_terminal, f"{run.id} is {run.status}, and {step.key} has gone on with {step.run_id}")
    elif step.status.is_leased:
        kept = run.status is RunStatus.RUNNING and (run.fence, run.worker_id) == (step.fence, step.worker_id)
        _promise(kept, f"{step.key} is leased by {step.worker_id} under {step.fence}, and its run is {run}")
    elif step.status in STEP_ENDS:
        _promise(run.status.is_terminal, f"{step.key} has ended, and its run {run.id} is {run.status}")
    elif step.status is _S.BLOCKED:
        kept = (run.status, run.worker_id, step.worker_id) == (RunStatus.PARKED, "", "")
        _promise(kept, f"{step.key} is parked and held by {step.worker_id!r}, and its run is {run}")
    elif step.status in _QUEUED:
        _promise(run.status is RunStatus.QUEUED, f"{step.key} is {step.status}, and its run {run.id} is {run.status}")


def _check_finished(task: Task, rows: Rows) -> None:
    steps = rows.steps_of(task.id)
    open_ones = [step.key for step in steps if step.status not in STEP_ENDS]
    unsettled = [step.key for step in steps if step.status is _S.FAILED and step.key not in rows.settled]
    _promise(not open_ones and not unsettled, f"{task.id} was finished with {open_ones} open, {unsettled} unsettled")
    is_whole = _is_whole(task.id, rows)
    _promise((task.status is TaskStatus.COMPLETED) == is_whole, f"{task.id} was finished as {task.status}")


_EVENT_OF: Final = {
    StepStatus.COMPLETED: EventType.STEP_COMPLETED,
    StepStatus.FAILED: EventType.STEP_FAILED,
    StepStatus.CANCELLED: EventType.STEP_CANCELLED,
    StepStatus.SKIPPED: EventType.STEP_SKIPPED,
}


def check_end(rows: Rows, given: Mapping[str, Mapping[str, Json]]) -> None:
    """``given`` are the outputs that each run was told of its dependencies. Raises: BrokenPromiseError."""
    for run_id, run in rows.runs.items():
        numbers = [event.seq for event in rows.events.get(run_id, ())]
        if numbers != list(range(1, run.last_seq + 1)):
            raise BrokenPromiseError(f"the events of {run_id} are {numbers}, its row says {run.last_seq}")
        if not run.status.is_terminal:
            raise BrokenPromiseError(f"{run_id} is {run.status} when all has ended")
    for task in rows.tasks.values():
        _check_task(rows, task.id, task.status)
    for step in rows.steps.values():
        _check_ends_once(rows, step)
        if step.is_pull_worker:
            continue
        if step.status is StepStatus.COMPLETED and step.kind is StepKind.AGENT:
            _check_result(rows, step, given[step.run_id])
        if step.status is StepStatus.FAILED:
            _check_failure(step)


def _check_task(rows: Rows, task_id: str, status: TaskStatus) -> None:
    is_whole = _is_whole(task_id, rows)
    if is_whole != (status is TaskStatus.COMPLETED) and status is not TaskStatus.CANCELLED:
        raise BrokenPromiseError(f"{task_id} is {status}, and all its steps completed: {is_whole}")


def _check_ends_once(rows: Rows, step: Step) -> None:
    """The log of the step's last run tells its end, once."""
    if not step.run_id:
        return
    types = [str(event.type) for event in rows.events[step.run_id]]
    ends = [kind for kind in types if kind in {end.value for end in _EVENT_OF.values()}]
    if ends != [_EVENT_OF[step.status].value]:
        raise BrokenPromiseError(f"{step.key} is {step.status}, and the log of its run tells the ends {ends}")


def _check_result(rows: Rows, step: Step, given: Mapping[str, Json]) -> None:
    """Of what it was told when it ran: a dependency it had gone on without may have been tried again since."""
    script = _script(step)
    items = list(range(int(str(script["items"]))))
    expected = {"sum": 1 + total([given[name] for name in script["from_ids"]]), "items": items}
    if step.output != expected:
        raise BrokenPromiseError(f"{step.key} gave {step.output}, and {expected} is right")
    written = [node.payload["number"] for node in rows.nodes.get(step.run_id, ()) if node.kind is NodeKind.ASSISTANT]
    if written != list(range(int(str(script["writes"])))):
        raise BrokenPromiseError(f"the run of {step.key} wrote {written}, each once and in order was wanted")


def _check_failure(step: Step) -> None:
    """A step that can succeed fails for one reason only: it lost its lease too often."""
    if step.kind is StepKind.AGENT and step.error is not None:
        may = {"poisoned"}
        match _script(step)["does"]:
            case "ok" | "stubborn" | "asks":
                may |= {"time_limit"} if step.spec.timeout_s is not None else set()
            case _:
                may |= {"execution_failed", "provider_failed", "time_limit"}
        if step.error.type not in may:
            raise BrokenPromiseError(f"{step.key} failed: {step.error}")


def _script(step: Step) -> dict[str, Any]:
    return dict(step.spec.inputs if step.spec.bound is None else step.spec.bound.inputs)
