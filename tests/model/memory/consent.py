"""Requests, answers, decisions, public keys and their ends in memory."""

from collections.abc import Sequence

from msgspec.structs import replace

from soong.shared.core.errors import ANSWERED, AlreadyDecidedError, ConflictError, NotFoundError, NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import Ownership
from soong.shared.permissions.access.token import ApiToken
from soong.shared.permissions.audit_log import (
    of_answer,
    of_decision,
    of_dropped_questions,
    of_key_published,
    of_key_retired,
    of_late_answer,
    of_sign_in,
    of_stale_owner,
    of_token_made,
    of_token_revoked,
    of_withdrawn,
)
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Question, RequestState
from soong.shared.permissions.signing import ExpiredDecision, SigningKey, check_proof
from soong.shared.permissions.store import ClosedQuestion, DecisionReceipt, OpenQuestions
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import ASK_MARK
from tests.model.memory.ending import unpark, withdraw
from tests.model.memory.rows import Part, Rows, add_notes, add_reports, held_run, note_run, transaction, write_events


class MemoryKeys(Part):
    """The part of the store that keeps public keys."""

    @transaction
    def publish_key(
        self, key_id: str, public_key: bytes, *, now_us: int, principal: str = "", reason: str = ""
    ) -> None:
        if key_id not in self.rows.keys:
            self.rows.keys[key_id] = SigningKey(key_id, public_key, now_us)
            add_notes(self.rows, [of_key_published(key_id, public_key, principal, reason)], now_us)
        elif self.rows.keys[key_id].public_key != public_key:
            raise ConflictError(f"another key has the id {key_id}; a new key takes a new id")

    @transaction
    def publish_first_key(self, key_id: str, public_key: bytes, *, now_us: int) -> bool:
        if self.rows.keys:
            return False
        self.rows.keys[key_id] = SigningKey(key_id, public_key, now_us)
        add_notes(self.rows, [of_key_published(key_id, public_key, "", "the first key")], now_us)
        return True

    @transaction
    def signing_key(self, key_id: str) -> SigningKey | None:
        return self.rows.keys.get(key_id)

    @transaction
    def signing_keys(self) -> Sequence[SigningKey]:
        return sorted(self.rows.keys.values(), key=lambda key: (key.created_us, key.id))

    @transaction
    def retire_key(
        self, key_id: str, *, is_revoked: bool, at_us: int, principal: str, reason: str, now_us: int
    ) -> Sequence[ExpiredDecision]:
        key = self.rows.keys.get(key_id)
        if key is None:
            raise NotFoundError("key", key_id)
        if (key.revoked_us if is_revoked else key.retired_us) is not None:
            return []
        self.rows.keys[key_id] = replace(key, revoked_us=at_us) if is_revoked else replace(key, retired_us=at_us)
        expired = [self._expire(request_id, now_us) for request_id in self._unused(key_id)] if is_revoked else []
        add_notes(self.rows, of_key_retired(key_id, is_revoked, at_us, principal, reason, expired), now_us)
        return expired

    def _unused(self, key_id: str) -> list[str]:
        return [
            request_id
            for request_id, decision in sorted(self.rows.decisions.items())
            if decision.key_id == key_id
            and decision.id not in self.rows.consumed
            and self.rows.request_states[request_id] is RequestState.DECIDED
        ]

    def _expire(self, request_id: str, now_us: int) -> ExpiredDecision:
        self.rows.request_states[request_id] = RequestState.EXPIRED
        identity, decision = self.rows.requests[request_id].identity, self.rows.decisions[request_id]
        told = {"request_id": request_id, "decision_id": decision.id, "reason": "its key was revoked"}
        note_run(self.rows, identity.run_id, EventType.PERMISSION_EXPIRED, now_us, **told)
        return ExpiredDecision(identity.session_id, identity.run_id, request_id)


def check_signs(rows: Rows, key_id: str, decided_us: int) -> None:
    """Refuse a decision by a key that has ended. Raises: ConflictError."""
    key = rows.keys.get(key_id)
    if key is None:
        return
    if key.revoked_us is not None or (key.retired_us is not None and key.retired_us < decided_us):
        raise ConflictError(f"the key {key_id} has been retired and signs nothing any more; run `soong keys rotate`")


