"""Entries of the audit log, and the chains that make a changed or missing one show (threat 28).

Each process that writes has a chain of its own, so no writer ever waits for another: entry *n* carries the digest of
entry *n - 1* of its chain (``previous``) and the digest of the newest entry of any other chain that its transaction saw
(``beside``). Through ``beside`` the chains hold each other: removing entries at the end of one takes rewriting every
chain that continued after it. No chain can show that *all* of them were rewritten: a digest that is noted elsewhere
does (``soong audit verify --expect-digest``).

The note of each act is made of the act's own values. The texts of people and of tools may hold secrets; a chain is over
what is stored, so they go before it is linked (EVT-05).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from msgspec.structs import replace

from soong.shared.core.errors import ANSWERED, ForgedError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject, digest
from soong.shared.core.timing import rfc3339
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.step import MALFORMED
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.request import Answer, Decision
from soong.shared.permissions.signing import ExpiredDecision, SigningKey, verify

VERSION: Final = 1


class AuditKind(StrEnum):
    """The subject of an entry. Each entry is written in the transaction of its subject."""

    SESSION_OPENED = "session_opened"
    """With its policy, the rules of ``--allow`` among it: the calls without a question."""
    ANSWER = "answer"
    """A responder's answer: principal, channel, choice, question, digest of the input."""
    DECISION = "decision"
    """The owner's decision on it: author, rule and its source or grant, expiry, key."""
    GRANT_GIVEN = "grant_given"
    GRANT_USED = "grant_used"
    WITHDRAWN = "withdrawn"
    """A question closed without a decision: its asker ended, or asked too much."""
    EXPIRED = "expired"
    """A decision that nobody may use any more: its key was withdrawn."""
    KEY_PUBLISHED = "key_published"
    KEY_RETIRED = "key_retired"
    TOKEN_MADE = "token_made"  # noqa: S105  # the name of an event
    SIGNED_IN = "signed_in"
    """Somebody took the code of a sign-in, and has a token of it."""
    TOKEN_REVOKED = "token_revoked"  # noqa: S105  # as above
    SECURITY = "security"
    """Something that did not hold: a forged row, a foreign principal, a second use."""


class AuditNote(Value):
    """A future entry, before it has its place in a chain. ``session_id`` is empty for the deployment."""

    kind: AuditKind
    data: JsonObject
    session_id: str = ""


class Head(Value):
    """The end of a chain in a transaction; ``beside`` is the newest digest of the other chains, if any."""

    number: int = 0
    digest: str = ""
    beside: str = ""


class AuditEntry(Value):
    """One line of the log. ``number`` starts at 1 in its chain and has no gap."""

    chain: str
    number: int
    time_us: int
    kind: str
    session_id: str
    data: JsonObject
    previous: str
    beside: str
    digest: str
    ordinal: int = 0
    """The order of insertion over all chains; the database's, and covered by no digest."""

    def covered(self) -> dict[str, Json]:
        """Return what the digest is of: everything but itself and the ordinal."""
        return {
            "v": VERSION,
            "chain": self.chain,
            "number": self.number,
            "time_us": self.time_us,
            "kind": self.kind,
            "session": self.session_id,
            "data": dict(self.data),
            "previous": self.previous,
            "beside": self.beside,
        }

    def as_json(self) -> dict[str, Json]:
        """Return the entry as one line of the export: the covered fields, the digest, and the time for people."""
        return {**self.covered(), "digest": self.digest, "time": rfc3339(self.time_us)}


def linked(note: AuditNote, chain: str, head: Head, time_us: int) -> AuditEntry:
    bare = AuditEntry(
        chain, head.number + 1, time_us, str(note.kind), note.session_id, note.data, head.digest, head.beside, ""
    )
    return replace(bare, digest=digest(bare.covered()))


class Break(Value):
    """The first place where the log does not hold."""

    chain: str
    number: int
    problem: str

    def __str__(self) -> str:
        return f"entry {self.number} of chain {self.chain}: {self.problem}"


