"""Sums of what runs have used, made by the database (DIS-11)."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from soong.shared.core import timing
from soong.shared.core.clock import utc_date
from soong.shared.engine.runs.record import UnsummedUsage, UsageBy, UsageTotal
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.statements import Statement

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


class SqlUsageSums:
    """The part of the run store that adds up."""

    _database: Database

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
