"""The record of a run's calls, over the run store (EXE-06).

A write call is recorded before its handler starts, with its ledger row and the consumption of its decision, in one
transaction. A read can be run again, so its start is kept back and written with its end: one transaction a call.
"""

from dataclasses import dataclass, field

from shared.clock import Clock
from shared.jsontext import JsonObject
from shared.permissions.taint import reads_untrusted
from shared.runs.call_events import ended_event, started_event
from shared.runs.events import NewEvent, NewNode, NodeKind
from shared.runs.store import CallRow, RunStore
from shared.tools import stored
from shared.tools.ports import ArtifactStore, StartedCall, ToolCall
from shared.tools.result import ErrorType, ToolResult
from worker.interruption import Interruption


@dataclass(slots=True)
class RunCallLog:
    """The call log of one claimed run. ``calls`` counts the calls that ended.

    Of a run that goes on elsewhere no call is recorded as aborted: it is not over. One that ended in spite of the
    interruption is recorded as it ended.
    """

    runs: RunStore
    artifacts: ArtifactStore
    clock: Clock
    run_id: str
    fence: int
    interruption: Interruption = field(default_factory=Interruption)
    calls: int = 0
    _kept: list[NewEvent] = field(default_factory=list)
    _taints: bool = False
    """A call that has begun may read what strangers wrote: the run is marked with the next end (PER-21)."""

    async def started(self, started: StartedCall) -> None:
        # Whatever its end is: an error tells the model what a server said, too.
        self._taints = self._taints or reads_untrusted(started.gate_call.definition)
        self._kept.append(started_event(started, now_us=self.clock.now_us()))
        if started.is_write or started.verdict.decision_id:
            row = self._row(started)
            await self.runs.start_call(row, self.fence, events=self.take(), now_us=self.clock.now_us())

    async def finished(self, call: ToolCall, result: ToolResult, *, duration_ms: int) -> None:
        if self.interruption.goes_on_elsewhere and _is_aborted(result):
            return
        self.calls += 1
        event = await ended_event(
            call, result, duration_ms=duration_ms, artifacts=self.artifacts, now_us=self.clock.now_us()
        )
        self._kept.append(event)
        await self.runs.end_call(
            self.run_id,
            self.fence,
            call.id,
            result=None,
            nodes=[NewNode(NodeKind.TOOL_RESULT, stored.to_json(call.tool, result))],
            events=self.take(),
            now_us=self.clock.now_us(),
            taints=self._taints,
        )

    async def note(self, type: str, data: JsonObject) -> None:
        self._kept.append(NewEvent(type, data, self.clock.now_us()))

    def take(self) -> list[NewEvent]:
        """Return the events kept back and forget them: whoever writes next writes them too, in order."""
        kept, self._kept = self._kept, []
        return kept

    def _row(self, started: StartedCall) -> CallRow:
        gate = started.gate_call
        return CallRow(
            run_id=self.run_id,
            tool_call_id=started.call.id,
            tool=started.call.tool,
            effect_id=started.effect_id,
            is_write=started.is_write,
            input_digest=gate.input_digest,
            inputs={"call_input": dict(started.shown_input)},
            facts={
                "risk": gate.risk.name.lower(),
                "scope": gate.target.scope,
                "shown": gate.target.shown,
                "author": started.verdict.author,
                "rule": started.verdict.rule,
            },
            decision_id=started.verdict.decision_id,
        )


def _is_aborted(result: ToolResult) -> bool:
    return result.error is not None and result.error.type is ErrorType.ABORTED
