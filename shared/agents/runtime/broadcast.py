"""A run's answers, shown to its watchers while they arrive.

At most twenty pieces a second, without secrets, over the notifier alone: nothing is stored, and nothing waits for it.
While nobody listens a run sends an empty piece a second, to learn whether somebody does.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)

from soong.shared.agents.ports import AnswerView
from soong.shared.agents.turn import FINAL_TOOL
from soong.shared.core import timing
from soong.shared.engine.wire.notifier import MAX_CALLS, MAX_NAME_CHARS, AnswerDelta, Notifier
from soong.shared.sandbox.redact import LiveText, Redactor
from soong.shared.tools.limits import storable
from soong.shared.tools.naming import unmangle

MAX_SHOWN_CHARS: Final = 100_000
"""The rest of a longer answer is shown when it is complete, from its node."""


@dataclass(slots=True)
class AnswerBroadcast(AnswerView):
    """The view of one run. :meth:`close` ends it."""

    notifier: Notifier
    redactor: Redactor
    run_id: str
    every_s: float = timing.SHOW_PIECES_S
    unheard_every_s: float = timing.POLL_ROWS_S
    _turn: int = 0
    _text: LiveText | None = None
    _calls: list[str] = field(default_factory=list)
    _chars: int = 0
    _is_complete: bool = False
    _is_due: bool = False
    _told: tuple[int, str] = (0, "")
    """The turn that listeners know, and what they have of its text."""
    _listeners: int = 0
    _sent_s: float = float("-inf")
    _full_s: float = float("-inf")
    _sending: asyncio.Task[None] | None = None

    def begin(self, turn: int) -> None:
        self._turn = turn
        self._forget()

    def take(self, event: ModelResponseStreamEvent) -> None:
        match event:
            case (
                PartStartEvent(part=TextPart(content=piece)) | PartDeltaEvent(delta=TextPartDelta(content_delta=piece))
            ):
                if not piece or self._chars > MAX_SHOWN_CHARS:
                    return
                self._chars += len(piece)
                self._text = self._text or LiveText(self.redactor)
                self._text.feed(piece)
            case PartStartEvent(part=ToolCallPart(tool_name=name)) if name != FINAL_TOOL:
                if len(self._calls) >= MAX_CALLS:
                    return
                self._calls.append(self.redactor.text(unmangle(name))[:MAX_NAME_CHARS])
            case _:
                return
        self._show()

    async def discard(self) -> None:
        self._forget()
        if self._told != (self._turn, ""):
            self._show()

    def complete(self) -> None:
        self._is_complete = True
        if self._listeners:
            self._show()

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _forget(self) -> None:
        self._text, self._calls, self._chars, self._is_complete = None, [], 0, False

    def _show(self) -> None:
        self._is_due = True
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_due:
            every_s = self.every_s if self._listeners else self.unheard_every_s
            await asyncio.sleep(max(0.0, self._sent_s + every_s - loop.time()))
            self._is_due, self._sent_s = False, loop.time()
            if not self._listeners:
                self._told = (0, "")
                self._listeners = await self._publish(AnswerDelta(self._turn, 0, ""))
            if self._listeners:
                self._listeners = await self._publish(self._next())

    def _next(self) -> AnswerDelta:
        shown = "" if self._text is None else storable(self._text.shown(is_complete=self._is_complete))
        turn, before = self._told
        now_s = asyncio.get_running_loop().time()
        is_full = turn != self._turn or (now_s - self._full_s >= timing.SIGN_OF_LIFE_S and len(shown) <= 20_000)
        at = 0 if is_full else _shared_chars(before, shown)
        self._full_s = now_s if at == 0 else self._full_s
        self._told = (self._turn, shown)
        return AnswerDelta(self._turn, at, shown[at:], tuple(self._calls), self._is_complete)

    async def _publish(self, delta: AnswerDelta) -> int:
        return await self.notifier.publish_answer(self.run_id, delta.payload())


def _shared_chars(before: str, after: str) -> int:
    if after.startswith(before):
        return len(before)
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))
