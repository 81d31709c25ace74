"""How a held run is being stopped, as everything that works for it sees it.

A run that is cancelled or aborted ends, and its calls with it. One that is released or dropped continues elsewhere: its
unfinished calls have no result, and its open question stays open, for the resumed run asks the same one. So does one
that is parked, which has given up its lease already.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from soong.shared.core import timing
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.time_limit import AbortableCall, abortable

StopReason = Literal["cancel", "abort", "release", "drop", "park"]


@dataclass(slots=True)
class RunningCalls:
    """By tool call id. A call that waits for its turn, or has ended, is not here."""

    _calls: dict[str, AbortableCall] = field(default_factory=dict)

    def abort(self, tool_call_id: str, reason: str = "") -> bool:
        """Abort one call on behalf of a person; False when it is not under way here, or is ending already."""
        call = self._calls.get(tool_call_id)
        return call is not None and call.abort(reason)

    @contextmanager
    def entered(self, call: ToolCall) -> Iterator[None]:
        with abortable() as running:
            self._calls[call.id] = running
            try:
                yield
            finally:
                if self._calls.get(call.id) is running:
                    del self._calls[call.id]


@dataclass(slots=True)
class StopSignal:
    """Set once, by the slot that holds the run or by its parking, before its task is cancelled.

    ``aborted_calls`` counts the tool calls that the run's end has cut off: with any, the run was not only cancelled,
    its tools were (EXE-07). One of the ``calls`` under way that a person aborts does not count: the run continues.
    """

    stop: StopReason | None = None
    reason: str = ""
    aborted_calls: int = 0
    incidents: StepIncidents = field(default_factory=StepIncidents)
    """The run's own report until its end: it stays when the run can no longer report at its end."""

    calls: RunningCalls = field(default_factory=RunningCalls)
    lets_end: bool = False
    """The run is a function that a pause lets end."""

    @property
    def is_pausing(self) -> bool:
        """Say whether the run is waited for, and only its result counts: it is not cancelled."""
        return self.lets_end and self.stop == "release"

    @property
    def is_set(self) -> bool:
        return self.stop is not None

    @property
    def goes_on_elsewhere(self) -> bool:
        return self.stop in ("release", "drop", "park")


def cancel_until_done(task: "asyncio.Task[Any]", reason: str = "", interruption: StopSignal | None = None) -> None:
    """Cancel a run's task, and again every ``GRACE_S`` until it is done or may end; its calls get the reason.

    Code that a run calls can lose a cancellation, as ``asyncio.wait_for`` does before Python 3.12
    (python/cpython#86296).
    """
    is_waited_for = interruption is not None and (interruption.is_pausing or not interruption.is_set)
    if not task.done() and not is_waited_for:
        task.cancel(reason) if reason else task.cancel()
        asyncio.get_running_loop().call_later(timing.GRACE_S, cancel_until_done, task, reason, interruption)
