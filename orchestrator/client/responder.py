"""Asks questions one at a time: a person at a terminal, or a program's callback (PER-07, PER-13)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from soong.shared.core import timing

if TYPE_CHECKING:
    from soong.shared.permissions.request import Choice

Q = TypeVar("Q")


@dataclass
class QuestionResponder(ABC, Generic[Q]):
    """Has the oldest question asked that may be. Leaving answers nothing: questions stay open.

    Questions of one lane, which one session grant would answer, wait for a while after one of them was settled.
    """

    _waiting: Mapping[str, Q] = field(init=False, default_factory=dict)
    """The questions that wait, by id, oldest first, as of the last reading."""
    _said: set[str] = field(init=False, default_factory=set)
    """The ids of questions that were answered here."""
    _shown: tuple[str, Q] = field(init=False)
    _asking: "asyncio.Task[None] | None" = field(init=False, default=None)
    _held: dict[Hashable, float] = field(init=False, default_factory=dict)
    """Until when a lane waits."""
    _busy: Collection[Hashable] = field(init=False, default=())
    """Lanes of an answer that waits for the owner."""
    _stale_until_s: float = field(init=False, default=0.0)
    """Until then ``_waiting`` is older than the last answer; another responder may have answered more."""
    _is_over: bool = field(init=False, default=False)

    async def run(self) -> None:
        """Answer until cancelled, or until nothing more can be asked; a service that is away is waited for."""
        polling: asyncio.Task[Mapping[str, Q]] | None = None
        try:
            while not self._is_over:
                polling = polling or asyncio.create_task(self._poll())
                until = {polling, self._asking} if self._asking is not None else {polling}
                timeout_s = timing.LEAST_PAUSE_S if self._held or self._stale_until_s else None
                await asyncio.wait(until, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if polling.done():
                    self._take(polling.result())
                    polling = None
                await self._ask_next()
        finally:
            await cancelled(polling, self._asking)

    @abstractmethod
    async def _poll(self) -> Mapping[str, Q]:
        """Return what waits by its id, when it is something else than before or a while has passed."""

    @abstractmethod
    def _lane(self, question: Q) -> Hashable: ...

    @abstractmethod
    async def _answer(self, question: Q) -> None:
        """Ask, and send what is answered (:meth:`_gave`)."""

    async def _gone(self, question: Q) -> None:
        """Take in that the question that was shown has been settled elsewhere."""

    def _first(self, free: Sequence[str]) -> str:
        """Return which of these questions is asked."""
        return free[0]

    @property
    def _open(self) -> Mapping[str, Q]:
        return {key: one for key, one in self._waiting.items() if key not in self._said}

    def _take(self, waiting: Mapping[str, Q]) -> None:
        until_s = asyncio.get_running_loop().time() + timing.SETTLE_S
        for key, one in self._open.items():
            if key not in waiting:
                self._held.setdefault(self._lane(one), until_s)
        self._waiting, self._stale_until_s = waiting, 0.0

    async def _ask_next(self) -> None:
        """Ask about another question once the shown one is answered; stop asking about one that was settled."""
        if self._asking is not None and not self._asking.done():
            key, question = self._shown
            if key in self._said or key in self._waiting:
                return
            await cancelled(self._asking)
            await self._gone(question)
        self._asking, now_s = None, asyncio.get_running_loop().time()
        self._held = {lane: until_s for lane, until_s in self._held.items() if until_s > now_s}
        if now_s < self._stale_until_s:
            return
        self._stale_until_s = 0.0
        free = [key for key, one in self._open.items() if self._lane(one) not in {*self._held, *self._busy}]
        if free and not self._is_over:
            key = self._first(free)
            self._shown = key, self._waiting[key]
            self._asking = asyncio.create_task(self._answer(self._waiting[key]))

    def _gave(self, key: str, question: Q, choice: "Choice | None") -> None:
        """Keep that a question was answered here, perhaps by a grant for all of its lane."""
        now_s = asyncio.get_running_loop().time()
        self._said.add(key)
        self._stale_until_s = now_s + timing.SETTLE_S
        if choice is not None and choice.is_grant:
            self._held[self._lane(question)] = now_s + timing.GRACE_S


async def cancelled(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
