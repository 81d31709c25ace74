"""The tables, their constraints and their indexes: what a database of ours looks like at its head.

Instants are integer microseconds (``_us``), JSON is text, truth is 0 or 1. ``ordinal`` is the order of insertion. The
partial indexes hold live rows only, so that no hot statement grows with what has ended; the checks are the last line
behind the status tables in :mod:`soong.shared.engine.tasks.status` and :mod:`soong.shared.engine.runs.status`.
"""

from soong.shared.storage.sql.engine.tables.base import DUE, LEASED, READY, ROOM, TASK_OVER, UNSETTLED, UNTOLD, metadata
from soong.shared.storage.sql.engine.tables.consent import (
    answers,
    consumptions,
    decisions,
    key_retirements,
    permission_requests,
    signing_keys,
)
from soong.shared.storage.sql.engine.tables.feed import event_consumers, event_cursors, metric_totals, notices
from soong.shared.storage.sql.engine.tables.processes import commands, owners, responders, sessions, workers
from soong.shared.storage.sql.engine.tables.records import api_tokens, artifacts, audit, reports
from soong.shared.storage.sql.engine.tables.runs import (
    budgets,
    call_aborts,
    calls,
    charges,
    events,
    nodes,
    runs,
    surfaces,
    waits,
)
from soong.shared.storage.sql.engine.tables.work import concurrency_limits, steps, tasks

__all__ = [
    "DUE",
    "LEASED",
    "READY",
    "ROOM",
    "TASK_OVER",
    "UNSETTLED",
    "UNTOLD",
    "answers",
    "api_tokens",
    "artifacts",
    "audit",
    "budgets",
    "call_aborts",
    "calls",
    "charges",
    "commands",
    "concurrency_limits",
    "consumptions",
    "decisions",
    "event_consumers",
    "event_cursors",
    "events",
    "key_retirements",
    "metadata",
    "metric_totals",
    "nodes",
    "notices",
    "owners",
    "permission_requests",
    "reports",
    "responders",
    "runs",
    "sessions",
    "signing_keys",
    "steps",
    "surfaces",
    "tasks",
    "waits",
    "workers",
]
