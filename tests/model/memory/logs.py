"""Writing the two logs of a run: numbers without a gap, from 1."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.record import EndReason, Run, RunEvent, RunStatus, advance_run
from soong.shared.engine.tasks.spec import StepKind, StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.audit_log import REPORTED, AuditEntry, AuditNote, Head, Use, linked, of_report, redacted
from soong.shared.sandbox.redact import Redactor
from tests.model.memory.rows import Part, Rows, transaction

_CHAIN = "aud_memory"


def held_run(rows: Rows, run_id: str, fence: int) -> Run:
    """Return the run if it is running under that fence. Raises: LeaseLostError."""
    run = rows.runs.get(run_id)
    if run is None or run.status is not RunStatus.RUNNING or run.fence != fence:
        raise LeaseLostError(run_id, fence)
    return run


def write_events(rows: Rows, run_id: str, events: Sequence[NewEvent], now_us: int) -> None:
    run = rows.run(run_id)
    numbered = tuple(
        Event(run_id, run.last_seq + place, event.type, event.time_us or now_us, event.data)
        for place, event in enumerate(events, start=1)
    )
    rows.events[run_id] = rows.events.get(run_id, ()) + numbered
    rows.runs[run_id] = replace(run, last_seq=run.last_seq + len(numbered))


def write_nodes(rows: Rows, run_id: str, nodes: Sequence[NewNode], now_us: int) -> None:
    for new in nodes:
        run = rows.run(run_id)
        number = run.last_node + 1
        parent = run.last_node if new.parent is None else new.parent
        node = Node(run_id, number, parent, new.kind, new.payload, now_us)
        rows.nodes[run_id] = (*rows.nodes.get(run_id, ()), node)
        rows.runs[run_id] = replace(run, last_node=number)


def note_run(rows: Rows, run_id: str, type_: EventType, now_us: int, /, **data: Json) -> None:
    """Write one event of the store's own into a run's log."""
    write_events(rows, run_id, [NewEvent(type_, data)], now_us)


def note_step(rows: Rows, step: Step, type_: EventType, now_us: int, /, **data: Json) -> None:
    """Write one event of a step into the log of its run, of a map step into that of its task's root run."""
    run_id = step.run_id or rows.task(step.task_id).root_run_id
    note_run(rows, run_id, type_, now_us, step=step.key, **data)


def tell_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Write that a step was opened or a map completed by the end of another step, if no log says so yet."""
    since_us = rows.untold.pop(step_key, None)
    if since_us is None:
        return
    step = rows.step(step_key)
    type_ = _OPENED[step.kind is StepKind.MAP] if step.status is not StepStatus.COMPLETED else EventType.STEP_COMPLETED
    run_id = step.run_id or rows.task(step.task_id).root_run_id
    write_events(rows, run_id, [NewEvent(type_, {"step": step.key}, since_us)], now_us)


_OPENED = {False: EventType.STEP_READY, True: EventType.STEP_EXPANDING}


def move_run(rows: Rows, run_id: str, event: RunEvent) -> Run:
    """Move a run by the table."""
    run = rows.run(run_id)
    rows.runs[run_id] = replace(run, status=advance_run(run.status, event))
    return rows.runs[run_id]


_END_EVENTS = {
    RunEvent.COMPLETE: EventType.RUN_COMPLETED,
    RunEvent.FAIL: EventType.RUN_FAILED,
    RunEvent.CANCEL: EventType.RUN_CANCELLED,
}


def end_run(rows: Rows, run_id: str, event: RunEvent, reason: EndReason, now_us: int) -> None:
    """End a run with its event; one that has ended already stays as it is."""
    if rows.run(run_id).status.is_terminal:
        return
    run = move_run(rows, run_id, event)
    rows.runs[run_id] = replace(run, end_reason=reason, ended_us=now_us)
    note_run(rows, run_id, _END_EVENTS[event], now_us, end_reason=reason.value)


class MemoryAudit(Part):
    """The audit part of the store."""

    @transaction
    def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        add_notes(self.rows, notes, now_us)

    @transaction
    def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        found = [
            entry
            for entry in self.rows.audit.values()
            if entry.ordinal > after
            and session_id in {"", entry.session_id}
            and (not kinds or entry.kind in {str(kind) for kind in kinds})
            and entry.time_us >= since_us
        ]
        return found[:limit]

    @transaction
    def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        given = {decision.id: decision for decision in self.rows.decisions.values()}
        found = []
        for decision_id, (run_id, call_id, used_us) in sorted(self.rows.consumed.items()):
            call = self.rows.calls.get((run_id, call_id))
            used = None if call is None else call.input_digest
            found.append(Use(decision_id, run_id, call_id, used_us, given.get(decision_id), used))
        return [use for use in found if use.decision_id > after][:limit]

    @transaction
    def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        taken = [
            number
            for number, (run_id, _) in self.rows.reports.items()
            if self.rows.session(self.rows.run(run_id).identity.session_id).owner_id in ("", owner_id)
        ][:limit]
        for number in taken:
            run_id, event = self.rows.reports.pop(number)
            identity = self.rows.run(run_id).identity
            add_notes(self.rows, [of_report(identity, event.type, event.data)], now_us)
        return len(taken)


def add_notes(rows: Rows, notes: Sequence[AuditNote], now_us: int) -> None:
    """Link notes to the end of the chain."""
    for note in notes:
        last = rows.audit.get(len(rows.audit))
        head = Head() if last is None else Head(last.number, last.digest)
        entry = linked(redacted(note, Redactor()), _CHAIN, head, now_us)
        rows.audit[entry.number] = replace(entry, ordinal=entry.number)


def add_reports(rows: Rows, run_id: str, events: Sequence[NewEvent]) -> None:
    """Leave the events that belong into the audit log for the run's owner."""
    for event in events:
        if event.type in REPORTED:
            rows.reports[max(rows.reports, default=0) + 1] = (run_id, event)
