"""Figures for operators, on a connection of their own: reading them waits for no work, nor work for it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import URL

from soong.shared.core.errors import InvalidConfigError
from soong.shared.engine.tasks.metrics import LimitUsage, Metrics, PoolMetrics, WorkerLoad
from soong.shared.engine.tasks.spec import ClaimMode
from soong.shared.engine.tasks.step import NO_LIMIT
from soong.shared.storage.sql.claims.claiming import LANES, LIVE_LEASES, lanes_of, room_left
from soong.shared.storage.sql.engine.engine import driver_error, make_engine, our_errors
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction

T = TypeVar("T")

_NOT_ALLOWED: Final = "42501"  # PostgreSQL's insufficient_privilege

COUNTED: Final = 100_000
"""How far ready steps of a lane are counted: nobody needs to know of more, and counting takes time."""

# No join: a reader has no settings that keep the planner from reading all that has ended for one.
NEXT_IN_LINE: Final = Statement(
    "next in line: by pool, since when the next step of each lane and priority has waited: since a worker's end opened "
    "it, or since the last event of its log",
    """
    WITH RECURSIVE lane(lane) AS (
        SELECT min(lane) FROM steps WHERE status = 'ready' AND is_paused = 0
        UNION ALL
        SELECT (SELECT min(s.lane) FROM steps s WHERE s.status = 'ready' AND s.is_paused = 0 AND s.lane > lane.lane)
        FROM lane WHERE lane.lane IS NOT NULL
    ), level(lane, is_unparked, priority) AS (
        SELECT lane.lane, kind.is_unparked,
               (SELECT max(s.priority) FROM steps s WHERE s.lane = lane.lane AND s.is_unparked = kind.is_unparked
                AND s.status = 'ready' AND s.is_paused = 0)
        FROM lane CROSS JOIN (SELECT 0 AS is_unparked UNION ALL SELECT 1) AS kind WHERE lane.lane IS NOT NULL
        UNION ALL
        SELECT level.lane, level.is_unparked,
               (SELECT max(s.priority) FROM steps s WHERE s.lane = level.lane AND s.is_unparked = level.is_unparked
                AND s.status = 'ready' AND s.is_paused = 0 AND s.priority < level.priority)
        FROM level WHERE level.priority IS NOT NULL
    )
    SELECT waiting.pool, min(coalesce(waiting.ready_us, (
        SELECT event.time_us FROM events AS event
        WHERE event.run_id = waiting.run_id AND event.seq = (SELECT last_seq FROM runs WHERE id = waiting.run_id)
    ), (SELECT created_us FROM runs WHERE id = waiting.run_id)))
    FROM (
        SELECT (SELECT s.pool FROM steps s WHERE s.lane = level.lane AND s.is_unparked = level.is_unparked
                AND s.priority = level.priority AND s.status = 'ready' AND s.is_paused = 0
                ORDER BY s.ordinal LIMIT 1) AS pool,
               (SELECT s.run_id FROM steps s WHERE s.lane = level.lane AND s.is_unparked = level.is_unparked
                AND s.priority = level.priority AND s.status = 'ready' AND s.is_paused = 0
                ORDER BY s.ordinal LIMIT 1) AS run_id,
               (SELECT CASE WHEN s.starts = 0 THEN s.ready_us END FROM steps s
                WHERE s.lane = level.lane AND s.is_unparked = level.is_unparked
                AND s.priority = level.priority AND s.status = 'ready' AND s.is_paused = 0
                ORDER BY s.ordinal LIMIT 1) AS ready_us,
               (SELECT s.claim_mode FROM steps s WHERE s.lane = level.lane AND s.status = 'ready' AND s.is_paused = 0
                LIMIT 1) AS claim_mode
        FROM level WHERE level.priority IS NOT NULL
    ) AS waiting WHERE waiting.claim_mode = 'assigned'
    GROUP BY waiting.pool
    """,
)
QUESTIONS: Final = Statement(
    "questions: how many wait for consent, and since when",
    "SELECT count(*), min(created_us) FROM permission_requests WHERE state = 'pending'",
)
LOST_LEASES: Final = Statement(
    "lost leases: of the steps of open tasks, and how many of these there are",
    """
    SELECT count(*), coalesce(sum(
        (SELECT sum(steps.lost_leases) FROM steps WHERE steps.task_id = tasks.id)
    ), 0) FROM tasks WHERE status IN ('running', 'paused')
    """,
)
BESIDE: Final = Statement(
    "additional: by pool, the steps that are held in addition to others and take no slot",
    """
    SELECT pool, count(*) FROM steps WHERE holder_run_id <> '' AND status = 'running' GROUP BY pool
    """,
)
PARKED_NOW: Final = Statement(
    "parked now: how many steps wait for consent without a slot",
    "SELECT count(*) FROM steps WHERE session_id > '' AND status = 'blocked'",
)
HOLDINGS: Final = Statement(
    "holdings: every leased step, and why it is to end, if it is; steps that left threads behind",
    """
    SELECT worker_id, run_id, key, title, attempt, session_id, started_us,
           coalesce(spec /*pg ::json */ ->> 'call', ''),
           CASE WHEN error IS NOT NULL THEN 'timed out' WHEN cancel_reason IS NOT NULL THEN 'cancelled'
                WHEN is_paused = 1 THEN 'paused' ELSE '' END,
           progress
    FROM steps
    WHERE status = 'running'
    UNION ALL
    SELECT id, '', left_over, '', 0, '', NULL, '', 'completed', '' FROM workers
    WHERE state <> 'gone' AND left_over <> ''
    """,
)

SHOWN_LIMITS: Final = Statement(
    "shown concurrency limits: those of a deployment, and those of sessions with open tasks",
    f"""
    SELECT scope, slots, is_paused FROM concurrency_limits
    WHERE substr(scope, 1, 8) <> 'session:' AND (slots < {NO_LIMIT} OR is_paused = 1)
    UNION
    SELECT concurrency_limits.scope, concurrency_limits.slots, is_paused FROM tasks JOIN concurrency_limits ON
    concurrency_limits.scope = 'session:' || tasks.session_id WHERE tasks.status IN ('running', 'paused')
      AND (slots < {NO_LIMIT} OR is_paused = 1)
    """,  # noqa: S608  # a number
)


class SqlMetrics:
    """Implements :class:`soong.shared.engine.tasks.metrics.MetricsSource`. Safe from any loop and thread; close it
    once.
    """

    def __init__(self, url: URL) -> None:
        self._engine = make_engine(url, size=1, is_writer=False)

    async def metrics(self) -> Metrics:
        return await asyncio.to_thread(self._read, _metrics)

    async def parked(self) -> int:
        return await asyncio.to_thread(self._read, lambda tx: int(tx.rows(PARKED_NOW)[0][0]))

    async def holdings(self) -> Sequence[WorkerLoad]:
        found = await asyncio.to_thread(self._read, lambda tx: [WorkerLoad(*row) for row in tx.rows(HOLDINGS)])
        return sorted(found, key=lambda one: (one.worker_id, one.started_us or 0))

    async def concurrency_limits(self) -> Sequence[LimitUsage]:
        return await asyncio.to_thread(self._read, _concurrency_limits)

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.dispose)

    def _read(self, function: Callable[[Transaction], T]) -> T:
        with our_errors():
            try:
                with self._engine.connect() as connection, connection.begin():
                    return function(Transaction(connection))
            except Exception as error:
                # The next look takes a new connection, whatever the error.
                self._engine.dispose()
                if getattr(driver_error(error), "sqlstate", None) == _NOT_ALLOWED:
                    raise InvalidConfigError(
                        "this database role may not read the metrics; use the orchestrator's SOONG_DATABASE_URL"
                    ) from error
                raise


def _metrics(tx: Transaction) -> Metrics:
    lanes, _ = lanes_of(tx.rows(LANES, most=COUNTED), tuple(ClaimMode))
    oldest: dict[str, int] = dict(tx.rows(NEXT_IN_LINE))
    ready, pulled, running = Counter[str](), Counter[str](), Counter[str]()
    for lane in lanes:
        (pulled if lane.claim_mode is ClaimMode.PULL else ready)[lane.pool] += lane.ready
    for *_, pool, number in tx.rows(LIVE_LEASES):
        running[pool] += max(number, 0)
    for pool, number in tx.rows(BESIDE):
        running[pool] -= number
    questions, oldest_question = tx.rows(QUESTIONS)[0]
    open_tasks, lost = tx.rows(LOST_LEASES)[0]
    pools = {
        pool: PoolMetrics(ready[pool], running[pool], oldest.get(pool), pulled[pool])
        for pool in sorted(ready.keys() | pulled.keys() | running.keys())
    }
    return Metrics(pools, questions, oldest_question, int(lost), open_tasks)


def _concurrency_limits(tx: Transaction) -> list[LimitUsage]:
    rows = sorted(map(tuple, tx.rows(SHOWN_LIMITS)))
    room = room_left({scope: slots for scope, slots, _ in rows}, tx.rows(LIVE_LEASES))
    return [
        LimitUsage(scope, 0 if slots == NO_LIMIT else slots, slots - room[scope], bool(is_paused))
        for scope, slots, is_paused in rows
    ]
