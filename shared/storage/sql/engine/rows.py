"""The one place that turns rows into values and values into what rows hold.

What workers write is read as strangers' (:mod:`soong.shared.storage.sql.engine.strict`). A row of one thing among
many that is malformed becomes a value that says so, and stops no reader of the others.
"""

import base64
import hashlib
from functools import lru_cache
from typing import Any, Final

from msgspec import ValidationError, convert
from msgspec.structs import fields

from soong.shared.core.errors import ForgedError
from soong.shared.core.identity import Origin, Role, RunIdentity
from soong.shared.core.ids import step_key
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.record import Run, Usage
from soong.shared.engine.runs.status import EndReason, RunStatus
from soong.shared.engine.runs.store import CallRow, CallStatus
from soong.shared.engine.sessions.session import (
    ApprovalMode,
    Command,
    CommandKind,
    Owner,
    ProcessState,
    RefusalType,
    Responder,
    Session,
    Worker,
)
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, TaskKind
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import MALFORMED, Outcome, Step, StepError, Task
from soong.shared.permissions.explain import decision_from
from soong.shared.permissions.request import Answer, Choice, Decision, PermissionRequest, Provenance, provenance_from
from soong.shared.storage.sql.engine.json_encoding import encode, encode_ascii
from soong.shared.storage.sql.engine.strict import (
    MAX_TEXT_CHARS,
    MalformedError,
    RowReader,
    decoded,
    instant_of,
    number_of,
    object_of,
    usage_of,
    value_of,
    word_of,
    words_of,
)
from soong.shared.tools.ports import effect_id_of


def pack(value: object) -> str:
    """Return JSON text for a column. Lone surrogates, which no database takes as text, are escaped."""
    text = encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return encode_ascii(value)
    return text


def unpack(text: str) -> Any:
    """Return the value of a JSON column that no worker writes."""
    return decoded(text)


def plain(text: str) -> str:
    """Return free text as both databases can keep it: NUL and lone surrogates become U+FFFD."""
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


KEPT_NEEDS: Final = 256
"""Needs of steps, and their lanes, that are kept as they were read or made: those of one task are few."""

KEPT_CHARS: Final = 2_000
"""Longer texts are read again each time: what is kept of rows stays small."""

LANE_BYTES: Final = 18
"""Of a lane's digest: so many that no two lanes share one, and the index of ready steps stays short."""


@lru_cache(maxsize=KEPT_NEEDS)
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
    told = [session_id, pool, sorted(set(needs)), definition, model, mode.value]
    digest = hashlib.sha256(pack(told).encode()).digest()
    return base64.urlsafe_b64encode(digest[:LANE_BYTES]).decode()


def digest_of(text: str) -> str:
    """Return the SHA-256 of stored text."""
    return hashlib.sha256(text.encode()).hexdigest()


# -- sessions and processes
def owner_of(row: Any) -> Owner:
    return Owner(row.id, row.host, row.pid, row.started_us, ProcessState(row.state), row.beat)


def session_of(row: Any) -> Session:
    return Session(
        id=row.id,
        project=row.project,
        cwd=row.cwd,
        approval_mode=ApprovalMode(row.approval_mode),
        created_us=row.created_us,
        policy=unpack(row.policy),
        principal=row.principal,
        owner_id=row.owner_id,
        owner_epoch=row.owner_epoch,
        is_closed=bool(row.is_closed),
        project_id=row.project_id,
        closes_with_task=bool(row.closes_with_task),
    )


def responder_of(row: Any) -> Responder:
    return Responder(row.id, row.session_id, row.principal, row.channel, row.beat)


def command_of(row: Any) -> Command:
    return Command(
        id=row.id,
        session_id=row.session_id,
        kind=CommandKind(row.kind),
        subject=row.subject,
        principal=row.principal,
        created_us=row.created_us,
        detail=unpack(row.detail),
        refusal=row.refusal,
        refusal_type=RefusalType(row.refusal_type),
        may_approve=bool(row.may_approve),
    )


def worker_of(row: Any, busy: int) -> Worker:
    """Raises: MalformedError when no process of ours registered like this."""
    if not row.id:
        raise MalformedError("id is empty")
    return Worker(
        id=word_of("id", row.id),
        node_name=word_of("node_name", row.node_name),
        host=word_of("host", row.host),
        pid=number_of("pid", row.pid),
        slots=number_of("slots", row.slots),
        pools=words_of("pools", row.pools),
        capabilities=words_of("capabilities", row.capabilities),
        started_us=instant_of("started_us", row.started_us) or 0,
        protocol=number_of("protocol", row.protocol),
        state=ProcessState(row.state),
        beat=row.beat,
        busy=busy,
    )