@dataclass(slots=True)
class Verifier:
    """Checks entries in the order of their insertion, page by page. Keeps a digest an entry and a head a chain."""

    heads: dict[str, tuple[int, str]] = field(default_factory=dict)
    count: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def check(self, entries: Iterable[AuditEntry]) -> Break | None:
        """Take the next entries; return the first that does not hold."""
        for entry in entries:
            problem = self._problem(entry)
            if problem:
                return Break(entry.chain, entry.number, problem)
            self.heads[entry.chain] = (entry.number, entry.digest)
            self._seen.add(bytes.fromhex(entry.digest))
            self.count += 1
        return None

    def has_seen(self, noted: str) -> bool:
        """Say whether an entry with that digest, noted elsewhere at an earlier time, was among those checked."""
        try:
            return bytes.fromhex(noted) in self._seen
        except ValueError:
            return False

    def _problem(self, entry: AuditEntry) -> str:
        number, previous = self.heads.get(entry.chain, (0, ""))
        if entry.number != number + 1:
            return f"it follows entry {number}: what stood between them is gone" if entry.number > number else "twice"
        if entry.previous != previous:
            return "it does not carry the digest of the entry before it: that one was exchanged"
        if entry.digest != digest(entry.covered()):
            return "its digest is not that of its content: it was changed"
        if entry.beside and bytes.fromhex(entry.beside) not in self._seen:
            return f"it saw an entry {entry.beside[:16]}… of another chain that is not there any more"
        return ""


class Use(Value):
    """One consumption. ``decision`` is None when no row of that id is one; ``input_digest`` is the call's own."""

    decision_id: str
    run_id: str
    tool_call_id: str
    consumed_us: int
    decision: Decision | None
    input_digest: str | None


class AuditStore(Protocol):
    async def note(self, notes: Sequence[AuditNote], *, now_us: int) -> None:
        """Add entries of their own, for what has no other transaction that they could be part of."""

    async def audit_entries(
        self, *, after: int = 0, session_id: str = "", kinds: Collection[str] = (), since_us: int = 0, limit: int = 1000
    ) -> Sequence[AuditEntry]:
        """Return entries in the order of their insertion, those with a higher ordinal than ``after``."""

    async def uses(self, *, after: str = "", limit: int = 1000) -> Sequence[Use]:
        """Return the decisions that were used, in the order of their ids, those beyond ``after``."""

    async def take_reports(self, owner_id: str, *, now_us: int, limit: int = 200) -> int:
        """Make entries of what workers reported of the owner's and nobody's sessions, each once; return how many. A
        worker reports what it refused in its run's log, and in the same transaction in a row that it cannot read.
        """


def problem(use: Use, keys: Mapping[str, SigningKey]) -> str:
    """Return what is wrong with a use, in a sentence; empty when it holds."""
    decision = use.decision
    if decision is None:
        return "there is no such decision"
    if (decision.run_id, decision.tool_call_id) != (use.run_id, use.tool_call_id):
        return f"it was given to call {decision.tool_call_id} of run {decision.run_id}"
    if not decision.choice.is_allowed or decision.error is not None:
        return "it says no"
    if use.consumed_us >= decision.expires_us:
        return "it had expired"
    if use.input_digest is not None and use.input_digest != decision.input_digest:
        return "the call's input is another than the one that was allowed"
    key = keys.get(decision.key_id)
    if key is None:
        return f"its key {decision.key_id} is unknown"
    try:
        verify(decision, key.public_key)
        if key.revoked_us is None or use.consumed_us > key.revoked_us:  # used before: nothing can take that back
            key.check(decision)
    except ForgedError as error:
        return str(error)
    return ""


_OF_LOG: Final = {"request_id": "request", "decision_id": "decision", "tool_call_id": "tool_call"}
"""Names in the log of a run, and their names in the audit log."""

MAX_SHOWN_CHARS: Final = 200