class MemoryAccess(Part):
    """The access part of the store."""

    @transaction
    def add_token(self, token: ApiToken) -> None:
        if self.rows.tokens.setdefault(token.id, token) is not token:
            raise ConflictError(f"there is a token {token.id} already")
        add_notes(self.rows, [of_token_made(token)], token.created_us)

    @transaction
    def token(self, token_id: str) -> ApiToken | None:
        return self.rows.tokens.get(token_id)

    @transaction
    def tokens(self) -> Sequence[ApiToken]:
        return list(self.rows.tokens.values())

    @transaction
    def sign_in(self, token_id: str, *, code_digest: str, digest: str, now_us: int) -> ApiToken | None:
        token = self.rows.tokens.get(token_id)
        if token is None or token.digest != code_digest or token.revoked_us is not None:
            return None
        if token.sign_in_by_us is None or token.sign_in_by_us <= now_us:
            return None
        self.rows.tokens[token_id] = replace(token, digest=digest, sign_in_by_us=None)
        add_notes(self.rows, [of_sign_in(token)], now_us)
        return self.rows.tokens[token_id]

    @transaction
    def revoke_token(self, token_id: str, *, now_us: int) -> bool:
        token = self.rows.tokens.get(token_id)
        if token is None:
            raise NotFoundError("token", token_id)
        if token.revoked_us is not None:
            return False
        self.rows.tokens[token_id] = replace(token, revoked_us=now_us)
        add_notes(self.rows, [of_token_revoked(token)], now_us)
        return True


_STANDING = (RequestState.PENDING, RequestState.DECIDED)


