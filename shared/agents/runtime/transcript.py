"""The nodes and events of a claimed run, written without secrets and under its fence (EVT-05).

What a model said may repeat a secret that it was shown, and what it calls must run with it all the same: the node of
its answer is redacted, and the arguments of a call that lost something by that are kept in full in the call's own row
until the call ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.agents.runtime.without_secrets import clean_log
from soong.shared.core.clock import Clock
from soong.shared.core.errors import ForgedError
from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.store import CallRow, RunStore
from soong.shared.engine.tasks.step import MALFORMED
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.ports import CallInputs, ToolCall, effect_id_of
from soong.shared.tools.value_limits import UnfitError, check_incoming


@dataclass(slots=True)
class StoredTranscript:
    """Implements ``soong.shared.agents.ports.Transcript``; what the call log has kept back goes first."""

    runs: RunStore
    log: RunCallLog
    clock: Clock
    run_id: str
    fence: int
    redactor: Redactor

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
        return await self.runs.calls(self.run_id)

    async def append(
        self,
        nodes: Sequence[NewNode],
        events: Sequence[NewEvent],
        calls: Sequence[ToolCall] = (),
        *,
        may_wait: bool = False,
    ) -> None:
        open_rows: Sequence[CallRow] = ()
        held: list[Json] = [node.payload for node in nodes]
        held += [event.data for event in events]
        held += [call.arguments for call in calls]
        if self.redactor.may_hold_secrets(held):
            nodes, events = clean_log(nodes, events, self.redactor)
            open_rows = [row for call in calls if (row := self._open_row(call)) is not None]
        if may_wait and not open_rows and self.log.hold(nodes, events):
            return
        kept = await self.log.take()
        await self.runs.append(
            self.run_id,
            self.fence,
            nodes=nodes,
            events=[*kept, *events],
            calls=open_rows,
            now_us=self.clock.now_us(),
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
