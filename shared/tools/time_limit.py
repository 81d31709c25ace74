"""The time limit of a step or a call: wall time of its own work, in which waiting for people does not count."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from soong.shared.core.value import Value
from soong.shared.tools.ports import Gate, GateCall, Verdict


class TimeLimit:
    """``async with TimeLimit(seconds)``: TimeoutError when the work took longer; None sets no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._waits = 0
        self._left_s: float | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(type_, error, traceback)

    @property
    def has_expired(self) -> bool:
        """Say whether the time ran out."""
        return self._timeout.expired()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the time while anybody waits in here; several may at once."""
        self._stop()
        try:
            yield
        finally:
            self._go_on()

    def _stop(self) -> None:
        self._waits += 1
        deadline = self._timeout.when()
        if self._waits == 1 and deadline is not None:
            self._left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            self._timeout.reschedule(None)

    def _go_on(self) -> None:
        self._waits -= 1
        if self._waits == 0 and self._left_s is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


class UntimedGate(Value):
    """A gate whose waiting counts to no time limit."""

    gate: Gate
    limit: TimeLimit

    async def decide(self, call: GateCall) -> Verdict:
        with self.limit.suspended():
            return await self.gate.decide(call)
