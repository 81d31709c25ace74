"""Writing what a client or an owner hands in: tasks, steps with what each depends on, the opening of a step.

An edge is in the rows of its two steps: in ``depends_on`` of the one, and in ``dependents`` of the other.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from soong.shared.core.identity import step_id_of
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import ClaimMode, StepEvent, StepGate, StepStatus, advance_step
from soong.shared.engine.tasks.step import NewStep
from soong.shared.storage.sql.claims.readiness import opening
from soong.shared.storage.sql.engine.row_mapper import pack, unpack
from soong.shared.storage.sql.engine.rows import STEPS
from soong.shared.storage.sql.engine.run_log_buffer import RunLogBuffer
from soong.shared.storage.sql.engine.statements import Insert, ReadyRows, Statement, batches_of
from soong.shared.storage.sql.engine.tables.work import steps as steps_table
from soong.shared.storage.sql.engine.transaction import Transaction

INSERT_STEPS: Final = Insert(
    steps_table,
    (
        *STEPS.written,
        *("step_id", "kind", "gate", "needs", "lane", "claim_mode", "is_paused", "spec"),
        *("depends_on", "dependents"),
    ),
)
LANE_BYTES: Final = 18
"""Length of a lane's digest: no two lanes share one, and the index of ready steps stays short."""
KEPT_LANES: Final = 256
DEPENDENTS_OF: Final = Statement(
    "dependents of: what depends on these steps so far; they are held",
    "SELECT key, dependents FROM steps WHERE key IN @keys",
)
SET_DEPENDENTS: Final = Statement(
    "set dependents: of steps that more depend on",
    """
    UPDATE steps SET dependents = m.dependents FROM @more m(key text, dependents text)
    WHERE steps.key IN @keys AND steps.key = m.key
    """,
)


OPENED: Final[Mapping[StepGate, StepStatus]] = {
    gate: advance_step(StepStatus.PENDING, StepEvent.UNLOCK if gate is StepGate.WORKERS else StepEvent.EXPAND)
    for gate in StepGate
}
"""The status of a step that waits for nothing more, as it is opened."""


OPEN_COUNTED: Final = Statement(
    "open counted: a step that waits for nothing any more",
    "UPDATE steps SET status = :status WHERE key = :key AND status || '' = 'pending' AND open_deps = 0",
)


@lru_cache(maxsize=KEPT_LANES)
def lane_of(
    session_id: str,
    pool: str,
    needs: tuple[str, ...],
    definition: str,
    model: str,
    mode: ClaimMode = ClaimMode.ASSIGNED,
) -> str:
    """Return the lane of a step: steps of one lane are claimable by the same workers and count in the same
    concurrency limits.
    """
    decisive = [session_id, pool, sorted(set(needs)), definition, model, mode.value]
    digest = hashlib.sha256(pack(decisive).encode()).digest()
    return base64.urlsafe_b64encode(digest[:LANE_BYTES]).decode()


def insert_steps(
    tx: Transaction,
    run_log: RunLogBuffer,
    steps: Sequence[NewStep],
    root_run_id: str,
    *,
    is_paused: bool = False,
    done: frozenset[str] = frozenset(),
) -> None:
    """Insert steps with their runs, those without open dependencies open; ``done`` are not open any more.

    Steps that are there already, which new ones depend on, are held.
    """
    note_steps(run_log, tx.paced(steps), root_run_id, done=done)
    dependents = _dependents(steps)
    tx.insert(INSERT_STEPS, (_step_row(step, dependents, is_paused=is_paused, done=done) for step in steps))
    new = {step.key for step in steps}
    add_dependents(tx, {key: ids for key, ids in dependents.items() if key not in new})


def ready_steps(steps: Sequence[NewStep], *, is_postgres: bool) -> ReadyRows:
    """Build the rows of steps that depend on one another alone; :func:`note_steps` is the rest of them."""
    dependents = _dependents(steps)
    rows = (_step_row(step, dependents, is_paused=False, done=frozenset()) for step in steps)
    return INSERT_STEPS, list(batches_of(rows, is_postgres=is_postgres))


def open_step(tx: Transaction, run_log: RunLogBuffer, key: str, gate: StepGate, log_run_id: str) -> None:
    """Open a pending step that waits for nothing any more; ``log_run_id`` is where its event belongs."""
    tx.rows(OPEN_COUNTED, key=key, status=OPENED[gate].value)
    run_log.note(log_run_id, opening(gate), step=key)


def add_dependents(tx: Transaction, more: Mapping[str, Sequence[str]]) -> None:
    """Add the ids of more dependents to steps, by their keys. The steps are held."""
    if not more:
        return
    keys = sorted(more)
    rows = [(key, ids_text([*ids_of(text), *more[key]])) for key, text in tx.rows(DEPENDENTS_OF, keys=keys)]
    tx.rows(SET_DEPENDENTS, keys=keys, more=rows)


def ids_of(text: str | None) -> list[str]:
    """Return the step ids that a column holds."""
    return [] if text is None else unpack(text)


def ids_text(step_ids: Sequence[str]) -> str | None:
    """Return step ids as a column holds them."""
    return pack(list(step_ids)) if step_ids else None


def note_steps(
    run_log: RunLogBuffer, steps: Iterable[NewStep], root_run_id: str, *, done: frozenset[str] = frozenset()
) -> None:
    """Gather the runs and the first events of new steps; those of a step without a run go to the root run's log."""
    opened_ones = []
    for step in steps:
        if step.run is not None:
            run_log.create(step.run, RunStatus.QUEUED)
        run_id = step.run.identity.run_id if step.run is not None else root_run_id
        run_log.note(run_id, EventType.STEP_CREATED, step=step.key)
        if done.issuperset(step.depends_on):
            opened_ones.append((run_id, step))
    for run_id, step in opened_ones:
        run_log.note(run_id, opening(step.gate), step=step.key)


def _dependents(steps: Sequence[NewStep]) -> dict[str, list[str]]:
    """Return the ids of these steps by the keys of what they depend on."""
    found: dict[str, list[str]] = {}
    for step in steps:
        for parent in dict.fromkeys(step.depends_on):
            found.setdefault(parent, []).append(step.step_id)
    return found


def _step_row(
    step: NewStep, dependents: Mapping[str, Sequence[str]], *, is_paused: bool, done: frozenset[str]
) -> tuple[object, ...]:
    open_deps = len(set(step.depends_on) - done)
    return INSERT_STEPS.row(
        {
            **STEPS.values(step),
            "step_id": step.step_id,
            "kind": step.kind.value,
            "gate": step.gate.value,
            "status": (StepStatus.PENDING if open_deps else OPENED[step.gate]).value,
            "open_deps": open_deps,
            "needs": pack(step.needs),
            "lane": lane_of(step.session_id, step.pool, step.needs, step.definition, step.model, step.claim_mode),
            "claim_mode": step.claim_mode.value,
            "run_id": step.run.identity.run_id if step.run else "",
            "attempt": step.run.attempt if step.run else 1,
            "is_paused": int(is_paused),
            "spec": pack(step.spec.as_json()),
            "depends_on": ids_text([step_id_of(parent) for parent in dict.fromkeys(step.depends_on)]),
            "dependents": ids_text(dependents.get(step.key, ())),
        }
    )
