"""``soong approvals watch``: a terminal that answers for sessions started elsewhere; or, as JSON lines, one that looks.

Leaving answers nothing: questions stay open for the next responder.
"""

import asyncio
from dataclasses import dataclass, field

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.approvals.remote_responder import refusal_reason
from soong.orchestrator.cli.console import emit, say, visible, why_nobody_is_asked
from soong.orchestrator.cli.ids import deployment, opened_store
from soong.orchestrator.cli.watch import Interrupts
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import Session
from soong.shared.permissions.request import PermissionRequest
from soong.shared.storage.store import Store


async def watch_questions(settings: Settings, session_id: str, *, is_json: bool) -> int:
    """Watch until Ctrl-C, or until standard input ends; return the exit code.

    Raises:
        UsageError: there is no terminal to answer at, or no such session, or it is not this principal's to answer.
    """
    interrupts = Interrupts()
    interrupts.listen()
    watching = asyncio.create_task(_stream(settings, session_id) if is_json else _answer(settings, session_id))
    interrupted = asyncio.create_task(interrupts.wait(1))
    await asyncio.wait({watching, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    for task in (watching, interrupted):
        task.cancel()
    results = await asyncio.gather(watching, interrupted, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
    return 0


async def _answer(settings: Settings, session_id: str) -> None:
    if nobody := why_nobody_is_asked():
        raise UsageError(f"{nobody}; use --json to look, `soong approvals allow ID` to answer")
    known = await _living(settings)
    from soong.orchestrator.cli.prompt import TerminalPrompt, full_input_reader, terminal_console
    from soong.orchestrator.client.bootstrap import open_client

    async with await open_client(known) as client:
        session = await _session(client.store, session_id, known.principal)
        console = terminal_console()
        prompt = TerminalPrompt(
            console, lambda _held: None, whole=full_input_reader(client.store.runs), clock=client.clock
        )
        for_whom = f"session {session.id}" if session else f"every session of {known.principal!r}"
        say(f"questions of {for_whom} are shown here; Ctrl-C leaves and answers nothing")
        await client.attach(
            session,
            prompt,
            channel="cli",
            notify=lambda sentence: say(f"  {visible(sentence)}"),
            on_waiting=prompt.take_waiting,
        )


async def _living(settings: Settings) -> Settings:
    """Return settings that name the Redis of a living service, once there is one."""
    known = await deployment(settings)
    if not known.redis_url:
        say("no service is running; waiting for one …")
    while not known.redis_url:
        await asyncio.sleep(timing.POLL_ROWS_S)
        known = await deployment(settings)
    return known


async def _session(store: Store, session_id: str, principal: str) -> Session | None:
    """Return the session to answer for; None means all. Raises: NotFoundError, UsageError."""
    if not session_id:
        return None
    session = await store.sessions.session(session_id)
    refusal = refusal_reason(session, principal)
    if refusal:
        raise UsageError(f"session {session_id!r} cannot be answered for: {refusal}")
    return session


async def _stream(settings: Settings, session_id: str) -> None:
    async with opened_store(settings) as store:
        if session_id:
            await store.sessions.session(session_id)
        stream = Stream(store, session_id)
        while True:
            await stream.poll()
            await asyncio.sleep(timing.POLL_ROWS_S)


@dataclass(slots=True)
class Stream:
    """Prints each question once when it comes and once when it is closed, as JSON lines."""

    store: Store
    session_id: str
    _open: dict[str, PermissionRequest] = field(default_factory=dict)

    async def poll(self) -> None:
        """Print what has changed since the last look; a database that is away is waited for."""
        try:
            questions = {one.request.id: one for one in await self.store.consent.questions(session_id=self.session_id)}
            closed = [await question_of(self.store.consent, key) for key in self._open.keys() - questions.keys()]
        except UnavailableError:
            return
        for question in sorted(closed, key=lambda one: one.request.created_us):
            del self._open[question.request.id]
            emit({"event": "closed", **ApprovalSchema.of_question(question).model_dump()}, is_line=True, is_ascii=True)
        for key, question in questions.items():
            if key not in self._open:
                self._open[key] = question.request
                emit(
                    {"event": "asked", **ApprovalSchema.of_question(question).model_dump()}, is_line=True, is_ascii=True
                )