REPORTED: Final = frozenset({EventType.SECURITY, EventType.PERMISSION_WITHDRAWN})
"""Events in a run's log that belong into the audit log, where a worker may not write."""


def of_session(session: Session) -> AuditNote:
    """Tell that a session was opened, and what its policy allows without a question."""
    data: dict[str, Json] = {
        "principal": session.principal,
        "project": session.project,
        "approval_mode": str(session.approval_mode),
        "policy": dict(session.policy),
    }
    return AuditNote(AuditKind.SESSION_OPENED, data, session.id)


def of_answer(answer: Answer, session_id: str, run_id: str) -> AuditNote:
    """Tell who answered what, how, and to which input."""
    return AuditNote(AuditKind.ANSWER, {"run": run_id, **_said(answer)}, session_id)


def of_late_answer(answer: Answer, session_id: str, run_id: str, state: str) -> AuditNote:
    """Tell of an answer to a question that was closed, or answered, before."""
    what = "second_answer" if state == ANSWERED else "late_answer"
    return _security(what, session_id, state=state, run=run_id, **_said(answer))


def of_decision(decision: Decision, events: Sequence[NewEvent]) -> list[AuditNote]:
    """Tell of a decision and of the grant that it gives or uses; and of what was wrong with the question or answer."""
    facts = next((event.data for event in events if event.type == EventType.PERMISSION_DECIDED), {})
    security = [
        AuditNote(AuditKind.SECURITY, {"run": decision.run_id, **_as_audited(event.data)}, decision.session_id)
        for event in events
        if event.type == EventType.SECURITY
    ]
    data: dict[str, Json] = {
        **{name: facts[name] for name in ("channel", "rule", "grant", "metadata") if name in facts},
        "request": decision.request_id,
        "decision": decision.id,
        "run": decision.run_id,
        "tool_call": decision.tool_call_id,
        "tool": decision.tool,
        "scope": decision.scope,
        "input_digest": decision.input_digest,
        "choice": str(decision.choice),
        "author": decision.author,
        "principal": decision.principal,
        "reason": decision.reason,
        "error": None if decision.error is None else str(decision.error),
        "expires_us": decision.expires_us,
        "key": decision.key_id,
        "signature": decision.signature,
    }
    told = [*security, AuditNote(AuditKind.DECISION, data, decision.session_id)]
    grant: dict[str, Json] = {"decision": decision.id, "tool": decision.tool, "scope": decision.scope}
    if decision.choice.is_grant:
        given = {**grant, "principal": decision.principal}
        told.append(AuditNote(AuditKind.GRANT_GIVEN, given, decision.session_id))
    elif decision.author == "grant":
        used = {**grant, "grant": facts.get("grant"), "run": decision.run_id}
        told.append(AuditNote(AuditKind.GRANT_USED, used, decision.session_id))
    return told


def of_stale_owner(decision: Decision, owner_id: str, epoch: int) -> AuditNote:
    """Tell of a decision by one who does not own the session (any more)."""
    facts: dict[str, Json] = {"request": decision.request_id, "choice": str(decision.choice)}
    return _security("stale_owner", decision.session_id, owner=owner_id, epoch=epoch, **facts)


def of_withdrawn(session_id: str, run_id: str, request_id: str, tool_call_id: str, reason: str) -> AuditNote:
    """Tell that a question was closed without a decision, and why."""
    data: dict[str, Json] = {"request": request_id, "run": run_id, "tool_call": tool_call_id, "reason": reason}
    return AuditNote(AuditKind.WITHDRAWN, data, session_id)


def of_dropped_questions(session_id: str, run_id: str, closed: int) -> AuditNote:
    """Tell that a run asked too much at once, or that others did in its name; nobody was shown what was closed."""
    return _security("questions_dropped", session_id, run=run_id, closed=closed)


def of_tampering(identity: RunIdentity, what: str, problem: str) -> AuditNote:
    """Tell what was found among a run's files that no part of ours puts there."""
    return _security(what, identity.session_id, run=identity.run_id, problem=problem)


