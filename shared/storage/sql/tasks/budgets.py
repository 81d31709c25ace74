"""Budgets and charges in rows. A budget's row is locked while its charges are counted: requests at once wait for it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Final

from msgspec.structs import replace

from soong.shared.core import timing
from soong.shared.core.errors import LeaseLostError
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
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal
from soong.shared.storage.sql.claims.store_part import StorePart
from soong.shared.storage.sql.engine.row_mapper import unpack
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Row, Transaction

OF_RUN: Final = Statement(
    "budgets of a run: of its session, of its task and of the day; those without are unlimited",
    """
    SELECT scope FROM budgets WHERE scope = 'day'
    UNION ALL
    SELECT scope FROM budgets WHERE scope = (SELECT 'session:' || session_id FROM runs WHERE id = :run_id)
    UNION ALL
    SELECT scope FROM budgets WHERE scope = (SELECT 'task:' || task_id FROM runs WHERE id = :run_id)
    """,
)
_STATE: Final = """
    SELECT scope, tokens, microusd, turns, wall_us, CASE WHEN wall_us IS NOT NULL THEN {started} END
    FROM budgets AS b WHERE scope IN @scopes ORDER BY scope
"""
_STARTED: Final = """(
    SELECT min(first.started_us) FROM runs AS first WHERE first.task_id = substr(b.scope, 6) AND first.step_key <> ''
      AND first.started_us >= coalesce(b.since_us, 0))"""
LOCKED: Final = Statement(
    "lock budgets: in one order, so that nobody waits for each other", _STATE.format(started="0") + "/*pg FOR UPDATE */"
)
SHOWN: Final = Statement("budgets", _STATE.format(started=_STARTED))
_TIME_OF_TASK: Final = """
    SELECT b.wall_us, b.stopped, CASE WHEN b.wall_us IS NOT NULL THEN {started} END FROM budgets AS b
    WHERE b.scope = :scope
"""
TIME_OF_TASK: Final = Statement(
    "time of a task: its limit, when it started, and why it was stopped", _TIME_OF_TASK.format(started=_STARTED)
)
_REACHED: Final = """
    SELECT s.error FROM steps AS s JOIN runs AS r ON r.id = s.run_id
    WHERE s.task_id = :task_id AND s.status = 'failed' AND r.end_reason IN ({ends})
"""
REACHED: Final = Statement(
    "reached: how steps of a task failed whose runs ended by a limit; its owner may not have looked at them yet",
    _REACHED.format(ends=", ".join(f"'{end}'" for end in LIMIT_ENDS)),
)
_STOPPED_TASKS: Final = """
    SELECT t.session_id, t.id, b.stopped, b.wall_us FROM budgets AS b
    JOIN tasks AS t ON t.id = substr(b.scope, 6) JOIN sessions AS s ON s.id = t.session_id
    WHERE substr(b.scope, 1, 5) = 'task:' AND t.status IN ('running', 'paused') AND s.owner_id = :owner_id
      AND (b.stopped IS NOT NULL OR (b.wall_us IS NOT NULL AND {started} + b.wall_us <= :now_us))
      AND (SELECT 1 FROM steps WHERE steps.task_id = t.id
           AND steps.status IN ('pending', 'ready', 'blocked', 'expanding', 'waiting') LIMIT 1) IS NOT NULL
"""
"""With a limit, the look at the steps remains one for each task: PostgreSQL would begin with the steps of all."""
STOPPED_TASKS: Final = Statement(
    "stopped tasks: open ones of an owner that have reached a limit, with steps that nobody holds",
    _STOPPED_TASKS.format(started=_STARTED),
)
_SUMS: Final = """
    SELECT is_held, coalesce(sum(tokens), 0), coalesce(sum(microusd), 0),
        coalesce(sum(CASE WHEN is_open = is_held THEN turns END), 0)
    FROM (
        SELECT c.tokens, c.microusd, c.turns, c.is_open, CASE WHEN c.is_open = 1 AND EXISTS (
            SELECT 1 FROM runs AS r WHERE r.id = c.run_id AND r.status = 'running' AND r.fence = c.fence
        ) THEN 1 ELSE 0 END AS is_held FROM charges AS c WHERE {whose}
    ) AS counted GROUP BY is_held
