"""Streams of events: a run's log, replayed and then live, and the state of a session, whenever it changes.

Rows alone define what happened and in which order; a notification only triggers a read. Events are found by their
number, so a log has neither gap nor doubles between replay and live, also while notifications are lost (EVT-02). The
numbers are the ids of server-sent events: a reader that comes back names its last one (``Last-Event-ID``). Pieces of
answers come between the events of the log, and some may be missing. Every stream sends a comment now and then, and
ends when its caller's token does, or when the server stops.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from soong.orchestrator.client.responder import cancelled
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import Service, ServiceParts
from soong.orchestrator.operations.documents import END, KEEP_ALIVE, RETRY, frame
from soong.orchestrator.operations.feeds import Listener
from soong.orchestrator.schemas.run import LineSchema
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.log import get_logger
from soong.shared.core.log_lines import LogLine
from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.wire.notifier import AnswerDelta, delta_of

log = get_logger(__name__)
PAGE: Final = 100
"""Events that each reader holds while it does not read on: an API has hundreds of readers, an event has kilobytes."""
WAITING: Final = 100
"""Events and pieces that wait for a slow reader; events then wait for their turn, and pieces are left out."""
_Queue: TypeAlias = "asyncio.Queue[Event | AnswerDelta | None]"


Entry = TypeVar("Entry")


async def follow_log(service: ServiceParts, run_id: str, *, from_seq: int = 1) -> AsyncGenerator[Event]:
    """Yield the log from that number on until the run has ended; a database that is away is waited for.

    Raises: NotFoundError when the run does not exist.
    """
    runs = service.store.runs

    async def state() -> tuple[int, bool]:
        run = await runs.run(run_id)
        return run.last_seq, run.status.is_terminal

    def read(seen: int) -> Awaitable[Sequence[Event]]:
        return runs.events(run_id, after_seq=seen, limit=PAGE)

    async for event in _follow(service, ("run", run_id), state, read, lambda event: event.seq, from_seq - 1):
        yield event


async def follow_lines(service: ServiceParts, run_id: str, *, after: int = 0) -> AsyncGenerator[LogLine]:
    """Yield the lines of a run after one, as :func:`follow_log` yields its events."""
    runs = service.store.runs

    async def state() -> tuple[int, bool]:
        is_over = (await runs.run(run_id)).status.is_terminal
        return (await runs.last_line(run_id))[0], is_over

    def read(seen: int) -> Awaitable[Sequence[LogLine]]:
        return runs.lines(run_id, after=seen, limit=PAGE)

    async for line in _follow(service, ("lines", run_id), state, read, lambda line: line.number, after):
        yield line


async def _follow(
    service: ServiceParts,
    key: tuple[str, str],
    state: Callable[[], Awaitable[tuple[int, bool]]],
    read: Callable[[int], Awaitable[Sequence[Entry]]],
    number: Callable[[Entry], int],
    seen: int,
) -> AsyncGenerator[Entry]:
    """Yield numbered entries of a run; ``state`` is the number of the last one and whether the run has ended."""
    last, has_ended = 0, False
    listen = partial(service.subscriptions.run, key[1])
    with service.feeds.follow(key, state, listen, is_quick=True) as following:
        while not (has_ended and seen >= last):
            try:
                if seen >= last:
                    last, has_ended = await following.next()
                    continue
                page = await following.feed.once(seen, partial(read, seen))
            except UnavailableError:
                await asyncio.sleep(timing.POLL_ROWS_S)
                continue
            for entry in page:
                yield entry
            seen = number(page[-1]) if page else last


async def follow_live(service: ServiceParts, run_id: str, *, from_seq: int = 1) -> AsyncGenerator[Event | AnswerDelta]:
    """Yield the log, and pieces of answers as they come. Raises: NotFoundError when the run does not exist."""
    queue: _Queue = asyncio.Queue(WAITING)
    reading = asyncio.create_task(_read(follow_log(service, run_id, from_seq=from_seq), queue))
    hearing = asyncio.create_task(_pass_on(service.subscriptions.answer(run_id), queue))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await reading  # raises what ended it
    finally:
        for task in (reading, hearing):
            task.cancel()
        await asyncio.gather(reading, hearing, return_exceptions=True)


async def _read(log: AsyncGenerator[Event], queue: _Queue) -> None:
    try:
        async for event in log:
            await queue.put(event)
    finally:
        await log.aclose()
        if asyncio.current_task().cancelling() == 0:  # type: ignore[union-attr]  # it runs in a task
            await queue.put(None)


async def _pass_on(listener: Listener, queue: _Queue) -> None:
    async for delta in answer_pieces(listener):
        with suppress(asyncio.QueueFull):
            queue.put_nowait(delta)


async def pass_on_answers(listener: Listener, run_id: str, take: Callable[[AnswerDelta], object]) -> None:
    """Pass on the pieces of a run's answers until cancelled, or until ``take`` raises, which is logged."""
    async with aclosing(answer_pieces(listener)) as pieces:
        async for delta in pieces:
            try:
                take(delta)
            except Exception as error:  # noqa: BLE001  # a caller's own code, on which the run does not depend
                log.warning("answers_not_taken", run=run_id, error=f"{type(error).__name__}: {error}")
                return


