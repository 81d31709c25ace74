"""The classes that rows of tables become, and the fields that are not columns.

A malformed row among many becomes a value with that problem, and stops no reader of the others.
"""

from functools import lru_cache
from typing import Any, Final

from msgspec import ValidationError, convert
from msgspec.structs import fields, replace
from sqlalchemy import Select, Table, select

from soong.shared.core.errors import ForgedError
from soong.shared.core.identity import Origin, RunIdentity, step_key
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.record import ListFilter, NewRun, Run, Usage
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import Command, Owner, Responder, Session, Worker
from soong.shared.engine.tasks.spec import StepSpec, StepStatus
from soong.shared.engine.tasks.step import MALFORMED, NewTask, Step, StepError, Task
from soong.shared.engine.tasks.store import StepSnapshot
from soong.shared.permissions.request import (
    Answer,
    Decision,
    PermissionRequest,
    Provenance,
    decision_from,
    provenance_from,
)
from soong.shared.storage.sql.engine.columns import MAX_TEXT_CHARS
from soong.shared.storage.sql.engine.row_mapper import (
    MalformedError,
    RowMapper,
    object_of,
    pack,
    unpack,
    usage_of,
    value_of,
)
from soong.shared.storage.sql.engine.tables.service import answers, commands, owners, responders, sessions, workers
from soong.shared.storage.sql.engine.tables.work import calls, runs, steps, tasks
from soong.shared.tools.ports import effect_id_of

KEPT_DOCUMENTS: Final = 256
"""Short lists of steps that are kept as they were read: those of one task are few."""
KEPT_CHARS: Final = 2_000
"""Longer texts are read again each time: the cache of rows stays small."""

OWNERS: Final = RowMapper(Owner, owners)
SESSIONS: Final = RowMapper(Session, sessions)
RESPONDERS: Final = RowMapper(Responder, responders)
COMMANDS: Final = RowMapper(Command, commands)
WORKERS: Final = RowMapper(Worker, workers)


def worker_of(row: Any, busy: int) -> Worker:
    """Raises: MalformedError when no process of ours registered like this."""
    if not row.id:
        raise MalformedError("id is empty")
    return replace(WORKERS.read(row), busy=busy)


# -- tasks and their steps
TASKS: Final = RowMapper(Task, tasks)
NEW_TASKS: Final = RowMapper(NewTask, tasks)


def filtered(wanted: Select[Any], of: Table, only: ListFilter) -> Select[Any]:
    """Return a query of tasks, or of runs, for those that meet a filter."""
    named = []
    if only.title:
        named.append(tasks.c.title.icontains(only.title, autoescape=True))
    if only.tag:
        named.append(tasks.c.tags.contains(pack(only.tag), autoescape=True))
    if named and of is not tasks:
        named = [of.c.task_id.in_(select(tasks.c.id).where(*named))]
    if only.statuses:
        named.append(of.c.status.in_(only.statuses))
    if only.since_us:
        named.append(of.c.created_us >= only.since_us)
    return wanted.where(*named) if named else wanted


def error_of(text: str | None) -> StepError | None:
    """Return the error in a step's row. Raises: MalformedError."""
    try:
        return None if text is None else convert(value_of("error", text, MAX_TEXT_CHARS), StepError)
    except ValidationError as problem:
        raise MalformedError(f"error is none: {problem}") from problem


def spec_of(text: str) -> StepSpec:
    """Return the spec of a step's row."""
    return convert(unpack(text), StepSpec)


@lru_cache(maxsize=KEPT_DOCUMENTS)
def _few_words(text: str) -> tuple[str, ...]:
    return tuple(unpack(text))


def _dependencies_in(row: Any) -> tuple[str, ...]:
    """Return the keys of the steps whose ids a row holds; the steps of a fan wait for the same ones."""
    text = row.depends_on
    if text is None:
        return ()
    step_ids = _few_words(text) if len(text) <= KEPT_CHARS else unpack(text)
    return tuple(step_key(row.task_id, step_id) for step_id in step_ids)


STEPS: Final = RowMapper(
    Step,
    steps,
    own={
        "spec": lambda row: spec_of(row.spec),
        "depends_on": _dependencies_in,
        "needs": lambda row: _few_words(row.needs),
        "error": lambda row: error_of(row.error),
    },
)
SNAPSHOTS: Final = RowMapper(StepSnapshot, steps, own={"error": lambda row: error_of(row.error)})


def step_of(row: Any) -> Step:
    """Return the step of a row. A malformed one has the error ``malformed_row``; one that had completed has failed."""
    try:
        return STEPS.read(row)
    except MalformedError:
        return Step(**_failed(*STEPS.salvage(row)))


