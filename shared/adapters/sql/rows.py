"""The one place that turns rows into values and values into what rows hold."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from shared.errors import ForgedError
from shared.identity import Origin, Role, RunIdentity
from shared.jsontext import Json
from shared.permissions.provenance import Provenance, provenance_from
from shared.permissions.request import Answer, Choice, Decision, PermissionRequest
from shared.runs.events import Event, Node, NodeKind
from shared.runs.record import Run, Usage
from shared.runs.status import EndReason, RunStatus
from shared.runs.store import CallRow, CallStatus
from shared.sessions.session import AnswerMode, Command, CommandKind, Owner, ProcessState, Responder, Session, Worker
from shared.tasks.status import StepStatus, TaskStatus
from shared.tasks.step import ClaimMode, FailurePolicy, Outcome, Step, StepError, StepKind, Task
from shared.tools.result import ErrorType

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_encode_ascii: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def pack(value: object) -> str:
    """Return JSON text for a column. Lone surrogates, which no database takes as text, are escaped and come back."""
    text = _encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _encode_ascii(value)
    return text


def unpack(text: str) -> Any:
    """Return the value of a JSON column."""
    return json.loads(text)


def plain(text: str) -> str:
    """Return free text as both databases can keep it: NUL and lone surrogates become U+FFFD."""
    if text.isascii():
        return text.replace("\0", "\ufffd") if "\0" in text else text
    return text.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def lane_of(
    session_id: str, pool: str, needs: Sequence[str], definition: str, model: str, mode: ClaimMode = ClaimMode.ASSIGNED
) -> str:
    """Return the lane of a step: steps of one lane are claimable by the same workers and count in the same caps."""
    told: list[object] = [pool, sorted(set(needs)), definition, model]
    if mode is not ClaimMode.ASSIGNED:
        told.append(mode.value)
    digest = hashlib.sha256(pack(told).encode()).hexdigest()
    return f"{session_id}:{digest[:16]}"


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
        answer_mode=AnswerMode(row.answer_mode),
        created_us=row.created_us,
        policy=unpack(row.policy),
        principal=row.principal,
        owner_id=row.owner_id,
        owner_epoch=row.owner_epoch,
        is_closed=bool(row.is_closed),
        project_id=row.project_id,
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
        may_approve=bool(row.may_approve),
    )


def worker_of(row: Any, busy: int) -> Worker:
    return Worker(
        id=row.id,
        node_name=row.node_name,
        host=row.host,
        pid=row.pid,
        slots=row.slots,
        pools=tuple(unpack(row.pools)),
        capabilities=tuple(unpack(row.capabilities)),
        started_us=row.started_us,
        protocol=row.protocol,
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
    )


def step_of(row: Any, depends_on: Sequence[str]) -> Step:
    error = None if row.error is None else unpack(row.error)
    return Step(
        key=row.key,
        task_id=row.task_id,
        session_id=row.session_id,
        step_id=row.step_id,
        title=row.title,
        kind=StepKind(row.kind),
        status=StepStatus(row.status),
        spec=unpack(row.spec),
        depends_on=tuple(depends_on),
        open_deps=row.open_deps,
        priority=row.priority,
        pool=row.pool,
        needs=tuple(unpack(row.needs)),
        definition=row.definition,
        model=row.model,
        run_id=row.run_id,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        backoff_s=row.backoff_s,
        on_failure=FailurePolicy(row.on_failure),
        lost_leases=row.lost_leases,
        lost_to=row.lost_to,
        fence=row.fence,
        worker_id=row.worker_id,
        map_key=row.map_key,
        item_index=row.item_index,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        output=output_of(row.output),
        error=None if error is None else StepError(error["type"], error["message"], error["retryable"]),
        progress=row.progress,
        started_us=row.started_us,
        ended_us=row.ended_us,
        not_before_us=row.not_before_us,
        claim_mode=ClaimMode(row.claim_mode),
        is_puller=bool(row.is_puller),
        holder_run_id=row.holder_run_id,
    )


def output_of(text: str | None) -> Json:
    """Return a step's own output; a step without one has None."""
    value: Json = None if text is None else unpack(text)
    return value


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
    """Return the run of a row that was joined with its surface's ``body`` and with its taint."""
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
        usage=Usage.from_json(unpack(row.usage)),
        end_reason=None if row.end_reason is None else EndReason(row.end_reason),
        created_us=row.created_us,
        started_us=row.started_us,
        ended_us=row.ended_us,
        token=row.token,
        is_tainted=bool(row.is_tainted),
    )


def event_of(row: Any) -> Event:
    return Event(row.run_id, row.seq, row.type, row.time_us, unpack(row.data))


def node_of(row: Any) -> Node:
    return Node(row.run_id, row.number, row.parent, NodeKind(row.kind), unpack(row.payload), row.created_us)


_OPEN_INPUT: Final = "open_input"
"""Beside the inputs in their column: one UPDATE of it takes the whole input away."""


def inputs_of(call: CallRow) -> dict[str, Json]:
    """Return what a call's inputs column holds."""
    return {**call.inputs, **({_OPEN_INPUT: call.open_input} if call.open_input is not None else {})}


def call_of(row: Any) -> CallRow:
    inputs = unpack(row.inputs)
    return CallRow(
        open_input=inputs.pop(_OPEN_INPUT, None),
        run_id=row.run_id,
        tool_call_id=row.tool_call_id,
        tool=row.tool,
        effect_id=row.effect_id,
        is_write=bool(row.is_write),
        input_digest=row.input_digest,
        inputs=inputs,
        facts=unpack(row.facts),
        decision_id=row.decision_id,
        status=CallStatus(row.status),
        result=output_of(row.result),
    )


# -- consent
def request_body(request: PermissionRequest) -> str:
    """Return a request as its row keeps it: without what other columns and the run's row say."""
    kept = {name.name: getattr(request, name.name) for name in fields(request) if name.name != "identity"}
    if not request.unknown_effects:  # so that an owner of the version before reads it
        del kept["unknown_effects"]
    return pack(kept)


def answer_of(row: Any) -> Answer:
    return Answer(
        request_id=row.request_id,
        choice=None if row.choice is None else Choice(row.choice),
        principal=row.principal,
        channel=row.channel,
        input_digest=row.input_digest,
        answered_us=row.answered_us,
        reason=row.reason,
        metadata=unpack(row.metadata),
        provenance=provenance_of(row.provenance),
    )


def provenance_of(text: str) -> Provenance:
    """Return where an answer came from; what cannot be read is an empty one, which answers nothing."""
    try:
        value = unpack(text)
    except ValueError:
        return Provenance()
    return provenance_from(value) if isinstance(value, dict) else Provenance()


def decision_body(decision: Decision) -> str:
    return pack({name.name: getattr(decision, name.name) for name in fields(decision)})


def decision_of(body: str) -> Decision:
    """Raises: ForgedError when the text is no decision: an unknown word, a field too few or too many."""
    try:
        kept = unpack(body)
        kept.update(choice=Choice(kept["choice"]), error=None if kept["error"] is None else ErrorType(kept["error"]))
        return Decision(**kept)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForgedError(f"a decision's row cannot be read: {error}", what="malformed_decision") from error