# -- tasks
def task_of(row: Any) -> Task:
    return Task(
        id=row.id,
        session_id=row.session_id,
        title=row.title,
        status=TaskStatus(row.status),
        plan=unpack(row.plan),
        inputs=unpack(row.inputs),
        root_run_id=row.root_run_id,
        created_us=row.created_us,
        ended_us=row.ended_us,
        reason=row.reason,
        kind=TaskKind(row.kind),
        trace_parent=row.trace_parent,
    )


def step_of(row: Any) -> Step:
    """Return the step of a row. A malformed one has the error ``malformed_row``; one that had completed has failed."""
    try:
        error, output = error_of(row.error), output_of(row.output)
        times_us = instant_of("started_us", row.started_us), instant_of("ended_us", row.ended_us)
    except MalformedError:
        return _malformed_step(row)
    return _step_of(row, StepStatus(row.status), output, error, times_us)


def spec_of(text: str) -> StepSpec:
    """Return the spec of a step's row."""
    return convert(unpack(text), StepSpec)


def _malformed_step(row: Any) -> Step:
    reading = RowReader()
    reading.take(lambda: error_of(row.error), None)
    output = reading.take(lambda: output_of(row.output), None)
    times_us = reading.instant("started_us", row.started_us), reading.instant("ended_us", row.ended_us)
    error = StepError(MALFORMED, f"its row is malformed: {reading.problem}", retryable=False)
    status = StepStatus(row.status)
    status = StepStatus.FAILED if status is StepStatus.COMPLETED else status
    return _step_of(row, status, output, error, times_us)


def error_of(text: str | None) -> StepError | None:
    """Return the error in a step's row. Raises: MalformedError."""
    try:
        return None if text is None else convert(value_of("error", text, MAX_TEXT_CHARS), StepError)
    except ValidationError as problem:
        raise MalformedError(f"error is none: {problem}") from problem


def _step_of(
    row: Any,
    status: StepStatus,
    output: Json,
    error: StepError | None,
    times_us: tuple[int | None, int | None],
) -> Step:
    """Return a step with these values for what workers write as text. ``times_us``: it was started, it ended."""
    started_us, ended_us = times_us
    return Step(
        key=row.key,
        task_id=row.task_id,
        session_id=row.session_id,
        title=row.title,
        status=status,
        spec=spec_of(row.spec),
        depends_on=() if row.depends_on is None else _keys_of(row.task_id, row.depends_on),
        open_deps=row.open_deps,
        priority=row.priority,
        pool=row.pool,
        needs=_needs_of(row.needs),
        definition=row.definition,
        model=row.model,
        run_id=row.run_id,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        on_failure=FailurePolicy(row.on_failure),
        lost_leases=row.lost_leases,
        lost_to=row.lost_to,
        fence=row.fence,
        worker_id=row.worker_id,
        map_key=row.map_key,
        item_index=row.item_index,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        output=output,
        error=error,
        progress=row.progress,
        started_us=started_us,
        ended_us=ended_us,
        not_before_us=row.not_before_us,
        is_pull_worker=bool(row.is_pull_worker),
        holder_run_id=row.holder_run_id,
    )


@lru_cache(maxsize=KEPT_NEEDS)
def _needs_of(text: str) -> tuple[str, ...]:
    """Return a step's needs, which most steps of a task have in common."""
    return tuple(unpack(text))


@lru_cache(maxsize=KEPT_NEEDS)
def needs_text(needs: tuple[str, ...]) -> str:
    """Return a step's needs as its row holds them."""
    return pack(needs)


def _keys_of(task_id: str, text: str) -> tuple[str, ...]:
    """Return the keys of the steps whose ids a column holds."""
    if len(text) > KEPT_CHARS:
        return tuple(step_key(task_id, step_id) for step_id in unpack(text))
    return _few_keys_of(task_id, text)


@lru_cache(maxsize=KEPT_NEEDS)
def _few_keys_of(task_id: str, text: str) -> tuple[str, ...]:
    """The same of a short text: the steps of a fan wait for the same ones."""
    return tuple(step_key(task_id, step_id) for step_id in unpack(text))