def of_malformed_report(identity: RunIdentity, problem: str) -> AuditNote:
    """Tell of a report that cannot be read; some worker that held the run left it."""
    return _security(MALFORMED, identity.session_id, row="report", run=identity.run_id, reason=problem)


def of_malformed_worker(worker_id: str, problem: str, freed: int) -> AuditNote:
    """Tell of a worker whose row no process of ours leaves behind, and how many leases that freed."""
    return _security(MALFORMED, row="worker", worker=worker_id[:MAX_SHOWN_CHARS], reason=problem, freed=freed)


def of_report(identity: RunIdentity, type_: str, data: Mapping[str, Json]) -> AuditNote:
    """Note a worker's report on a run: a refused decision, or a question that it took back."""
    kind = AuditKind.WITHDRAWN if type_ == EventType.PERMISSION_WITHDRAWN else AuditKind.SECURITY
    return AuditNote(kind, {**_as_audited(data), "run": identity.run_id, "reported_by": "worker"}, identity.session_id)


def of_token_made(token: ApiToken) -> AuditNote:
    """Tell who may speak for whom from now on. Neither the secret nor its digest."""
    rights: list[Json] = [str(right) for right in sorted(token.rights)]
    data: dict[str, Json] = {"token": token.id, "principal": token.principal, "rights": rights}
    return AuditNote(AuditKind.TOKEN_MADE, {**data, "expires_us": token.expires_us})


def of_sign_in(token: ApiToken) -> AuditNote:
    return AuditNote(AuditKind.SIGNED_IN, {"token": token.id, "principal": token.principal})


def of_token_revoked(token: ApiToken) -> AuditNote:
    return AuditNote(AuditKind.TOKEN_REVOKED, {"token": token.id, "principal": token.principal})


def of_key_published(key_id: str, public_key: bytes, principal: str, reason: str) -> AuditNote:
    """Tell by whom a key was published; nobody is named for the first key of a deployment."""
    data: dict[str, Json] = {"key": key_id, "public_key": public_key.hex(), "principal": principal, "reason": reason}
    return AuditNote(AuditKind.KEY_PUBLISHED, data)


def of_refused_key(key_id: str, problem: str) -> AuditNote:
    """Tell that an owner found a key that it does not sign with."""
    return _security("unpublished_key", key=key_id, problem=problem)


def of_key_retired(
    key_id: str, is_revoked: bool, at_us: int, principal: str, reason: str, expired: Sequence[ExpiredDecision]
) -> list[AuditNote]:
    """Tell that a key has ended, and of every decision that was taken away with it."""
    data: dict[str, Json] = {"key": key_id, "is_revoked": is_revoked, "at_us": at_us}
    told = [
        AuditNote(AuditKind.KEY_RETIRED, {**data, "principal": principal, "reason": reason, "expired": len(expired)})
    ]
    for one in expired:
        closed: dict[str, Json] = {"request": one.request_id, "run": one.run_id, "key": key_id}
        told.append(AuditNote(AuditKind.EXPIRED, {**closed, "reason": "its key was revoked"}, one.session_id))
    return told


def _security(what: str, session_id: str = "", **data: Json) -> AuditNote:
    return AuditNote(AuditKind.SECURITY, {"what": what, **data}, session_id)


def _as_audited(data: Mapping[str, Json]) -> dict[str, Json]:
    return {_OF_LOG.get(name, name): value for name, value in data.items()}


def _said(answer: Answer) -> dict[str, Json]:
    return {
        "request": answer.request_id,
        "choice": None if answer.choice is None else str(answer.choice),
        "principal": answer.principal,
        "channel": answer.channel,
        "input_digest": answer.input_digest,
        "answered_us": answer.answered_us,
        "reason": answer.reason,
        "metadata": dict(answer.metadata),
        "provenance": answer.provenance.as_json(),
    }