async def answer_pieces(listener: Listener) -> AsyncGenerator[AnswerDelta]:
    """Yield the pieces of a run's answers as they come, until cancelled."""
    try:
        while True:
            for payload in await listener.wait(timing.MINUTE_S):
                if (delta := delta_of(payload)) is not None:
                    yield delta
    finally:
        await listener.close()


TASKS_TOLD: Final = 100
PIECE: Final = 64 * 1024
"""Bytes handed to a connection at once: it copies what it cannot send yet, for each reader of a frame of megabytes."""


async def run_frames(service: ServiceParts, run_id: str, from_seq: int) -> AsyncGenerator[bytes]:
    """Yield a log as frames, and its end; pieces of answers have no id, as nobody can ask for them again."""
    async with aclosing(follow_live(service, run_id, from_seq=from_seq)) as events:
        async for event in events:
            if isinstance(event, AnswerDelta):
                yield frame(event.as_json(), event="delta")
            else:
                yield frame(event.envelope(), id=str(event.seq))
    yield END


async def line_frames(service: ServiceParts, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Yield the lines of a run as frames, and its end."""
    async with aclosing(follow_lines(service, run_id, after=after)) as lines:
        async for line in lines:
            yield frame(LineSchema.of(line).model_dump(mode="json"), event="line", id=str(line.number))
    yield END


async def session_frames(service: ServiceParts, session_id: str) -> AsyncGenerator[bytes]:
    """Yield the state of a session, at once and after every change, until it is closed and nothing of it runs."""
    with service.feeds.follow(
        ("session", session_id),
        lambda: _standing(service, session_id),
        lambda: service.subscriptions.session(session_id),
    ) as following:
        while True:
            state = await following.next()
            yield frame(state, event="session")
            if state["is_over"]:
                yield END
                return


async def _standing(service: ServiceParts, session_id: str) -> dict[str, Json]:
    store = service.store
    session = await store.sessions.session(session_id)
    tasks = await store.tasks.list_tasks(session_id=session_id, limit=TASKS_TOLD)
    told: list[Json] = [
        {
            "id": task.id,
            "title": task.title,
            "status": str(task.status),
            "steps": {str(status): n for status, n in (await store.tasks.counts(task.id)).items() if n},
        }
        for task in tasks
    ]
    waiting = await store.consent.questions(session_id=session_id)
    ends = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}
    return {
        "session": session_id,
        "is_closed": session.is_closed,
        "is_over": session.is_closed and all(task.status in ends for task in tasks),
        "tasks": told,
        "approvals": [question.request.id for question in waiting if question.answer is None],
    }


class EventStream(StreamingResponse):
    """A stream of events. It holds one of its caller's places from before its first byte until its end.

    Frames have comments between them. The stream ends when the caller may not continue or the server stops. The next
    frame is awaited in its own task, so that whatever cancels the sending leaves it complete.
    """

    def __init__(self, frames: AsyncGenerator[bytes], service: Service, caller: Caller) -> None:
        self._frames, self._service, self._caller = frames, service, caller
        self._coming: asyncio.Task[bytes | None] | None = None
        self._stopping: asyncio.Task[Any] | None = None
        super().__init__(
            self._sent(), headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream; charset=utf-8"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end. Raises: ProblemError (too_busy), before anything was sent."""
        with self._service.held_open(self._caller):
            try:
                await super().__call__(scope, receive, send)
            finally:
                await cancelled(self._coming, self._stopping)
                await self._frames.aclose()

    async def _sent(self) -> AsyncIterator[bytes]:
        loop, every_s = asyncio.get_running_loop(), self._service.limits.keep_alive_s
        self._stopping = loop.create_task(self._service.stopping.wait())
        checked_s = loop.time()
        yield RETRY
        while True:
            self._coming = self._coming or loop.create_task(anext(self._frames, None))
            either = {self._coming, self._stopping}
            await asyncio.wait(either, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.done():
                return
            if loop.time() - checked_s >= every_s:
                checked_s = loop.time()
                if not await self._service.authenticator.still(self._caller):
                    return
            if not self._coming.done():
                yield KEEP_ALIVE
                continue
            text, self._coming = self._coming.result(), None
            if text is None:
                return
            for at in range(0, len(text), PIECE):
                yield text[at : at + PIECE]
