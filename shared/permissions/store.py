"""The port for consent: requests, answers, decisions. Consumption is part of ``RunStore.start_call``."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import Ownership, Responder, Session
from soong.shared.permissions.request import Answer, Decision, PermissionRequest, Question, RequestState
from soong.shared.permissions.signing import SigningKey


class OpenQuestions(Value):
    """The open questions of a session and its possible responders, at one moment.

    ``answers`` are by request; ``tokens`` by run: the secret that proves its requests, for owners only.
    ``has_orphans``: there are questions of ended runs, which are not among the ``pending``.
    """

    UNSHOWN = frozenset({"tokens"})

    session: Session
    pending: Sequence[PermissionRequest]
    answers: Mapping[str, Answer]
    responders: Sequence[Responder]
    tokens: Mapping[str, str]
    has_orphans: bool = False


class ClosedQuestion(Value):
    """How a request was closed: its decision, if it has one, and the key that the decision names, if that is known."""

    decision: Decision | None = None
    key: SigningKey | None = None


class DecisionReceipt(Value):
    """The state that a decision found: whether the run was parked (there is work to dispatch now), else its worker."""

    was_parked: bool
    worker_id: str


class ConsentStore(Protocol):
    """Questions, answers and decisions. A question of an ended run counts as withdrawn from that moment on, for every
    reader, answer and decision. Its row shows it only after the session's owner has called ``withdraw_orphans``.
    """

    async def raise_request(self, request: PermissionRequest, *, events: Sequence[NewEvent], now_us: int) -> str:
        """Insert a pending request under its run's fence, with its events; one open request a tool call.

        Return its id. Raised again for the same run and call (a resumed run), that of the open or decided one is
        returned, and none of ``events`` is written.
        Raises: LeaseLostError.
        """

    async def request(self, request_id: str) -> tuple[PermissionRequest, RequestState]:
        """Return the request with identity read from the run's row, not from what was sent. Raises: NotFoundError."""

    async def pending(self, session_id: str, *, limit: int = 10_000) -> Sequence[PermissionRequest]:
        """Return the session's undecided requests, oldest first, identity from rows."""

    async def open_questions(self, session_id: str, *, limit: int) -> OpenQuestions | None:
        """Return all that the session's owner looks at, its oldest ``limit`` requests; None when nothing is pending.
        Raises: NotFoundError.
        """

    async def settled(self, request_id: str) -> ClosedQuestion | None:
        """Return how a request was closed, None while it is pending; whether a signature holds is for the reader.
        Raises: NotFoundError, no such request; ForgedError, the row is not a request, or its decision is not a
        decision.
        """

    async def still_pending(self, request_ids: Sequence[str]) -> frozenset[str]:
        """Return which of these requests are pending, of runs that have not ended, in one read."""

    async def drop_excess(self, ownership: Ownership, run_id: str, kept: Sequence[str], *, now_us: int) -> int:
        """Withdraw all pending requests of a run of the session but ``kept``, in one transaction; return how many. One
        security event in the run's log and one audit entry tell of all of them.
        Raises: NotOwnerError.
        """

    async def questions(
        self, *, session_id: str = "", include_closed: bool = False, beyond: str = "", limit: int = 1000
    ) -> Sequence[Question]:
        """Return the questions of one session, or of all, oldest first, identity from rows.

        The oldest ``limit`` of the pending ones; with the closed ones the newest ``limit`` of all. ``beyond`` is the id
        of the last one seen, and the result continues from there: with later ones, with the closed ones with earlier
        ones.
        """

    async def answer(self, answer: Answer) -> None:
        """Insert the first answer of a pending request.

        The very same one again is not a second answer, whatever has become of the request.

        One that comes late or second is a security event, in the audit log and in the log of an active run.
        Raises: AlreadyDecidedError, an answer exists (state "answered"), or it is decided, withdrawn or expired;
        NotFoundError, no such request.
        """

    async def answer_of(self, request_id: str) -> Answer | None: ...

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
        """Write the decision, close the request as ``state``, and append events to the run's log, in one transaction. A
        parked run continues with it: its step is ready again, to be claimed before what has not begun.
        Raises: NotOwnerError; AlreadyDecidedError, the request is not pending; or, with ``if_unanswered``, it has an
        answer; ConflictError, the key that it is signed with has ended.
        """

    async def decision_of(self, request_id: str) -> Decision | None:
        """Return the decision of a request as stored; whether its signature holds is for the reader.
        Raises: ForgedError when the row is not a decision.
        """

    async def withdraw(self, run_id: str, tool_call_id: str, fence: int, *, reason: str, now_us: int) -> None:
        """Close the pending request of a call whose asker has ended, with permission_withdrawn; or do nothing.
        Raises: LeaseLostError.
        """

    async def withdraw_cut_off(self, run_id: str, fence: int, *, reason: str, now_us: int) -> Sequence[str]:
        """Close the pending requests that calls of a former life of the run raised while they ran; return their ids.
        Nobody waits for them: such a call is made again, and asks again, or is over. Raises: LeaseLostError.
        """

    async def expire_decision(self, run_id: str, tool_call_id: str, fence: int, *, now_us: int) -> bool:
        """Close the decided request of a call whose decision has expired unused, with permission_expired. The call may
        then ask again. False, and nothing is changed, when the decision has been used.
        Raises: LeaseLostError.
        """

    async def withdraw_orphans(self, session_id: str, *, now_us: int) -> Sequence[str]:
        """Close pending requests whose run has ended, with permission_withdrawn in its log; return their ids. A run
        that lost its lease and waits to be resumed keeps its question.
        """