class MemoryConsent(Part):
    """The consent part of the store."""

    @transaction
    def raise_request(self, request: PermissionRequest, *, events: Sequence[NewEvent], now_us: int) -> str:
        run = held_run(self.rows, request.identity.run_id, request.fence)
        for standing in self.rows.requests.values():
            same = standing.identity.run_id == run.id and standing.tool_call_id == request.tool_call_id
            if same and self.rows.request_states[standing.id] in _STANDING:
                return standing.id
        # Lineage is the row's, whatever the raiser said of itself.
        known = replace(request, identity=run.identity)
        self.rows.requests[request.id] = known
        self.rows.request_states[request.id] = RequestState.PENDING
        write_events(self.rows, run.id, events, now_us)
        return request.id

    @transaction
    def request(self, request_id: str) -> tuple[PermissionRequest, RequestState]:
        return self._request(request_id), self._state(request_id)

    @transaction
    def pending(self, session_id: str, *, limit: int = 10_000) -> Sequence[PermissionRequest]:
        return [one for one in self._pending(session_id)[:limit] if self._state(one.id) is RequestState.PENDING]

    @transaction
    def open_questions(self, session_id: str, *, limit: int) -> OpenQuestions | None:
        asked = self._pending(session_id)[:limit]
        if not asked:
            return None
        pending = [one for one in asked if self._state(one.id) is RequestState.PENDING]
        answers = {one.id: self.rows.answers[one.id] for one in pending if one.id in self.rows.answers}
        there = [one for one in self.rows.responders.values() if one.session_id == session_id]
        tokens = {one.identity.run_id: self.rows.run(one.identity.run_id).token for one in pending}
        session, has_orphans = self.rows.session(session_id), len(pending) < len(asked)
        return OpenQuestions(session, pending, answers, there, tokens, has_orphans)

    @transaction
    def settled(self, request_id: str) -> ClosedQuestion | None:
        self._request(request_id)
        if self._state(request_id) is RequestState.PENDING:
            return None
        decision = self.rows.decisions.get(request_id)
        return ClosedQuestion(decision, None if decision is None else self.rows.keys.get(decision.key_id))

    @transaction
    def still_pending(self, request_ids: Sequence[str]) -> frozenset[str]:
        known = [one for one in request_ids if one in self.rows.requests]
        return frozenset(one for one in known if self._state(one) is RequestState.PENDING)

    @transaction
    def drop_excess(self, ownership: Ownership, run_id: str, kept: Sequence[str], *, now_us: int) -> int:
        self.rows.owned(ownership)
        pending = [one.id for one in self._pending(ownership.session_id) if one.identity.run_id == run_id]
        closed = [request_id for request_id in pending if request_id not in kept]
        self.rows.request_states.update(dict.fromkeys(closed, RequestState.WITHDRAWN))
        if closed:
            note = of_dropped_questions(ownership.session_id, run_id, len(closed))
            add_notes(self.rows, [note], now_us)
            note_run(self.rows, run_id, EventType.SECURITY, now_us, **note.data)
        return len(closed)

    @transaction
    def questions(
        self, *, session_id: str = "", include_closed: bool = False, beyond: str = "", limit: int = 1000
    ) -> Sequence[Question]:
        rows = self.rows
        keys = list(rows.requests)
        if beyond:
            place = keys.index(beyond) if beyond in rows.requests else None
            keys = [] if place is None else keys[:place] if include_closed else keys[place + 1 :]
        found = [
            Question(
                rows.requests[key],
                self._state(key),
                rows.answers.get(key),
                rows.decisions.get(key),
                check_proof(rows.run(rows.requests[key].identity.run_id).token, rows.requests[key]),
            )
            for key in keys
            if session_id in ("", rows.requests[key].identity.session_id)
            and (include_closed or self._state(key) is RequestState.PENDING)
        ]
        return found[-limit:] if include_closed else found[:limit]

    async def answer(self, answer: Answer) -> None:
        answer = replace(answer, reason=Redactor().text(answer.reason))
        try:
            await self._answer(answer)
        except AlreadyDecidedError as error:
            await self._note_late(answer, error.state)
            raise

    @transaction
    def _answer(self, answer: Answer) -> None:
        standing = self.rows.answers.get(answer.request_id)
        if standing == answer:
            return
        request = self._check_pending(answer.request_id)
        if standing is not None:
            raise AlreadyDecidedError(answer.request_id, ANSWERED)
        self.rows.answers[answer.request_id] = answer
        note = of_answer(answer, request.identity.session_id, request.identity.run_id)
        add_notes(self.rows, [note], answer.answered_us)

    @transaction
    def _note_late(self, answer: Answer, state: str) -> None:
        run = self.rows.run(self._request(answer.request_id).identity.run_id)
        note = of_late_answer(answer, run.identity.session_id, run.id, state)
        add_notes(self.rows, [note], answer.answered_us)
        if not run.status.is_terminal:
            note_run(self.rows, run.id, EventType.SECURITY, answer.answered_us, **note.data)

    @transaction
    def answer_of(self, request_id: str) -> Answer | None:
        return self.rows.answers.get(request_id)

    async def decide(
        self,
        ownership: Ownership,
        decision: Decision,
        *,
        state: RequestState,
        events: Sequence[NewEvent],
        now_us: int,
        if_unanswered: bool = False,
    ) -> DecisionReceipt:
        try:
            return await self._decide(ownership, decision, state, events, now_us, if_unanswered)
        except NotOwnerError:
            await self._note_stale(ownership, decision, now_us)
            raise

    @transaction
    def _note_stale(self, ownership: Ownership, decision: Decision, now_us: int) -> None:
        add_notes(self.rows, [of_stale_owner(decision, ownership.owner_id, ownership.epoch)], now_us)

    @transaction
    def _decide(
        self,
        ownership: Ownership,
        decision: Decision,
        state: RequestState,
        events: Sequence[NewEvent],
        now_us: int,
        if_unanswered: bool,  # as the port's, in order
    ) -> DecisionReceipt:
        self.rows.owned(ownership)
        request = self._check_pending(decision.request_id)
        if request.identity.session_id != ownership.session_id:
            raise NotFoundError("permission request", request.id)
        if if_unanswered and request.id in self.rows.answers:
            raise AlreadyDecidedError(request.id, ANSWERED)
        check_signs(self.rows, decision.key_id, decision.decided_us)
        self.rows.decisions[request.id] = decision
        self.rows.request_states[request.id] = state
        add_notes(self.rows, of_decision(decision, events), now_us)
        write_events(self.rows, request.identity.run_id, events, now_us)
        was_parked = unpark(self.rows, request, now_us)
        return DecisionReceipt(was_parked, self.rows.run(request.identity.run_id).worker_id)

    @transaction
    def decision_of(self, request_id: str) -> Decision | None:
        return self.rows.decisions.get(request_id)

    @transaction
    def withdraw(self, run_id: str, tool_call_id: str, fence: int, *, reason: str, now_us: int) -> None:
        run = held_run(self.rows, run_id, fence)
        for request in self._pending(run.identity.session_id):
            if request.identity.run_id == run_id and request.tool_call_id == tool_call_id:
                data = {"request_id": request.id, "tool_call_id": tool_call_id, "reason": reason}
                add_reports(self.rows, run_id, [NewEvent(EventType.PERMISSION_WITHDRAWN, data, now_us)])
                withdraw(self.rows, request, reason, now_us)

    @transaction
    def withdraw_cut_off(self, run_id: str, fence: int, *, reason: str, now_us: int) -> Sequence[str]:
        run = held_run(self.rows, run_id, fence)
        pending = self._pending(run.identity.session_id)
        found = [one for one in pending if one.identity.run_id == run_id and ASK_MARK in one.tool_call_id]
        for request in found:
            data = {"request_id": request.id, "tool_call_id": request.tool_call_id, "reason": reason}
            add_reports(self.rows, run_id, [NewEvent(EventType.PERMISSION_WITHDRAWN, data, now_us)])
            withdraw(self.rows, request, reason, now_us)
        return [request.id for request in found]

    @transaction
    def expire_decision(self, run_id: str, tool_call_id: str, fence: int, *, now_us: int) -> bool:
        held_run(self.rows, run_id, fence)
        for request in self.rows.requests.values():
            is_of_call = (request.identity.run_id, request.tool_call_id) == (run_id, tool_call_id)
            if is_of_call and self.rows.request_states[request.id] is RequestState.DECIDED:
                if self.rows.decisions[request.id].id in self.rows.consumed:
                    return False
                self.rows.request_states[request.id] = RequestState.EXPIRED
                data = {"request_id": request.id, "tool_call_id": tool_call_id}
                note_run(self.rows, run_id, EventType.PERMISSION_EXPIRED, now_us, **data)
                return True
        return False

    @transaction
    def withdraw_orphans(self, session_id: str, *, now_us: int) -> Sequence[str]:
        pending = self._pending(session_id)
        orphans = [request for request in pending if self._state(request.id) is RequestState.WITHDRAWN]
        for request in orphans:
            asker, why = request.identity, "its run has ended"
            note = of_withdrawn(session_id, asker.run_id, request.id, request.tool_call_id, why)
            add_notes(self.rows, [note], now_us)
            withdraw(self.rows, request, "its run has ended", now_us)
        return [request.id for request in orphans]

    def _request(self, request_id: str) -> PermissionRequest:
        try:
            return self.rows.requests[request_id]
        except KeyError:
            raise NotFoundError("permission request", request_id) from None

    def _pending(self, session_id: str) -> list[PermissionRequest]:
        return [
            request
            for request in self.rows.requests.values()
            if request.identity.session_id == session_id
            and self.rows.request_states[request.id] is RequestState.PENDING
        ]

    def _state(self, request_id: str) -> RequestState:
        """Return how a question stands: what an ended run asked is withdrawn, though its row may not say so yet."""
        state = self.rows.request_states[request_id]
        has_ended = self.rows.run(self.rows.requests[request_id].identity.run_id).status.is_terminal
        return RequestState.WITHDRAWN if state is RequestState.PENDING and has_ended else state

    def _check_pending(self, request_id: str) -> PermissionRequest:
        request, state = self._request(request_id), self._state(request_id)
        if state is not RequestState.PENDING:
            raise AlreadyDecidedError(request_id, state)
        return request
