"""Responders: whoever may fill the session's one callback. They answer by a row and never speak to a worker.

Owns the two ways to get an answer out of a :data:`PermissionCallback`: in the owner's process (``DirectResponder``) and
from a client of the service (``RemoteResponder``). Both insert the same answer row, of which the first wins; what it is
worth is for the desk to say.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from shared.clock import Clock, SystemClock
from shared.errors import AlreadyDecidedError, InvalidJsonError, SoongError, UnavailableError
from shared.ids import new_id
from shared.jsontext import JsonObject, canonical, parse_strict
from shared.log import get_logger
from shared.permissions.request import Answer, Choice, PermissionCallback, PermissionDecision, PermissionRequest
from shared.permissions.store import ConsentStore
from shared.sessions.session import Responder
from shared.settings import Settings
from shared.store import Store
from shared.wire.ring import Ear, Ring, Switchboard

log = get_logger(__name__)

LOOK_EVERY_S = 1.0
MAX_REASON_CHARS = 2_000
MAX_METADATA_BYTES = 16 * 1024
GRANT_SETTLES_S = 5.0
"""How long questions that our grant answers are not shown, while the owner decides them one after another."""
OTHERS_SETTLE_S = 0.5
"""The same after somebody else's answer, which may have been a grant."""

Lane = tuple[str, str]


def lane_of(request: PermissionRequest) -> Lane:
    """Return what questions share that one session grant would answer; they are shown one at a time (PER-07)."""
    return (request.tool, request.scope) if request.offers_session else ("", request.id)