def output_of(text: str | None) -> Json:
    """Return a step's own output; a step without one has None. Raises: MalformedError."""
    return None if text is None else value_of("output", text)


# -- runs
def identity_of(row: Any) -> RunIdentity:
    return RunIdentity(
        session_id=row.session_id,
        run_id=row.id,
        agent_id=row.agent_id,
        role=Role(row.role),
        definition=row.definition,
        parent_run_id=row.parent_run_id,
        parent_agent_id=row.parent_agent_id,
        task_id=row.task_id,
        step_key=row.step_key,
        step_title=row.step_title,
        model=row.model,
        origin=Origin(row.dispatched_by, bool(row.is_foreign)),
    )


def run_of(row: Any) -> Run:
    """Return the run of a row that was joined with its surface's ``body`` and with its taint; malformed, it says so."""
    reading = RowReader()
    usage = reading.take(lambda: usage_of(row.usage), Usage())
    started_us = reading.instant("started_us", row.started_us)
    ended_us = reading.instant("ended_us", row.ended_us)
    return Run(
        identity=identity_of(row),
        status=RunStatus(row.status),
        surface=unpack(row.body) if row.body else {},
        attempt=row.attempt,
        retry_of=row.retry_of,
        fence=row.fence,
        worker_id=row.worker_id,
        last_seq=row.last_seq,
        last_node=row.last_node,
        usage=usage,
        end_reason=None if row.end_reason is None else EndReason(row.end_reason),
        created_us=row.created_us,
        started_us=started_us,
        ended_us=ended_us,
        token=row.token,
        is_tainted=row.tainted_us is not None,
        malformed=reading.problem,
    )


_OPEN_INPUT: Final = "open_input"
"""Next to the inputs in their column: one UPDATE of it removes the entire input."""


def inputs_of(call: CallRow) -> dict[str, Json]:
    """Return what a call's inputs column holds."""
    return {**call.inputs, **({_OPEN_INPUT: call.open_input} if call.open_input is not None else {})}


def call_of(row: Any) -> CallRow:
    """Return the ledger entry of a row; what is malformed of it is left out, and its status holds."""
    reading = RowReader()
    inputs = dict(reading.object("inputs", row.inputs))
    open_input = inputs.pop(_OPEN_INPUT, None)
    return CallRow(
        open_input=open_input if isinstance(open_input, dict) else None,
        run_id=row.run_id,
        tool_call_id=row.tool_call_id,
        tool=row.tool,
        effect_id=row.effect_id or effect_id_of(row.run_id, row.tool_call_id),
        is_write=bool(row.is_write),
        input_digest=row.input_digest,
        inputs=inputs,
        facts=reading.object("facts", row.facts),
        decision_id=row.decision_id,
        status=CallStatus(row.status),
        result=reading.take(lambda: output_of(row.result), None),
    )


# -- consent
def request_body(request: PermissionRequest) -> str:
    """Return a request as its row keeps it: without what other columns and the run's row hold."""
    kept = {name.name: getattr(request, name.name) for name in fields(request) if name.name != "identity"}
    if not request.unknown_effects:  # so that an owner of the version before reads it
        del kept["unknown_effects"]
    return pack(kept)


def answer_of(row: Any) -> Answer:
    """Return the answer of a row; a malformed one comes from nowhere, and so answers nothing."""
    reading = RowReader()
    metadata = reading.object("metadata", row.metadata, MAX_TEXT_CHARS)
    return Answer(
        request_id=row.request_id,
        choice=None if row.choice is None else Choice(row.choice),
        principal=row.principal,
        channel=row.channel,
        input_digest=row.input_digest,
        answered_us=row.answered_us,
        reason=row.reason,
        metadata=metadata,
        provenance=Provenance() if reading.problems else provenance_of(row.provenance),
    )


def provenance_of(text: str) -> Provenance:
    """Return where an answer came from; what cannot be read is an empty one, which answers nothing."""
    try:
        return provenance_from(object_of("provenance", text, MAX_TEXT_CHARS))
    except MalformedError:
        return Provenance()


def decision_body(decision: Decision) -> str:
    return pack(decision.as_json())


def decision_of(body: str) -> Decision:
    """Raises: ForgedError when the text is not a decision: an unknown word, a field too few or too many."""
    try:
        kept = unpack(body)
    except ValueError as error:
        raise ForgedError(f"a decision's row cannot be read: {error}", what="malformed_decision") from error
    return decision_from(kept)
