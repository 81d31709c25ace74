"""The run store of a worker that tells whoever follows a run that its log has grown (EVT-02)."""

from collections.abc import Sequence
from dataclasses import dataclass

from soong.shared.core.jsontext import Json
from soong.shared.engine.runs.events import Event, NewEvent, NewNode, Node
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.store import Appended, CallRow, RunStore
from soong.shared.engine.wire.notifier import Notifier


@dataclass(frozen=True, slots=True)
class NotifyingRunStore:
    """Implements ``soong.shared.engine.runs.store.RunStore`` over another: what was written is rung for, after it
    stands.
    """

    inner: RunStore
    notifier: Notifier

    async def run(self, run_id: str) -> Run:
        return await self.inner.run(run_id)

    async def runs(self, *, session_id: str = "", task_id: str = "", limit: int = 1000) -> Sequence[Run]:
        return await self.inner.runs(session_id=session_id, task_id=task_id, limit=limit)

    async def nodes(self, run_id: str) -> Sequence[Node]:
        return await self.inner.nodes(run_id)

    async def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        return await self.inner.events(run_id, after_seq=after_seq, limit=limit)

    async def is_tainted(self, run_id: str) -> bool:
        return await self.inner.is_tainted(run_id)

    async def calls(self, run_id: str) -> Sequence[CallRow]:
        return await self.inner.calls(run_id)

    async def append(
        self,
        run_id: str,
        fence: int,
        *,
        nodes: Sequence[NewNode] = (),
        events: Sequence[NewEvent] = (),
        calls: Sequence[CallRow] = (),
        now_us: int,
    ) -> Appended:
        appended = await self.inner.append(run_id, fence, nodes=nodes, events=events, calls=calls, now_us=now_us)
        await self.notifier.notify_runs([run_id])
        return appended

    async def start_call(self, call: CallRow, fence: int, *, events: Sequence[NewEvent], now_us: int) -> None:
        await self.inner.start_call(call, fence, events=events, now_us=now_us)
        await self.notifier.notify_runs([call.run_id])

    async def end_call(
        self,
        run_id: str,
        fence: int,
        tool_call_id: str,
        *,
        result: Json,
        nodes: Sequence[NewNode],
        events: Sequence[NewEvent],
        now_us: int,
        taints: bool = False,
        call: CallRow | None = None,
    ) -> None:
        await self.inner.end_call(
            run_id,
            fence,
            tool_call_id,
            result=result,
            nodes=nodes,
            events=events,
            now_us=now_us,
            taints=taints,
            call=call,
        )
        await self.notifier.notify_runs([run_id])