async def answer_by(
    callback: PermissionCallback, request: PermissionRequest, *, principal: str, channel: str, clock: Clock
) -> Answer:
    """Ask a callback; whatever it does but being cancelled from outside becomes an answer."""
    said = await _ask(callback, replace(request, proof=""))
    reason = _stored(said.reason)
    return Answer(
        request.id, said.choice, principal, channel, request.input_digest, clock.now_us(), reason, said.metadata
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a callback said; no choice means that it failed, and the reason says how."""

    choice: Choice | None
    reason: str
    metadata: JsonObject = field(default_factory=dict)


async def _ask(callback: PermissionCallback, request: PermissionRequest) -> _Said:
    try:
        decision: object = await callback(request)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _Said(None, "the callback was cancelled from within")
    except Exception as error:  # noqa: BLE001  # a stranger's function: whatever it raises is a failed answer
        log.warning("callback_failed", request=request.id, error=repr(error))
        return _Said(None, f"the callback raised {type(error).__name__}: {error}")
    if not isinstance(decision, PermissionDecision) or not isinstance(decision.choice, Choice):
        return _Said(None, f"the callback returned {decision!r:.200}, not a PermissionDecision")
    try:
        metadata = parse_strict(canonical(dict(decision.metadata)))
    except (InvalidJsonError, TypeError, ValueError, RecursionError) as error:
        return _Said(None, f"the callback's metadata is no JSON object: {error}")
    if not isinstance(metadata, dict) or len(canonical(metadata)) > MAX_METADATA_BYTES:
        return _Said(None, f"the callback's metadata has more than {MAX_METADATA_BYTES} bytes")
    return _Said(decision.choice, str(decision.reason), metadata)


async def insert_answer(store: ConsentStore, answer: Answer) -> str:
    """Insert an answer, however long the database is away; return "" or the state that came before it."""
    while True:
        try:
            await store.answer(answer)
        except AlreadyDecidedError as error:
            return error.state
        except UnavailableError as error:
            log.warning("answer_unwritten", request=answer.request_id, error=str(error))
            await asyncio.sleep(LOOK_EVERY_S)
            continue
        return ""


@dataclass(frozen=True, slots=True)
class DirectResponder:
    """A callback in the owner's own process. Attached as long as the desk holds it."""

    store: ConsentStore
    callback: PermissionCallback
    principal: str
    clock: Clock

    async def answer(self, request: PermissionRequest) -> None:
        """Ask the callback and insert its answer."""
        answer = await answer_by(self.callback, request, principal=self.principal, channel="callback", clock=self.clock)
        state = await insert_answer(self.store, answer)
        if state:
            log.info("answer_too_late", request=request.id, state=state)


@dataclass(slots=True)
class RemoteResponder:
    """A callback in a client of the service. ``run`` keeps it attached and asks it one question at a time.

    ``notify`` is told, in a sentence, when a question is answered elsewhere or goes away while it is shown.
    """

    store: Store
    ring: Ring
    switchboard: Switchboard
    session_id: str
    principal: str
    channel: str
    callback: PermissionCallback
    settings: Settings
    clock: Clock = field(default_factory=SystemClock)
    notify: Callable[[str], None] = lambda _sentence: None
    _responder_id: str = ""
    _shown: PermissionRequest | None = None
    _asking: asyncio.Task[None] | None = None
    _answered: set[str] = field(default_factory=set)
    _lanes: dict[str, Lane] = field(default_factory=dict)
    _held: dict[Lane, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Answer until cancelled. While the database is away it waits; questions stay where they are."""
        ear = await self.switchboard.session_ear(self.session_id)
        beating = asyncio.get_running_loop().create_task(self._beat())
        try:
            while True:
                await self._look()
                await self._wait(ear)
        finally:
            await _cancelled(beating, self._asking)
            await ear.close()
            with suppress(SoongError):
                await asyncio.shield(self.store.detach_responder(self._responder_id))

    async def _beat(self) -> None:
        is_attached = False
        while True:
            try:
                is_attached = is_attached and await self.store.beat_responder(self._responder_id)
                if not is_attached:
                    self._responder_id = new_id("resp")
                    responder = Responder(self._responder_id, self.session_id, self.principal, self.channel)
                    await self.store.attach_responder(responder)
                    is_attached = True
                    await self.ring.wake_owners([self.session_id])
            except UnavailableError as error:
                log.warning("responder_beat_unanswered", error=str(error))
            await asyncio.sleep(self.settings.responder_lease_s / 3)

    async def _wait(self, ear: Ear) -> None:
        """Wait for a hint, the end of the question that is shown, or the next look."""
        hearing = asyncio.get_running_loop().create_task(_hear(ear))
        try:
            await asyncio.wait(
                {hearing, *([self._asking] if self._asking else [])}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            await _cancelled(hearing)

    async def _look(self) -> None:
        try:
            pending = await self.store.pending(self.session_id)
        except UnavailableError as error:
            log.warning("pending_unanswered", error=str(error))
            return
        ids = {request.id for request in pending}
        self._hold_settled(pending)
        self._answered &= ids
        if self._asking is not None and self._asking.done():
            self._asking, self._shown = None, None
        if self._shown is not None and self._shown.id not in ids:
            await _cancelled(self._asking)
            self.notify(f"the question about {self._shown.tool} has been settled elsewhere")
            self._asking, self._shown = None, None
        if self._shown is None:
            self._show_next(pending)

    def _hold_settled(self, pending: Sequence[PermissionRequest]) -> None:
        """Hold back what is like a question that was settled elsewhere just now: perhaps by a grant for all of them."""
        now_s = asyncio.get_running_loop().time()
        lanes = {request.id: lane_of(request) for request in pending}
        for request_id in self._lanes.keys() - lanes.keys() - self._answered:
            self._held.setdefault(self._lanes[request_id], now_s + OTHERS_SETTLE_S)
        self._lanes = lanes
        self._held = {lane: until_s for lane, until_s in self._held.items() if until_s > now_s}

    def _show_next(self, pending: Sequence[PermissionRequest]) -> None:
        """Show the oldest question whose like is not waiting for the owner to act on an answer just given."""
        busy = self._held.keys() | {lane_of(request) for request in pending if request.id in self._answered}
        for request in pending:
            if request.id not in self._answered and lane_of(request) not in busy:
                self._shown = request
                self._asking = asyncio.get_running_loop().create_task(self._answer(request))
                return

    async def _answer(self, request: PermissionRequest) -> None:
        answer = await answer_by(
            self.callback, request, principal=self.principal, channel=self.channel, clock=self.clock
        )
        self._answered.add(request.id)
        state = await insert_answer(self.store, answer)
        if state:
            self.notify(f"the question about {request.tool} was already {state}; your answer was not needed")
        elif answer.choice is Choice.ALLOW_FOR_SESSION:
            self._held[lane_of(request)] = asyncio.get_running_loop().time() + GRANT_SETTLES_S
        await self.ring.wake_owners([self.session_id])


async def _hear(ear: Ear) -> None:
    await ear.wait(LOOK_EVERY_S)


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _stored(reason: str) -> str:
    clean = reason.encode("utf-8", "replace").decode("utf-8").replace("\0", "")
    return clean if len(clean) <= MAX_REASON_CHARS else f"{clean[:MAX_REASON_CHARS]}…"