def snapshot_of(row: Any) -> StepSnapshot:
    """Return the same of the state of a step."""
    try:
        return SNAPSHOTS.read(row)
    except MalformedError:
        return StepSnapshot(**_failed(*SNAPSHOTS.salvage(row)))


def _failed(found: dict[str, Any], problem: str) -> dict[str, Any]:
    status = StepStatus.FAILED if found["status"] is StepStatus.COMPLETED else found["status"]
    error = StepError(MALFORMED, f"its row is malformed: {problem}", retryable=False)
    return {**found, "status": status, "error": error}


def output_of(text: str | None) -> Json:
    """Return a step's own output; a step without one has None. Raises: MalformedError."""
    return None if text is None else value_of("output", text)


# -- runs
IDENTITIES: Final = RowMapper(
    RunIdentity,
    runs,
    own={"run_id": lambda row: row.id, "origin": lambda row: Origin(row.dispatched_by, bool(row.is_foreign))},
)
RUN_COLUMNS: Final = ("id", *IDENTITIES.written, "dispatched_by", "is_foreign")
"""The columns that name a run."""
NEW_RUNS: Final = RowMapper(NewRun, runs, without=("surface",))
RUNS: Final = RowMapper(
    Run,
    runs,
    own={
        "identity": IDENTITIES.read,
        "surface": lambda row: unpack(row.body) if row.body else {},
        "usage": lambda row: usage_of(row.usage),
        "is_tainted": lambda row: row.tainted_us is not None,
    },
    instead={"usage": Usage()},
)


def run_of(row: Any) -> Run:
    """Return the run of a row that was joined with its surface's ``body``; malformed, it has the problem."""
    try:
        return RUNS.read(row)
    except MalformedError:
        found, problem = RUNS.salvage(row)
        return Run(**found, malformed=problem)


# -- calls
_OPEN_INPUT: Final = "open_input"
"""Next to the inputs in their column: one UPDATE of it removes the entire input."""

CALLS: Final = RowMapper(
    CallRow,
    calls,
    own={
        "effect_id": lambda row: row.effect_id or effect_id_of(row.run_id, row.tool_call_id),
        "inputs": lambda row: object_of("inputs", row.inputs),
        "result": lambda row: output_of(row.result),
    },
    instead={"inputs": {}},
)


CALL_COLUMNS: Final = (*CALLS.written, "effect_id", "inputs", "result")


def call_values(call: CallRow) -> dict[str, object]:
    """Return what a call's row holds."""
    inputs = call.inputs if call.open_input is None else {**call.inputs, _OPEN_INPUT: call.open_input}
    return {
        **CALLS.values(call),
        "effect_id": "" if call.effect_id == effect_id_of(call.run_id, call.tool_call_id) else call.effect_id,
        "inputs": pack(inputs),
        "result": None if call.result is None else pack(call.result),
    }


def call_of(row: Any) -> CallRow:
    """Return the ledger entry of a row; malformed parts of it are left out, and its status holds."""
    found, _ = CALLS.salvage(row)
    open_input = found["inputs"].pop(_OPEN_INPUT, None)
    return CallRow(**found, open_input=open_input if isinstance(open_input, dict) else None)


# -- consent
def request_body(request: PermissionRequest) -> str:
    """Return a request as its row keeps it: without what other columns and the run's row hold."""
    kept = {name.name: getattr(request, name.name) for name in fields(request) if name.name != "identity"}
    if not request.unknown_effects:  # so that an owner of the version before reads it
        del kept["unknown_effects"]
    return pack(kept)


def provenance_of(text: str) -> Provenance:
    """Return the provenance of an answer; an unreadable one becomes an empty one, which answers nothing."""
    try:
        return provenance_from(object_of("provenance", text, MAX_TEXT_CHARS))
    except MalformedError:
        return Provenance()


ANSWERS: Final = RowMapper(
    Answer,
    answers,
    own={
        "metadata": lambda row: object_of("metadata", row.metadata, MAX_TEXT_CHARS),
        "provenance": lambda row: provenance_of(row.provenance),
    },
)


def answer_of(row: Any) -> Answer:
    """Return the answer of a row; a malformed one comes from nowhere, and so answers nothing."""
    try:
        return ANSWERS.read(row)
    except MalformedError:
        return Answer(**{**ANSWERS.salvage(row)[0], "metadata": {}, "provenance": Provenance()})


def decision_body(decision: Decision) -> str:
    return pack(decision.as_json())


def decision_of(body: str) -> Decision:
    """Raises: ForgedError when the text is not a decision: an unknown word, a field too few or too many."""
    try:
        kept = unpack(body)
    except ValueError as error:
        raise ForgedError(f"a decision's row cannot be read: {error}", what="malformed_decision") from error
    return decision_from(kept)
