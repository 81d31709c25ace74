"""The budget part of the store in memory."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.budgets import (
    DAY,
    LIMIT_ENDS,
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
from soong.shared.engine.runs.record import RunStatus
from soong.shared.engine.tasks.spec import STEP_ENDS, StepStatus
from tests.model.memory.logs import held_run
from tests.model.memory.rows import ChargeRow, Part, transaction


class MemoryBudgets(Part):
    """Budgets by scope, charges by request. The part that :class:`BudgetStore` describes."""

    @transaction
    def set_budget(self, scope: str, budget: Budget) -> None:
        self.rows.budgets.pop(scope, None)
        if not budget.is_unlimited:
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