"""
"""An open charge whose holder is gone counts as used, at its estimate; its turns are those of the next holder."""
OF_SESSION: Final = Statement("charges of a session", _SUMS.format(whose="c.session_id = :session_id"))
OF_DAY: Final = Statement("charges of a day", _SUMS.format(whose="c.day = :day"))
_OF_TASK: Final = """
    c.session_id = (SELECT session_id FROM tasks WHERE id = :task_id)
      AND (SELECT task_id FROM runs AS own WHERE own.id = c.run_id) = :task_id"""
OF_TASK: Final = Statement("charges of a task, among those of its session", _SUMS.format(whose=_OF_TASK))
SET_BUDGET: Final = Statement(
    "set budget: what a scope may use",
    """
    INSERT INTO budgets (scope, tokens, microusd, turns, wall_us)
    VALUES (:scope, :tokens /*pg ::bigint */, :microusd /*pg ::bigint */, :turns /*pg ::bigint */,
            :wall_us /*pg ::bigint */)
    ON CONFLICT (scope) DO UPDATE SET tokens = excluded.tokens, microusd = excluded.microusd, turns = excluded.turns,
        wall_us = excluded.wall_us
    """,
)
DROP_BUDGET: Final = Statement("drop budget: a scope has no limit", "DELETE FROM budgets WHERE scope = :scope")
RESERVE: Final = Statement(
    "reserve: charge a request of a run that is held",
    """
    INSERT INTO charges (run_id, fence, number, session_id, day, tokens, microusd, is_open, turns)
    SELECT id, fence, CAST(:number AS bigint), session_id, CAST(:day AS text), CAST(:tokens AS bigint),
        CAST(:microusd AS bigint), 1, CAST(:turns AS bigint)
    FROM runs WHERE id = :run_id AND fence = :fence AND status = 'running' RETURNING number
    """,
)
SETTLE: Final = Statement(
    "settle: what a request has used",
    """
    UPDATE charges SET tokens = :tokens, microusd = :microusd, is_open = 0,
        turns = CASE WHEN turns IS NULL THEN NULL ELSE CAST(:turns AS bigint) END
    WHERE run_id = :run_id AND fence = :fence AND number = :number AND EXISTS (
        SELECT 1 FROM runs AS r WHERE r.id = charges.run_id AND r.status = 'running' AND r.fence = charges.fence)
    RETURNING number
    """,
)

_PARTS_OF_USD: Final = 10**12
"""SQLite has no decimal numbers: costs are integers of this part of a dollar."""
_COUNT: Final = r":\d{1,15},"
_ONE: Final = (
    rf'\{{"requests"{_COUNT}"input_tokens"{_COUNT}"output_tokens"{_COUNT}"tool_calls"{_COUNT}"cached_tokens"{_COUNT}'
    r'"cost_usd":(null|"\d{1,6}(\.\d{1,60})?(E-\d\d?)?")'
)
_FORM: Final = rf'^{_ONE}(,"by_model":\{{("[^"\\]*":{_ONE}\}},?)+\}})?\}}$'
"""How a usage is written. PostgreSQL looks at it: a cast of what a worker wrote instead would fail for all."""

USED: Final = Statement(
    "used: sums over the runs of agents that were made since then, of one session or all, by what is asked for",
    rf"""
    WITH used AS (
        SELECT CASE :by WHEN 'day' THEN CAST(created_us / {timing.DAY_US} AS TEXT) WHEN 'session' THEN session_id
                        WHEN 'task' THEN task_id WHEN 'agent' THEN definition ELSE model END AS key, usage
        FROM runs
        WHERE usage LIKE '{{"requests":%' AND usage NOT LIKE '{{"requests":0,%' AND created_us >= :since_us
          AND (:session_id = '' OR session_id = :session_id) /*pg AND usage ~ '{_FORM}' */
    ), part AS (
        SELECT key, usage FROM used WHERE :by <> 'model' OR usage NOT LIKE '%"by_model"%'
        UNION ALL
        SELECT model.key, model.value /*pg ::text */
        FROM used, json_each(FIELD by_model OF used.usage /*pg ::json */) AS model WHERE :by = 'model'
    ), numbers AS (
        SELECT key, CAST(FIELD requests OF part.usage AS BIGINT) AS requests,
            CAST(FIELD input_tokens OF part.usage AS BIGINT) AS input_tokens,
            CAST(FIELD cached_tokens OF part.usage AS BIGINT) AS cached_tokens,
            CAST(FIELD output_tokens OF part.usage AS BIGINT) AS output_tokens,
            CAST(FIELD tool_calls OF part.usage AS BIGINT) AS tool_calls,
            CAST(round(CAST(FIELD cost_usd OF part.usage AS NUMERIC) * {_PARTS_OF_USD}) AS BIGINT) AS cost
        FROM part
    )
    SELECT key, count(*), sum(requests), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(tool_calls),
           coalesce(sum(cost), 0), count(*) - count(cost)
    FROM numbers GROUP BY key
    """,  # noqa: S608  # our words
)


UNSUMMED: Final = Statement(
    "unsummed: runs of agents that have not ended, and open charges whose holder is gone",
    """
    WITH made AS (
        SELECT id, status, fence, model FROM runs
        WHERE created_us >= :since_us AND (:session_id = '' OR session_id = :session_id)
    )
    SELECT (SELECT count(*) FROM made WHERE status IN ('running', 'parked') AND model <> ''),
        count(*), coalesce(sum(c.tokens), 0), coalesce(sum(c.microusd), 0)
    FROM charges AS c JOIN made ON made.id = c.run_id
    WHERE c.is_open = 1 AND NOT (made.status = 'running' AND made.fence = c.fence)
    """,
)


class SqlBudgetStore(StorePart):
    """Implements :class:`soong.shared.engine.runs.budgets.BudgetStore`."""

    async def set_budget(self, scope: str, budget: Budget) -> None:
        await self._database.write(lambda tx: _set_budget(tx, scope, budget))

    async def budgets(self, scopes: Sequence[str], *, day: str) -> Mapping[str, BudgetState]:
        return await self._database.read(
            lambda tx: {row[0]: _state(tx, row, day) for row in tx.rows(SHOWN, scopes=sorted(scopes))}
        )

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
            used = {"tokens": charge.tokens, "microusd": charge.microusd, "turns": charge.turns}
            if not tx.rows(SETTLE, **used, **of_request):
                raise LeaseLostError(run_id, fence)

        await self._database.write(write)

    async def task_time(self, task_id: str) -> TaskTime | None:
        return await self._database.read(lambda tx: _task_time(tx, task_id))

    async def stopped_tasks(self, owner_id: str, *, now_us: int) -> Sequence[StoppedTask]:
        found = await self._database.read(lambda tx: tx.rows(STOPPED_TASKS, owner_id=owner_id, now_us=now_us))
        return [
            StoppedTask(session_id, task_id, stopped or time_words(wall_us))
            for session_id, task_id, stopped, wall_us in found
        ]


def _set_budget(tx: Transaction, scope: str, budget: Budget) -> None:
    if budget == NO_BUDGET:
        tx.count(DROP_BUDGET, scope=scope)
        return
    limits = {"tokens": budget.tokens, "microusd": budget.microusd, "turns": budget.turns, "wall_us": budget.wall_us}
    tx.count(SET_BUDGET, scope=scope, **limits)


def _reserve(
    tx: Transaction, scopes: Sequence[str], request: tuple[str, int, int], charge: Charge, day: str
) -> float | None:
    run_id, fence, number = request
    states = [_state(tx, row, day) for row in tx.rows(LOCKED, scopes=scopes)]
    for state in states:
        state.check(charge)
    turns = charge.turns if any(scope.startswith(task_scope("")) for scope in scopes) else None
    new = {"run_id": run_id, "fence": fence, "number": number, "day": day, "turns": turns}
    if not tx.rows(RESERVE, tokens=charge.tokens, microusd=charge.microusd, **new):
        raise LeaseLostError(run_id, fence)
    return max((_with(state, charge).share for state in states), default=None)


def _with(state: BudgetState, charge: Charge) -> BudgetState:
    held = state.reserved
    reserved = Charge(held.tokens + charge.tokens, (held.microusd or 0) + (charge.microusd or 0))
    return replace(state, reserved=reserved)


def _state(tx: Transaction, row: Row, day: str) -> BudgetState:
    scope, tokens, microusd, turns, wall_us, started_us = row
    if scope == DAY:
        sums = tx.rows(OF_DAY, day=day)
    elif scope.startswith(task_scope("")):
        sums = tx.rows(OF_TASK, task_id=scope.removeprefix(task_scope("")))
    else:
        sums = tx.rows(OF_SESSION, session_id=scope.removeprefix(session_scope("")))
    charged = {is_open: Charge(int(used), int(money), int(count)) for is_open, used, money, count in sums}
    budget = Budget(tokens, microusd, turns, wall_us)
    return BudgetState(scope, budget, charged.get(0, Charge()), charged.get(1, Charge()), started_us)


def _task_time(tx: Transaction, task_id: str) -> TaskTime | None:
    rows = tx.rows(TIME_OF_TASK, scope=task_scope(task_id))
    if not rows:
        return None
    wall_us, stopped, started_us = rows[0]
    deadline_us = None if wall_us is None or started_us is None else started_us + wall_us
    return TaskTime(wall_us, deadline_us, stopped or _reached(tx.column(REACHED, task_id=task_id)))


def _reached(errors: Sequence[str | None]) -> str:
    """Return the words of the first failure by a limit of the task; its runs have limits of their own, too."""
    for text in filter(None, errors):
        with suppress(ValueError):  # some worker wrote it
            error = unpack(text)
            if isinstance(error, dict) and error.get("type") == TASK_LIMIT:
                return str(error.get("message", ""))
    return ""


class SqlUsageSums(StorePart):
    """The part of the run store that adds up."""

    async def usage_totals(self, by: UsageBy, *, since_us: int = 0, session_id: str = "") -> Sequence[UsageTotal]:
        wanted = {"by": by.value, "since_us": since_us, "session_id": session_id}
        rows = await self._database.read(lambda tx: tx.rows(USED, **wanted))
        return [_total(by, *row) for row in rows]

    async def unsummed_usage(self, *, since_us: int = 0, session_id: str = "") -> UnsummedUsage:
        (row,) = await self._database.read(lambda tx: tx.rows(UNSUMMED, since_us=since_us, session_id=session_id))
        return UnsummedUsage(*map(int, row))


def _total(by: UsageBy, key: str, *numbers: int) -> UsageTotal:
    *counts, cost, unpriced = map(int, numbers)  # PostgreSQL's sums are of no whole type
    day = utc_date(int(key) * timing.DAY_US) if by is UsageBy.DAY else key
    runs, requests, read, cached, written, calls = counts
    return UsageTotal(day, runs, requests, read, cached, written, calls, Decimal(cost) / _PARTS_OF_USD, unpriced)
