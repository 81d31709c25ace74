"""The calls of a held run: their record over the run store (EXE-06), and how they end when the run is stopped.

A write call is recorded before its handler starts, with its ledger row and the consumption of its decision, in one
transaction, and its end in another: two by design. A read without consent does not wait for that commit: its start is
handed to this log before its handler begins, and its ledger row is written with its end (PER-19, EXE-02).

The log writes what it has been handed after ``WRITE_AFTER_S`` at the latest, while the call runs (EXE-06, EXE-09,
EXE-11); a call that is shorter is one transaction.

A run that is cancelled or aborted ends, and its calls with it. One that is released or dropped continues elsewhere: its
unfinished calls have no result, and its open question stays open, for the resumed run asks the same one. So does one
that is parked, which has given up its lease already.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec.structs import replace

from soong.shared.agents.ports import AgentTask
from soong.shared.core import timing
from soong.shared.core.errors import ForgedError, LeaseLostError, UnavailableError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.call_events import ended_event, result_nodes, started_event
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.store import CallRow, CallStatus, RunStore
from soong.shared.engine.tasks.failure_report import StepIncidents
from soong.shared.engine.tasks.step import MALFORMED, StepEnd
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.rules import brings_untrusted, reads_untrusted
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.execution import is_run_aborted
from soong.shared.tools.limits import AbortableCall, UnfitError, abortable, check_incoming
from soong.shared.tools.ports import ArtifactStore, CallInputs, CallRecord, StartedCall, ToolCall, effect_id_of
from soong.shared.tools.result import ErrorType, ToolResult

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


WORKER_STOPS: Final = "the worker stops"
"""The reason of a run that is handed back because its worker ends; others continue it at once."""


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
    def is_paused(self) -> bool:
        """Say whether its task is paused, and not only its worker about to stop."""
        return self.stop == "release" and self.reason != WORKER_STOPS

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


log = get_logger(__name__)


@dataclass(slots=True)
class RunCallLog:
    """The call log of one claimed run. ``calls`` counts the calls that ended.

    A run that continues elsewhere is not over: none of its calls is recorded as aborted. A call that ended in spite of
    the interruption is recorded as it ended.
    """

    runs: RunStore
    artifacts: ArtifactStore
    clock: Clock
    run_id: str
    fence: int
    interruption: StopSignal = field(default_factory=StopSignal)
    redactor: Redactor = field(default_factory=Redactor)
    write_after_s: float = timing.WRITE_AFTER_S
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
        # For every end: an error contains a server's words, too.
        self._taints = self._taints or reads_untrusted(started.gate_call.definition)
        self._keep(started_event(started, now_us=self.clock.now_us()))
        if started.verdict.decision_id or started.record.is_write:
            events = await self.take()
            row, now_us = self._row(started.call, started.record), self.clock.now_us()
            await self.runs.start_call(row, self.fence, events=events, now_us=now_us)
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
            call=None if record is None else self._row(call, record, CallStatus.ENDED),
        )
        await self.notify()

    async def note(self, type: str, data: JsonObject) -> None:
        if type == EventType.ABORTED_TOOLS and self.interruption.goes_on_elsewhere:
            return
        self._keep(NewEvent(type, data, self.clock.now_us()))

    async def take(self) -> list[NewEvent]:
        """Return the events kept back, without secrets, and forget them: the next write includes them, in order."""
        while self._showing is not None:
            await asyncio.shield(self._showing)
        return self._taken()

    def _taken(self) -> list[NewEvent]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        return [clean_event(event, self.redactor) for event in kept]

    async def flush(self) -> None:
        """Write what is kept back, if anything. Raises: LeaseLostError."""
        events = await self.take()
        if events:
            await self.runs.append(self.run_id, self.fence, events=events, now_us=self.clock.now_us())
            await self.notify()

    async def notify(self) -> None:
        if self.notifier is not None:
            await self.notifier.notify_runs([self.run_id])

    def _keep(self, event: NewEvent) -> None:
        """Keep an event back; its secrets are taken out with those of all that are written with it."""
        self._kept.append(event)
        self._show_later()

    def _show_later(self) -> None:
        is_idle = self._timer is None and self._showing is None
        if self._kept and is_idle and not self.interruption.is_set:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.write_after_s, self._begin_to_show, loop)

    def _begin_to_show(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self.interruption.is_set:
            self._showing = loop.create_task(self._show())

    async def _show(self) -> None:
        """Write what is kept back although no call has ended; when that fails, the next write raises the error.

        Never raises, so that its callers continue.
        """
        events = self._taken()
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

    def _row(self, call: ToolCall, record: CallRecord, status: CallStatus = CallStatus.STARTED) -> CallRow:
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
            status=status,
        )


@dataclass(slots=True)
class StoredTranscript:
    """Implements ``soong.shared.agents.ports.RunTranscript``; entries that the call log has kept back go first."""

    runs: RunStore
    log: RunCallLog
    clock: Clock
    run_id: str
    fence: int
    redactor: Redactor
    _former_ids: tuple[str, ...] = ()
    """The attempts before, whose record this run continues, oldest first."""

    async def continues(self, task: AgentTask) -> bool:
        """Begin with the record of the attempt before, if that was cut; what it did is not done again then."""
        from soong.shared.agents.compaction import (  # the model library, which the run needs anyway
            ATTEMPT,
            IS_INHERITED,
            attempt_nodes,
        )
        from soong.shared.agents.messages import opening_nodes  # as above

        _, opening = opening_nodes(task.system, task.instructions, task.inputs, task.run_dirs)
        run = await self.runs.run(self.run_id)
        former = await self.runs.run(run.retry_of)
        nodes = attempt_nodes(former, await self.runs.nodes(former.id), clean_node(opening, self.redactor))
        if nodes and not run.last_node:
            now_us, is_tainted = self.clock.now_us(), await self.runs.is_tainted(former.id)
            await self.runs.append(self.run_id, self.fence, nodes=nodes, taints=is_tainted, now_us=now_us)
        while nodes:
            self._former_ids = (former.id, *self._former_ids)
            if not any(node.payload.get(IS_INHERITED) == ATTEMPT for node in await self.runs.nodes(former.id)):
                break
            former = await self.runs.run(former.retry_of)
        return bool(nodes)

    async def nodes(self) -> Sequence[Node]:
        """Raises: ForgedError when one is malformed: some worker wrote it, and no run continues from it (OPS-12)."""
        nodes = await self.runs.nodes(self.run_id)
        malformed = next((node for node in nodes if MALFORMED in node.payload), None)
        if malformed is not None:
            reason = f"node {malformed.number} of the run is malformed: {malformed.payload[MALFORMED]}"
            await self.append((), [NewEvent(EventType.SECURITY, {"what": MALFORMED, "reason": reason})])
            raise ForgedError(reason, what=MALFORMED)
        return nodes

    async def calls(self) -> Sequence[CallRow]:
        return [row for run_id in (*self._former_ids, self.run_id) for row in await self.runs.calls(run_id)]

    async def append(
        self, nodes: Sequence[NewNode], events: Sequence[NewEvent], calls: Sequence[ToolCall] = ()
    ) -> None:
        nodes = [clean_node(node, self.redactor) for node in nodes]
        events = [clean_event(event, self.redactor) for event in events]
        open_rows = [row for call in calls if (row := self._open_row(call)) is not None]
        kept = await self.log.take()
        await self.runs.append(
            self.run_id, self.fence, nodes=nodes, events=[*kept, *events], calls=open_rows, now_us=self.clock.now_us()
        )
        await self.log.notify()

    def _open_row(self, call: ToolCall) -> CallRow | None:
        """Return the row that keeps a call's full arguments; None when its node does."""
        try:
            check_incoming(call.arguments)
        except UnfitError:
            return None  # kept nowhere: the pipeline refuses it, as it would again
        shown = self.redactor.value(call.arguments)
        if shown is call.arguments:
            return None
        return CallRow(
            run_id=self.run_id,
            tool_call_id=call.id,
            tool=call.tool,
            effect_id=effect_id_of(self.run_id, call.id),
            is_write=False,
            input_digest="",
            inputs=CallInputs(shown).as_json(),
            facts={},
            open_input={"arguments": call.arguments},
        )


def clean_end(end: StepEnd, redactor: Redactor) -> StepEnd:
    """Return a step's end without secrets, whatever kind of step it was."""
    error = end.error
    clean_error = error if error is None else replace(error, message=redactor.text(error.message))
    return replace(
        end,
        output=redactor.value(end.output),
        error=clean_error,
        nodes=tuple(clean_node(node, redactor) for node in end.nodes),
        events=tuple(clean_event(event, redactor) for event in end.events),
    )


def clean_node(node: NewNode, redactor: Redactor) -> NewNode:
    payload = redactor.mapping(node.payload)
    return node if payload is node.payload else replace(node, payload=payload)


def clean_event(event: NewEvent, redactor: Redactor) -> NewEvent:
    data = redactor.mapping(event.data)
    return event if data is event.data else replace(event, data=data)
