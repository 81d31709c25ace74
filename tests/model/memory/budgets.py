"""The budget part of the store in memory."""

import threading
from collections.abc import Mapping, Sequence

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetState, Charge, session_scope
from soong.shared.engine.runs.status import RunStatus
from tests.model.memory.logs import held_run
from tests.model.memory.rows import ChargeRow, Rows, transaction


class MemoryBudgets:
    """Budgets by scope, charges by request. The part that :class:`BudgetStore` describes."""

    def __init__(self, rows: Rows, lock: threading.RLock) -> None:
        self.rows = rows
        self.lock = lock

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
        session_id = self.rows.run(run_id).identity.session_id
        scopes = [scope for scope in (DAY, session_scope(session_id)) if scope in self.rows.budgets]
        if not scopes:
            return None
        for scope in scopes:
            self._state(scope, day).check(charge)
        held_run(self.rows, run_id, fence)
        self.rows.charges[run_id, fence, number] = ChargeRow(session_id, day, charge, is_open=True)
        return max(self._state(scope, day).share for scope in scopes)

    @transaction
    def settle(self, run_id: str, fence: int, number: int, charge: Charge) -> None:
        held_run(self.rows, run_id, fence)
        key = (run_id, fence, number)
        if key not in self.rows.charges:
            raise LeaseLostError(run_id, fence)
        old = self.rows.charges[key]
        self.rows.charges[key] = ChargeRow(old.session_id, old.day, charge, is_open=False)

    def _state(self, scope: str, day: str) -> BudgetState:
        of_scope = [
            (key, one)
            for key, one in self.rows.charges.items()
            if (one.day == day if scope == DAY else session_scope(one.session_id) == scope)
        ]
        used = [one.charge for _, one in of_scope if not one.is_open]
        reserved = [one.charge for key, one in of_scope if one.is_open and self._is_held(key[0], key[1])]
        return BudgetState(scope, self.rows.budgets[scope], _sum(used), _sum(reserved))

    def _is_held(self, run_id: str, fence: int) -> bool:
        run = self.rows.run(run_id)
        return run.status is RunStatus.RUNNING and run.fence == fence


def _sum(charges: Sequence[Charge]) -> Charge:
    return Charge(sum(one.tokens for one in charges), sum(one.microusd or 0 for one in charges))
