"""Budgets and charges in rows. A budget's row is locked while its charges are counted: requests at once wait for it."""

from collections.abc import Mapping, Sequence
from typing import Final

from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetState, Charge, session_scope
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.tables import budgets as budgets_table
from soong.shared.storage.sql.engine.transaction import Row, Transaction
from soong.shared.storage.sql.engine.upsert import upsert

OF_RUN: Final = Statement(
    "budgets of a run: of its session and of the day; those without are unlimited",
    """
    SELECT scope FROM budgets WHERE scope = 'day'
    UNION ALL
    SELECT scope FROM budgets WHERE scope = (SELECT 'session:' || session_id FROM runs WHERE id = :run_id)
    """,
)
LOCKED: Final = Statement(
    "lock budgets: in one order, so that nobody waits for each other",
    "SELECT scope, tokens, microusd FROM budgets WHERE scope IN @scopes ORDER BY scope /*pg FOR UPDATE */",
)
SHOWN: Final = Statement("budgets", "SELECT scope, tokens, microusd FROM budgets WHERE scope IN @scopes ORDER BY scope")
_SUMS: Final = """
    SELECT c.is_open, coalesce(sum(c.tokens), 0), coalesce(sum(c.microusd), 0) FROM charges AS c
    WHERE {whose} AND (c.is_open = 0 OR EXISTS (
        SELECT 1 FROM runs AS r WHERE r.id = c.run_id AND r.status = 'running' AND r.fence = c.fence))
    GROUP BY c.is_open
"""
OF_SESSION: Final = Statement("charges of a session", _SUMS.format(whose="c.session_id = :session_id"))
OF_DAY: Final = Statement("charges of a day", _SUMS.format(whose="c.day = :day"))
RESERVE: Final = Statement(
    "reserve: charge a request of a run that is held",
    """
    INSERT INTO charges (run_id, fence, number, session_id, day, tokens, microusd, is_open)
    SELECT id, fence, CAST(:number AS bigint), session_id, CAST(:day AS text), CAST(:tokens AS bigint),
        CAST(:microusd AS bigint), 1
    FROM runs WHERE id = :run_id AND fence = :fence AND status = 'running' RETURNING number
    """,
)
SETTLE: Final = Statement(
    "settle: what a request has used",
    """
    UPDATE charges SET tokens = :tokens, microusd = :microusd, is_open = 0
    WHERE run_id = :run_id AND fence = :fence AND number = :number AND EXISTS (
        SELECT 1 FROM runs AS r WHERE r.id = charges.run_id AND r.status = 'running' AND r.fence = charges.fence)
    RETURNING number
    """,
)


class SqlBudgets:
    """The budget part of the store."""

    _database: Database

    async def set_budget(self, scope: str, budget: Budget) -> None:
        await self._database.write(lambda tx: _set_budget(tx, scope, budget))

    async def budgets(self, scopes: Sequence[str], *, day: str) -> Mapping[str, BudgetState]:
        return await self._database.read(lambda tx: _states(tx, SHOWN, sorted(scopes), day))

    async def reserve(self, run_id: str, fence: int, number: int, charge: Charge, *, day: str) -> float | None:
        # Most runs have no budget: that costs one read.
        concerned = await self._database.read(lambda tx: tx.rows(OF_RUN, run_id=run_id))
        if not concerned:
            return None
        scopes = [row[0] for row in concerned]
        return await self._database.write(lambda tx: _reserve(tx, scopes, (run_id, fence, number), charge, day))

    async def settle(self, run_id: str, fence: int, number: int, charge: Charge) -> None:
        def write(tx: Transaction) -> None:
            of_request = {"run_id": run_id, "fence": fence, "number": number}
            if not tx.rows(SETTLE, tokens=charge.tokens, microusd=charge.microusd, **of_request):
                raise LeaseLostError(run_id, fence)

        await self._database.write(write)


def _set_budget(tx: Transaction, scope: str, budget: Budget) -> None:
    if budget.is_unlimited:
        tx.execute(budgets_table.delete().where(budgets_table.c.scope == scope))
        return
    limits = {"tokens": budget.tokens, "microusd": budget.microusd}
    new = upsert(tx, budgets_table).values(scope=scope, **limits)
    tx.execute(new.on_conflict_do_update(index_elements=["scope"], set_=limits))


def _states(tx: Transaction, read: Statement, scopes: Sequence[str], day: str) -> dict[str, BudgetState]:
    return {row[0]: _state(tx, row, day) for row in tx.rows(read, scopes=scopes)}


def _reserve(
    tx: Transaction, scopes: Sequence[str], request: tuple[str, int, int], charge: Charge, day: str
) -> float | None:
    run_id, fence, number = request
    states = _states(tx, LOCKED, scopes, day)
    for state in states.values():
        state.check(charge)
    new = {"run_id": run_id, "fence": fence, "number": number, "day": day}
    if not tx.rows(RESERVE, tokens=charge.tokens, microusd=charge.microusd, **new):
        raise LeaseLostError(run_id, fence)
    return max((_with(state, charge).share for state in states.values()), default=None)


def _with(state: BudgetState, charge: Charge) -> BudgetState:
    held = state.reserved
    reserved = Charge(held.tokens + charge.tokens, (held.microusd or 0) + (charge.microusd or 0))
    return BudgetState(state.scope, state.budget, state.used, reserved)


def _state(tx: Transaction, row: Row, day: str) -> BudgetState:
    scope, tokens, microusd = row[:3]
    if scope == DAY:
        sums = tx.rows(OF_DAY, day=day)
    else:
        sums = tx.rows(OF_SESSION, session_id=scope.removeprefix(session_scope("")))
    charged = {is_open: Charge(int(used), int(money)) for is_open, used, money in sums}
    return BudgetState(scope, Budget(tokens, microusd), charged.get(0, Charge()), charged.get(1, Charge()))
