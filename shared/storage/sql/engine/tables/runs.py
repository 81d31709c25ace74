"""Runs: their logs, the ledger of their calls, and what they may use."""

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text

from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.status import EndReason, RunStatus
from soong.shared.engine.runs.store import CallStatus
from soong.shared.storage.sql.engine.columns import Big as _Big
from soong.shared.storage.sql.engine.columns import by_dialect as _by_dialect
from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import instant_column as _instant
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import sqlite_checks as _sqlite_checks
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import ROOM, metadata

runs = Table(
    "runs",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, nullable=False, index=True),
    _text("agent_id"),
    _text("role", None),
    _text("definition"),
    _text("parent_run_id"),
    _text("parent_agent_id"),
    _text("task_id"),
    _text("step_key"),
    _text("step_title"),
    _text("model"),
    # Who had it made; a foreign one is served by no consent of its session (shared/core/identity.py).
    _text("dispatched_by"),
    _number("is_foreign"),
    _text("surface"),
    _text("token"),
    _number("attempt", 1),
    _text("retry_of"),
    _number("created_us"),
    _text("worker_id"),
    _number("fence"),
    _instant("started_us"),
    _number("last_seq"),
    _text("status", None),
    _number("last_node"),
    # When the first call ended with which it had itself read what strangers wrote; never changed afterwards (PER-21).
    _instant("tainted_us"),
    _instant("ended_us"),
    Column("end_reason", Text),
    _text("usage", "{}"),
    *_sqlite_checks(
        _one_of("status", RunStatus),
        _one_of("end_reason", EndReason),
        _flag("is_foreign"),
        CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name="end"),
        _ranges("counters", "fence", "last_seq", "last_node"),
        _ranges("instants", "started_us", "ended_us", "tainted_us"),
    ),
    Index("ix_runs_task", "task_id"),
    **ROOM,
)

budgets = Table(
    # What a session, a task, or all in a day, may use (DIS-07, DIS-11). Locked while its charges are counted.
    "budgets",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("tokens", _Big),
    Column("microusd", _Big),
    # Of tasks alone, as what follows.
    Column("turns", _Big),
    Column("wall_us", _Big),
    # When the task was tried again: its time starts with the first step after that. Null: never.
    _instant("since_us"),
    # Why the task was stopped that has reached a limit. Null: it has not.
    Column("stopped", Text),
    _ranges("limits", "tokens", "microusd", "turns", "wall_us", "since_us"),
    Index("ix_budgets_tasks", "scope", **_where("substr(scope, 1, 5) = 'task:'")),
)

charges = Table(
    # Model requests that count against budgets: an estimate while open, then what was used.
    "charges",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    _number("fence", None),
    _number("number", None),
    _text("session_id", None),
    _text("day", None),
    _number("tokens", None),
    Column("microusd", _Big),
    _number("is_open", None),
    # Model turns; null where no task's limits concern the run.
    Column("turns", _Big),
    PrimaryKeyConstraint("run_id", "fence", "number"),
    _flag("is_open"),
    _ranges("numbers", "fence", "number", "tokens", "microusd", "turns"),
    Index("ix_charges_session", "session_id"),
    Index("ix_charges_day", "day"),
)

surfaces = Table(
    # A run's tool set with its explanation, by digest: hundreds of runs share one.
    "surfaces",
    metadata,
    Column("digest", Text, primary_key=True),
    _text("body", None),
)

events = Table(
    "events",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("seq", _Big, nullable=False),
    _text("type", None),
    _number("time_us", None),
    _text("data", "{}"),
    # Events of the same write before this one, whose numbers end at seq - 1: [[type, time, data], …], or empty.
    _text("preceding"),
    PrimaryKeyConstraint("run_id", "seq"),
    CheckConstraint("seq >= 1", name="seq"),
    _ranges("numbers", "seq", "time_us"),
    **_by_dialect(sqlite_with_rowid=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("run_id", Text, nullable=False),
    Column("number", _Big, nullable=False),
    _number("parent", None),
    _text("kind", None),
    _text("payload", "{}"),
    _number("created_us", None),
    # Nodes of the same write before this one, whose numbers end at number - 1: [[parent, kind, payload], …], or empty.
    # A parent of null is the node before.
    _text("preceding"),
    PrimaryKeyConstraint("run_id", "number"),
    _one_of("kind", NodeKind),
    CheckConstraint("number >= 1 AND parent >= 0 AND parent < number", name="number"),
    _ranges("numbers", "number", "created_us"),
)

calls = Table(
    "calls",
    metadata,
    _text("run_id", None),
    Column("tool_call_id", Text, nullable=False),
    _number("position"),
    _text("tool", None),
    # Empty: that of its run and its id (shared/tools/ports.py).
    _text("effect_id"),
    _number("is_write"),
    _text("input_digest"),
    _text("inputs", "{}"),
    _text("facts", "{}"),
    _text("decision_id"),
    _text("status", "started"),
    Column("result", Text),
    PrimaryKeyConstraint("run_id", "tool_call_id"),
    _one_of("status", CallStatus),
    _flag("is_write"),
    _ranges("position", "position"),
)

call_aborts = Table(
    "call_aborts",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("tool_call_id", Text, nullable=False),
    _text("reason"),
    _number("created_us"),
    PrimaryKeyConstraint("run_id", "tool_call_id"),
)

waits = Table(
    "waits",
    metadata,
    Column("parent_run", Text, ForeignKey("runs.id"), nullable=False),
    Column("tool_call_id", Text, nullable=False),
    Column("child_run", Text, ForeignKey("runs.id"), nullable=False),
    PrimaryKeyConstraint("parent_run", "tool_call_id", "child_run"),
)
