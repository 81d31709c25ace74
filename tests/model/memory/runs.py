"""Runs, their logs and their calls in memory."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core.errors import AlreadyConsumedError
from soong.shared.core.jsontext import Json
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.record import (
    EVERYTHING,
    ListFilter,
    Run,
    RunStatus,
    UnsummedUsage,
    Usage,
    UsageBy,
    UsageTotal,
)
from soong.shared.engine.runs.store import FAILED_CALLS, Appended, CallRow, CallStatus, LastRuns, second_use
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.request import RequestState
from soong.shared.tools.surface import Surface
from tests.model.memory.logs import add_reports, held_run, write_events, write_nodes
from tests.model.memory.rows import Part, Rows, meets, page_before, transaction


class MemoryRuns(Part):
    """The run part of the store."""

    @transaction
    def run(self, run_id: str) -> Run:
        return self.rows.run(run_id)

    @transaction
    def list_runs(self, *, session_id: str = "", task_id: str = "", limit: int = 1000) -> Sequence[Run]:
        found = [
            run
            for run in self.rows.runs.values()
            if session_id in {"", run.identity.session_id} and task_id in {"", run.identity.task_id}
        ]
        return found[:limit]

    @transaction
    def run_page(
        self,
        *,
        session_id: str = "",
        task_id: str = "",
        only: ListFilter = EVERYTHING,
        before: str = "",
        limit: int = 100,
    ) -> Sequence[Run]:
        found = [
            run
            for run in page_before(self.rows.runs, before)
            if session_id in {"", run.identity.session_id}
            and task_id in {"", run.identity.task_id}
            and meets(run, self.rows.tasks[run.identity.task_id], only)
        ]
        return found[:limit]

    @transaction
    def ended_in_open_tasks(
        self, owner_id: str, *, after: tuple[int, str], before_us: int, limit: int
    ) -> Sequence[Run]:
        found = sorted(
            (run.ended_us, run.id)
            for run in self.rows.runs.values()
            if run.ended_us is not None and run.ended_us < before_us and self._is_in_open_task(run, owner_id)
        )
        return [self.rows.runs[run_id] for ended_us, run_id in found if (ended_us, run_id) > after][:limit]

    def _is_in_open_task(self, run: Run, owner_id: str) -> bool:
        task = self.rows.task(run.identity.task_id)
        is_owned = self.rows.session(task.session_id).ownership.owner_id == owner_id
        has_folder = run.usage != Usage() or (run.started_us is not None and run.status is not RunStatus.COMPLETED)
        return is_owned and has_folder and not task.status.is_terminal

    @transaction
    def append(
        self,
        run_id: str,
        fence: int,
        *,
        nodes: Sequence[NewNode] = (),
        events: Sequence[NewEvent] = (),
        calls: Sequence[CallRow] = (),
        now_us: int,
        taints: bool = False,
    ) -> Appended:
        held = held_run(self.rows, run_id, fence)
        self.rows.runs[run_id] = replace(held, is_tainted=held.is_tainted or taints)
        self.rows.calls.update({(run_id, call.tool_call_id): call for call in calls})
        write_nodes(self.rows, run_id, nodes, now_us)
        write_events(self.rows, run_id, events, now_us)
        add_reports(self.rows, run_id, events)
        run = self.rows.run(run_id)
        return Appended(run.last_seq, run.last_node)

    @transaction
    def nodes(self, run_id: str) -> Sequence[Node]:
        return self.rows.nodes.get(run_id, ())

    @transaction
    def usage_totals(self, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
        totals: dict[str, UsageTotal] = {}
        for run in self.rows.runs.values():
            if run.usage.requests and run.created_us >= since_us and session_id in {"", run.identity.session_id}:
                for key, used in _parts(run, by):
                    totals.setdefault(key, UsageTotal(key)).add(used)
        return list(totals.values())

    @transaction
    def unsummed_usage(self, *, since_us: int = 0, session_id: str = "") -> UnsummedUsage:
        made = {
            run.id: run
            for run in self.rows.runs.values()
            if run.created_us >= since_us and session_id in {"", run.identity.session_id}
        }
        under_way = (RunStatus.RUNNING, RunStatus.PARKED)
        lost = [
            row.charge
            for (run_id, fence, _), row in self.rows.charges.items()
            if row.is_open and run_id in made
            if (made[run_id].status, made[run_id].fence) != (RunStatus.RUNNING, fence)
        ]
        return UnsummedUsage(
            sum(run.status in under_way and bool(run.identity.model) for run in made.values()),
            len(lost),
            sum(one.tokens for one in lost),
            sum(one.microusd or 0 for one in lost),
        )

    @transaction
    def node_page(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Node]:
        return self.rows.nodes.get(run_id, ())[after : after + limit]

    @transaction
    def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        return self.rows.events.get(run_id, ())[after_seq : after_seq + limit]

    @transaction
    def events_of(self, run_ids: Sequence[str]) -> Sequence[Event]:
        wanted = [run_id for run_id in self.rows.runs if run_id in set(run_ids)]
        return [event for run_id in wanted for event in self.rows.events.get(run_id, ())]

    @transaction
    def last_runs(self, task_id: str) -> LastRuns:
        return last_runs_of(self.rows, task_id)

    async def start_call(self, call: CallRow, fence: int, *, events: Sequence[NewEvent], now_us: int) -> None:
        try:
            await self._start_call(call, fence, events, now_us)
        except AlreadyConsumedError:
            await self.append(call.run_id, fence, events=[second_use(call, now_us)], now_us=now_us)
            raise

    @transaction
    def _start_call(self, call: CallRow, fence: int, events: Sequence[NewEvent], now_us: int) -> None:
        held_run(self.rows, call.run_id, fence)
        if call.decision_id:
            if call.decision_id in self.rows.consumed or not self._may_use(call):
                raise AlreadyConsumedError(call.decision_id)
            self.rows.consumed[call.decision_id] = (call.run_id, call.tool_call_id, now_us)
        self.rows.calls[call.run_id, call.tool_call_id] = call
        write_events(self.rows, call.run_id, events, now_us)

    def _may_use(self, call: CallRow) -> bool:
        """Say whether the call's decision is of this call, and its question has not expired."""
        return all(
            (decision.run_id, decision.tool_call_id) == (call.run_id, call.tool_call_id)
            and self.rows.request_states[request_id] is RequestState.DECIDED
            for request_id, decision in self.rows.decisions.items()
            if decision.id == call.decision_id
        )

    @transaction
    def end_call(
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
        run = held_run(self.rows, run_id, fence)
        self.rows.runs[run_id] = replace(run, is_tainted=run.is_tainted or taints)
        row = call or self.rows.calls.get((run_id, tool_call_id))
        if row is not None:
            ended = replace(row, status=CallStatus.ENDED, result=result, open_input=None)
            self.rows.calls[run_id, tool_call_id] = ended
        write_nodes(self.rows, run_id, nodes, now_us)
        write_events(self.rows, run_id, events, now_us)

    @transaction
    def is_tainted(self, run_id: str) -> bool:
        below = self._below(self.rows.run(run_id))
        if any(self._is_source(each, run_id) for each in below):
            return True
        for agent in self._agents_above(run_id):
            results = [each for each in self._below(agent) if each.id == agent.id or each.end_reason is not None]
            if any(self._is_source(each, agent.id) for each in results):
                return True
        own = below
        sources = [source for each in own if each.identity.step_key for source in self._feeding(each.identity.step_key)]
        seen: set[str] = set()
        while sources:
            step = sources.pop()
            run = self.rows.run(step.run_id) if step.run_id else None
            if step.kind is StepKind.PYTHON or (run and (run.is_tainted or is_of_project(run.identity.definition))):
                return True
            if step.key not in seen:
                seen.add(step.key)
                sources += self._feeding(step.key)
        return False

    def _below(self, run: Run) -> list[Run]:
        """Return a run and all that it and they started."""
        if run.identity.role.is_child:
            return [run]
        started = [each for each in self.rows.runs.values() if each.identity.parent_run_id == run.id]
        return [run, *(one for each in started for one in self._below(each))]

    def _agents_above(self, run_id: str) -> Iterator[Run]:
        parent = self.rows.run(run_id).identity.parent_run_id
        while parent:
            run = self.rows.run(parent)
            if run.fence:
                yield run
            parent = run.identity.parent_run_id

    def _is_source(self, run: Run, asker: str) -> bool:
        key = run.identity.step_key
        is_read = run.id != asker and run.end_reason is not None
        is_function = is_read and key != "" and self.rows.step(key).kind is StepKind.PYTHON
        return run.is_tainted or is_of_project(run.identity.definition) or is_function

    def _feeding(self, step_key: str) -> list[Step]:
        """Return the steps whose results a step takes in."""
        step = self.rows.step(step_key)
        waited = {*step.depends_on, *(self.rows.step(step.map_key).depends_on if step.map_key else ())}
        return [*map(self.rows.step, sorted(waited)), *self.rows.children_of(step_key)]

    @transaction
    def calls(self, run_id: str) -> Sequence[CallRow]:
        return [call for (owner, _), call in self.rows.calls.items() if owner == run_id]


def _told_of(log: Sequence[Event]) -> list[Event]:
    """Return what a result tells of a run's log."""
    has_failed = any(event.type in FAILED_CALLS for event in log)
    types = (EventType.PERMISSION_DECIDED, *FAILED_CALLS) if has_failed else ()
    return [
        event
        for event in log
        if event.type in types or (event.type == EventType.TOOL_COMPLETED and "deliverable" in event.data)
    ]


def last_runs_of(rows: Rows, task_id: str) -> LastRuns:
    """See :meth:`soong.shared.engine.runs.store.RunStore.last_runs`."""
    last = {step.run_id: step for step in rows.steps_of(task_id)}
    found = {run_id: run for run_id, run in rows.runs.items() if run_id in last}
    events = [event for run_id in found for event in _told_of(rows.events.get(run_id, ()))]
    agents = {run_id: run for run_id, run in found.items() if last[run_id].kind is StepKind.AGENT and run.surface}
    granted = {run_id: Surface.from_json(run.surface).tools for run_id, run in agents.items()}
    return LastRuns(granted, events)


def _parts(run: Run, by: UsageBy) -> Iterable[tuple[str, Usage]]:
    """Return what a run counts for, by key."""
    if by is UsageBy.MODEL and run.usage.by_model:
        return run.usage.by_model.items()
    own = run.identity
    keys = {
        UsageBy.DAY: utc_date(run.created_us),
        UsageBy.SESSION: own.session_id,
        UsageBy.TASK: own.task_id,
        UsageBy.AGENT: own.definition,
        UsageBy.MODEL: own.model,
    }
    return ((keys[by], run.usage),)
