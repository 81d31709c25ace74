"""Runs, their logs, their calls and their budgets in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from soong.shared.agents.project_definitions import is_of_project
from soong.shared.core.errors import AlreadyConsumedError, LeaseLostError
from soong.shared.core.jsontext import Json
from soong.shared.core.log_lines import LogLine
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import (
    DAY,
    LIMIT_ENDS,
    NO_BUDGET,
    TASK_LIMIT,
    Budget,
    BudgetState,
    Charge,
    StoppedTask,
    TaskTime,
    session_scope,
    task_scope,
    time_words,
)
from soong.shared.engine.runs.events import Event, EventType, NewEvent, NewNode, Node
from soong.shared.engine.runs.lines import LineRow, lines_of_rows
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
from soong.shared.engine.runs.store import FAILED_CALLS, NAMING, Appended, CallRow, CallStatus, LastRuns, second_use
from soong.shared.engine.tasks.spec import STEP_ENDS, StepKind, StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.request import RequestState
from soong.shared.tools.surface import Surface
from tests.model.memory.rows import (
    ChargeRow,
    Part,
    Rows,
    add_reports,
    held_run,
    meets,
    page_before,
    transaction,
    write_events,
    write_nodes,
)


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
    def write_lines(self, rows: Sequence[LineRow]) -> None:
        for row in rows:
            run = self.rows.runs.get(row.run_id)
            if run is not None and run.fence == row.fence and run.status is RunStatus.RUNNING:
                self.rows.lines[row.run_id, row.place] = row

    @transaction
    def last_line(self, run_id: str) -> tuple[int, int]:
        return max(((row.number, row.place) for row in self._line_rows(run_id)), default=(0, -1))

    @transaction
    def lines(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[LogLine]:
        rows = sorted((row.number, row.lines) for row in self._line_rows(run_id) if row.number > after)
        return list(lines_of_rows(rows, after))[:limit]

    def _line_rows(self, run_id: str) -> Iterator[LineRow]:
        return (row for (of_run, _), row in self.rows.lines.items() if of_run == run_id)

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
    return [event for event in log if event.type in types or (event.type in NAMING and "deliverable" in event.data)]


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


class MemoryBudgets(Part):
    """Budgets by scope, charges by request. The part that :class:`BudgetStore` describes."""

    @transaction
    def set_budget(self, scope: str, budget: Budget) -> None:
        self.rows.budgets.pop(scope, None)
        if budget != NO_BUDGET:
            self.rows.budgets[scope] = budget

    @transaction
    def budgets(self, scopes: Sequence[str], *, day: str) -> Mapping[str, BudgetState]:
        return {scope: self._state(scope, day) for scope in sorted(scopes) if scope in self.rows.budgets}

    @transaction
    def reserve(self, run_id: str, fence: int, number: int, charge: Charge, *, day: str) -> float | None:
        identity = self.rows.run(run_id).identity
        session_id = identity.session_id
        known = (DAY, session_scope(session_id), task_scope(identity.task_id))
        scopes = [scope for scope in known if scope in self.rows.budgets]
        if not scopes:
            return None
        for scope in scopes:
            self._state(scope, day).check(charge)
        held_run(self.rows, run_id, fence)
        self.rows.charges[run_id, fence, number] = ChargeRow(session_id, day, self._kept(run_id, charge), is_open=True)
        return max(self._state(scope, day).share for scope in scopes)

    @transaction
    def settle(self, run_id: str, fence: int, number: int, charge: Charge) -> None:
        held_run(self.rows, run_id, fence)
        key = (run_id, fence, number)
        if key not in self.rows.charges:
            raise LeaseLostError(run_id, fence)
        old = self.rows.charges[key]
        self.rows.charges[key] = ChargeRow(old.session_id, old.day, self._kept(run_id, charge), is_open=False)

    def _kept(self, run_id: str, charge: Charge) -> Charge:
        """Return a charge without its turns, where no task's limits concern the run."""
        is_limited = task_scope(self.rows.run(run_id).identity.task_id) in self.rows.budgets
        return charge if is_limited else replace(charge, turns=0)

    def _state(self, scope: str, day: str) -> BudgetState:
        of_scope = [
            (key, one)
            for key, one in self.rows.charges.items()
            if scope in (session_scope(one.session_id), task_scope(self.rows.run(key[0]).identity.task_id))
            or (scope == DAY and one.day == day)
        ]
        used = [one.charge for _, one in of_scope if not one.is_open]
        reserved = [one.charge for key, one in of_scope if one.is_open and self._is_held(key[0], key[1])]
        lost = [one.charge for key, one in of_scope if one.is_open and not self._is_held(key[0], key[1])]
        used += [replace(charge, turns=0) for charge in lost]
        budget = self.rows.budgets[scope]
        started_us = None if budget.wall_us is None else self._started_us(scope.removeprefix(task_scope("")))
        return BudgetState(scope, budget, _sum(used), _sum(reserved), started_us)

    @transaction
    def task_time(self, task_id: str) -> TaskTime | None:
        budget = self.rows.budgets.get(task_scope(task_id))
        if budget is None:
            return None
        return TaskTime(
            budget.wall_us, self._deadline_us(task_id), self.rows.stopped.get(task_id) or self._hit(task_id)
        )

    @transaction
    def stopped_tasks(self, owner_id: str, *, now_us: int) -> Sequence[StoppedTask]:
        found = []
        for task in self.rows.tasks.values():
            budget = self.rows.budgets.get(task_scope(task.id))
            is_mine = self.rows.session(task.session_id).owner_id == owner_id and not task.status.is_terminal
            waits = any(
                step.status not in STEP_ENDS and not step.status.is_leased for step in self.rows.steps_of(task.id)
            )
            if budget is None or not (is_mine and waits):
                continue
            deadline_us, stopped = self._deadline_us(task.id), self.rows.stopped.get(task.id, "")
            if stopped or (deadline_us is not None and deadline_us <= now_us):
                found.append(StoppedTask(task.session_id, task.id, stopped or time_words(budget.wall_us or 0)))
        return found

    def _started_us(self, task_id: str) -> int | None:
        since_us = self.rows.tried_again.get(task_id, 0)
        own = [run for run in self.rows.runs.values() if run.identity.task_id == task_id and run.identity.step_key]
        starts = [run.started_us for run in own if run.started_us is not None and run.started_us >= since_us]
        return min(starts, default=None)

    def _deadline_us(self, task_id: str) -> int | None:
        wall_us, started_us = self.rows.budgets[task_scope(task_id)].wall_us, self._started_us(task_id)
        return None if wall_us is None or started_us is None else started_us + wall_us

    def _hit(self, task_id: str) -> str:
        for step in self.rows.steps_of(task_id):
            error, run = step.error, self.rows.runs.get(step.run_id)
            is_limit = error is not None and error.type == TASK_LIMIT and step.status is StepStatus.FAILED
            if error is not None and is_limit and run is not None and run.end_reason in LIMIT_ENDS:
                return error.message
        return ""

    def _is_held(self, run_id: str, fence: int) -> bool:
        run = self.rows.run(run_id)
        return run.status is RunStatus.RUNNING and run.fence == fence


def _sum(charges: Sequence[Charge]) -> Charge:
    tokens, turns = sum(one.tokens for one in charges), sum(one.turns for one in charges)
    return Charge(tokens, sum(one.microusd or 0 for one in charges), turns)
