"""The record of a run's calls, over the run store (EXE-06).

A write call is recorded before its handler starts, with its ledger row and the consumption of its decision, in one
transaction, and its end in another: two by design. A read can be run again, so all that is known of it is kept back and
written with its end: one transaction per call, its ledger row among it (PER-19, EXE-02).

Events that are kept back are written after ``SHOW_AFTER_S`` at the latest, so that a watcher sees a long call
while it runs (EXE-09, EXE-11); a short one costs nothing for that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import field
from typing import Final

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.clock import Clock
from soong.shared.core.errors import LeaseLostError, UnavailableError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.core.log import get_logger
from soong.shared.engine.runs.call_events import ended_event, result_nodes, started_event
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallRow, RunStore
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.taint import brings_untrusted, reads_untrusted
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.execution import is_run_aborted
from soong.shared.tools.ports import ArtifactStore, CallRecord, StartedCall, ToolCall
from soong.shared.tools.result import ErrorType, ToolResult

log = get_logger(__name__)

SHOW_AFTER_S: Final = 1.0


@dataclass(slots=True)
class RunCallLog:
    """The call log of one claimed run. ``calls`` counts the calls that ended.

    Of a run that continues elsewhere no call is recorded as aborted: it is not over. One that ended in spite of the
    interruption is recorded as it ended.
    """

    runs: RunStore
    artifacts: ArtifactStore
    clock: Clock
    run_id: str
    fence: int
    interruption: StopSignal = field(default_factory=StopSignal)
    redactor: Redactor = field(default_factory=Redactor)
    show_after_s: float = SHOW_AFTER_S
    notifier: Notifier | None = None
    """Notifies followers of the run after each write to its log (EVT-02)."""
    on_error: Callable[[str, str], object] | None = None
    """Gets the tool and the type of each error that a call ends in."""
    calls: int = 0
    _kept: list[NewEvent] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _showing: asyncio.Task[None] | None = None
    _taints: bool = False
    """A call that has begun may read what strangers wrote: the run is marked with the next end (PER-21)."""

    async def started(self, started: StartedCall) -> None:
        # Whatever its end is: an error tells the model what a server said, too.
        self._taints = self._taints or reads_untrusted(started.gate_call.definition)
        self._keep(started_event(started, now_us=self.clock.now_us()))
        if started.is_write or started.verdict.decision_id:
            events = await self.take()
            row = self._row(started.call, started.record)
            await self.runs.start_call(row, self.fence, events=events, now_us=self.clock.now_us())
            await self.notify()

    async def finished(
        self, call: ToolCall, result: ToolResult, *, duration_ms: int, record: CallRecord | None = None
    ) -> None:
        is_discarded = result.error is not None and result.error.type is ErrorType.STREAM_DISCARDED
        if is_run_aborted(result):
            if self.interruption.goes_on_elsewhere:
                return
            self.interruption.aborted_calls += 1
        elif result.error is not None and self.on_error is not None and not is_discarded:
            self.on_error(call.tool, result.error.type.value)
        self.calls += not is_discarded
        self._taints = self._taints or brings_untrusted(result)
        event = await ended_event(
            call,
            result,
            duration_ms=duration_ms,
            artifacts=self.artifacts,
            now_us=self.clock.now_us(),
            redactor=self.redactor,
        )
        self._keep(event)
        if is_discarded:
            return
        events = await self.take()
        await self.runs.end_call(
            self.run_id,
            self.fence,
            call.id,
            result=None,
            nodes=result_nodes(call.tool, result),
            events=events,
            now_us=self.clock.now_us(),
            taints=self._taints,
            call=None if record is None else self._row(call, record),
        )
        await self.notify()

    async def note(self, type: str, data: JsonObject) -> None:
        if type == EventType.ABORTED_TOOLS and self.interruption.goes_on_elsewhere:
            return
        self._keep(NewEvent(type, data, self.clock.now_us()))

    async def take(self) -> list[NewEvent]:
        """Return the events kept back and forget them: the next write includes them, in order."""
        while self._showing is not None:
            await asyncio.shield(self._showing)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        return kept

    async def flush(self) -> None:
        """Write what is kept back, if anything. Raises: LeaseLostError."""
        events = await self.take()
        if events:
            await self.runs.append(self.run_id, self.fence, events=events, now_us=self.clock.now_us())
            await self.notify()

    async def notify(self) -> None:
        """Notify followers of the run; called after each write to its log."""
        if self.notifier is not None:
            await self.notifier.notify_runs([self.run_id])

    def _keep(self, event: NewEvent) -> None:
        self._kept.append(NewEvent(event.type, self.redactor.mapping(event.data), event.time_us))
        self._show_later()

    def _show_later(self) -> None:
        if self._kept and self._timer is None and self._showing is None and not self.interruption.is_set:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.show_after_s, self._begin_to_show, loop)

    def _begin_to_show(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self.interruption.is_set:
            self._showing = loop.create_task(self._show())

    async def _show(self) -> None:
        """Write what is kept back although no call has ended; when that fails, the next write says why.

        Never raises, so that its callers continue.
        """
        events, self._kept = self._kept, []
        try:
            await self.runs.append(self.run_id, self.fence, events=events, now_us=self.clock.now_us())
            await self.notify()
        except (LeaseLostError, UnavailableError) as error:
            self._kept = events + self._kept
            log.info("events_kept_back", run=self.run_id, error=str(error))
            self._showing = None
        else:
            self._showing = None
            self._show_later()

    def _row(self, call: ToolCall, record: CallRecord) -> CallRow:
        facts: dict[str, Json] = {
            "facts": record.facts,
            "decision": record.decision,
            "raw": self.redactor.mapping(call.raw),
        }
        return CallRow(
            run_id=self.run_id,
            tool_call_id=call.id,
            tool=call.tool,
            effect_id=record.effect_id,
            is_write=record.is_write,
            input_digest=record.input_digest,
            inputs=record.inputs.as_json(),
            facts=facts,
            decision_id=record.decision_id,
        )
