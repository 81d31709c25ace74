"""Tasks with their steps, runs with their logs and the ledger of their calls, and what all of these may use."""

from typing import Final

from sqlalchemy import CheckConstraint, Index, PrimaryKeyConstraint, text

from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.record import EndReason, RunStatus
from soong.shared.engine.runs.store import CallStatus
from soong.shared.engine.tasks.spec import (
    ClaimMode,
    FailurePolicy,
    StepGate,
    StepKind,
    StepStatus,
    TaskKind,
    TaskStatus,
)
from soong.shared.engine.tasks.step import Outcome
from soong.shared.storage.sql.engine.columns import (
    MAKES,
    MAX_TEXT_CHARS,
    MAX_WORD_CHARS,
    MOVES,
    WRITES,
    by_dialect,
    choice,
    document,
    flag,
    identifier,
    instant,
    key,
    known_by,
    number,
    ordinal,
    partial,
    reference,
    table,
    word,
)

READY: Final = "status = 'ready' AND is_paused = 0"
TASK_OVER: Final = "status IN ('completed', 'failed', 'cancelled')"
UNSETTLED: Final = "status = 'failed' AND is_settled = 0"

_ROOM: Final = by_dialect(postgresql_with={"fillfactor": 30})
"""Free space for frequent updates: the next versions of rows fit on the page, and little of them is written ahead."""
_WITHOUT_ROWID: Final = by_dialect(sqlite_with_rowid=False)

tasks = table(
    "tasks",
    ordinal(),
    identifier(),
    reference("session_id", "sessions.id"),
    choice("kind", TaskKind, "plan"),
    word("title"),
    choice("status", TaskStatus, "running"),
    document("plan"),
    document("inputs"),
    word("root_run_id", None),
    number("created_us"),
    instant("ended_us"),
    word("reason"),
    # Whether the folders of its runs have been written since it ended.
    flag("is_recorded"),
    # The trace of its submitter that it belongs to (W3C trace context).
    word("trace_parent"),
    document("tags", "[]", kind="array"),
    Index("ix_tasks_session", "session_id", "ordinal"),
    partial("ix_tasks_unrecorded", "ordinal", where=f"is_recorded = 0 AND {TASK_OVER}"),
    partial("ix_tasks_open", "session_id", "ordinal", where="status IN ('running', 'paused')"),
    partial("ix_tasks_ended", "ended_us", "id", where=f"is_recorded = 1 AND {TASK_OVER}"),
)

steps = table(
    "steps",
    ordinal(),
    word("key", None, unique=True),
    # No foreign keys here and in runs, events and nodes: they are written by one program in the transaction of what
    # they belong to, and PostgreSQL would check them again at every claim.
    word("task_id", None),
    word("session_id", None),
    word("step_id", None),
    word("title"),
    choice("kind", StepKind),
    number("priority"),
    word("pool", "default"),
    document("needs", "[]", kind="array"),
    word("definition"),
    word("model"),
    # A digest of all that decides who may claim the step: steps of one lane are claimable together.
    word("lane", None),
    # A step that is pulled is never claimed by a claim loop; one that is a pull worker is no work of the plan's own.
    choice("claim_mode", ClaimMode, "assigned"),
    flag("is_pull_worker"),
    word("run_id"),
    number("attempt", 1),
    number("max_attempts", 1),
    choice("on_failure", FailurePolicy, "skip_dependents"),
    choice("gate", StepGate, "workers"),
    word("map_key"),
    number("item_index", is_null=True),
    # How often steps were made to depend on it after it was written: an end whose statement began before such a change
    # sees that it missed one.
    number("growths"),
    number("lost_leases", is_bounded=True),
    # Which worker lost it last and how that ended, for people.
    word("lost_to"),
    flag("is_settled", worker=MOVES),
    # A copy of the task's pause, so that a claim need not look at steps it may not take.
    flag("is_paused"),
    # Its run was parked and may go on: claimed before what has not begun. 0 again when it parks again.
    flag("is_unparked", worker=MOVES),
    word("cancel_reason", worker=MOVES, most=MAX_TEXT_CHARS, is_null=True),
    word("progress", worker=MOVES, most=MAX_TEXT_CHARS),
    # The run that holds or held it beside its own step; empty when its own run does.
    word("holder_run_id", worker=MOVES),
    instant("not_before_us"),
    # The columns that a step's progress changes lie together, in the order of the changes.
    number("open_deps", worker=MOVES),
    # When the end of another step made it ready (or a map due, or complete). A worker writes in no log but those of
    # runs that it holds, so the event is written with the claim, or by the owner.
    instant("ready_us", worker=MOVES),
    word("worker_id", worker=MOVES),
    number("fence", worker=MOVES),
    # How often this attempt was claimed: more than once means that its run is resumed. For an expanding step: how
    # often owners began to act on it.
    number("starts", worker=MOVES),
    instant("started_us", worker=MOVES),
    choice("status", StepStatus, "pending", worker=MOVES),
    instant("ended_us", worker=MOVES),
    choice("outcome", Outcome, worker=MOVES, is_null=True),
    document("error", worker=MOVES, most=MAX_TEXT_CHARS, is_null=True),
    document("output", worker=MOVES, kind="", is_null=True),
    document("spec"),
    # The ids of the steps that it depends on, in the plan's order, and of those that depend on it: lists, or null.
    # They may be long; being last, no read of other columns passes through them.
    document("depends_on", kind="array", is_null=True),
    document("dependents", kind="array", is_null=True),
    CheckConstraint("kind <> 'map' OR status NOT IN ('ready', 'running', 'blocked')", name="map_unclaimed"),
    CheckConstraint("status <> 'running' OR worker_id <> ''", name="lease_holder"),
    CheckConstraint("status NOT IN ('ready', 'running') OR open_deps = 0", name="unlocked"),
    partial("ix_steps_ready", "lane", text("is_unparked DESC"), text("priority DESC"), "ordinal", where=READY),
    partial("ix_steps_leased", "worker_id", where="status = 'running'"),
    partial("ix_steps_holder", "holder_run_id", where="holder_run_id <> ''"),
    partial("ix_steps_additional", "holder_run_id", where="holder_run_id <> '' AND status = 'running'"),
    partial("ix_steps_blocked", "session_id", where="status = 'blocked'"),
    partial("ix_steps_expanding", "session_id", where="status = 'expanding'"),
    partial("ix_steps_unsettled", "session_id", where=UNSETTLED),
    partial("ix_steps_due", "session_id", "not_before_us", where="status = 'pending' AND not_before_us IS NOT NULL"),
    partial("ix_steps_children", "map_key", "item_index", where="map_key <> ''"),
    partial("ix_steps_untold", "session_id", "task_id", where="kind = 'map' AND ready_us IS NOT NULL"),
    Index("ix_steps_task", "task_id", "status"),
    is_hot=True,
    options={"info": _ROOM["info"] | known_by("uq_steps_key", "steps")},
)

concurrency_limits = table(
    "concurrency_limits",
    key("scope"),
    # A worker locks it while it is counted, and never changes it.
    number("slots", None, worker=MOVES),
    # Nothing of its scope starts.
    flag("is_paused"),
    CheckConstraint("slots >= 1", name="slots"),
    # The concurrency limits of sessions stay with them: claims must not read those of ended sessions.
    partial("ix_concurrency_limits_standing", "scope", where="substr(scope, 1, 8) <> 'session:'"),
)

runs = table(
    "runs",
    ordinal(),
    identifier(),
    word("session_id", None, index=True),
    word("agent_id"),
    choice("role", Role),
    word("definition"),
    word("parent_run_id"),
    word("parent_agent_id"),
    word("task_id"),
    word("step_key"),
    word("step_title"),
    word("model"),
    # The principal that made it; no consent of its session serves a foreign one (shared/core/identity.py).
    word("dispatched_by"),
    flag("is_foreign"),
    word("surface"),
    word("token"),
    number("attempt", 1),
    word("retry_of"),
    number("created_us"),
    word("worker_id", worker=MOVES),
    number("fence", worker=MOVES),
    instant("started_us", worker=MOVES),
    number("last_seq", worker=MOVES),
    choice("status", RunStatus, worker=MOVES),
    number("last_node", worker=MOVES),
    # When the first call ended with which it had itself read what strangers wrote; never changed afterwards (PER-21).
    instant("tainted_us", worker=MOVES),
    instant("ended_us", worker=MOVES),
    choice("end_reason", EndReason, worker=MOVES, is_null=True),
    document("usage", worker=MOVES, most=MAX_WORD_CHARS),
    CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name="end"),
    Index("ix_runs_task", "task_id"),
    is_hot=True,
    options=_ROOM,
)

budgets = table(
    # The budgets of sessions, of tasks, and of a day (DIS-07, DIS-11). A worker locks a row while its charges are
    # counted, and never changes it.
    "budgets",
    key("scope"),
    number("tokens", worker=MOVES, is_null=True),
    number("microusd", is_bounded=True, is_null=True),
    # For tasks alone, as the next columns.
    number("turns", is_bounded=True, is_null=True),
    number("wall_us", is_bounded=True, is_null=True),
    # When the task was tried again: its time starts with the first step after that. Null: never.
    instant("since_us", is_bounded=True),
    # Why the task was stopped that has reached a limit. Null: it has not.
    word("stopped", is_null=True),
    partial("ix_budgets_tasks", "scope", where="substr(scope, 1, 5) = 'task:'"),
)

charges = table(
    # Model requests that count against budgets: an estimate while open, then what was used.
    "charges",
    reference("run_id", "runs.id", worker=MAKES),
    number("fence", None, worker=MAKES),
    number("number", None, worker=MAKES),
    word("session_id", None, worker=MAKES),
    word("day", None, worker=MAKES),
    number("tokens", None, worker=WRITES),
    number("microusd", worker=WRITES, is_null=True),
    flag("is_open", None, worker=WRITES),
    # Model turns; null where no task's limits concern the run.
    number("turns", worker=WRITES, is_null=True),
    PrimaryKeyConstraint("run_id", "fence", "number"),
    Index("ix_charges_session", "session_id"),
    Index("ix_charges_day", "day"),
)

surfaces = table(
    # A run's tool set with its explanation, by digest: hundreds of runs share one.
    "surfaces",
    key("digest"),
    document("body", None),
)

events = table(
    "events",
    word("run_id", None, worker=MAKES),
    number("seq", None, worker=MAKES),
    word("type", None, worker=MAKES),
    number("time_us", None, worker=MAKES),
    document("data", worker=MAKES),
    # Events of the same write before this one, whose numbers end at seq - 1: [[type, time, data], …], or empty.
    document("preceding", "", worker=MAKES, kind="array", or_empty=True),
    PrimaryKeyConstraint("run_id", "seq"),
    CheckConstraint("seq >= 1", name="seq"),
    options=_WITHOUT_ROWID,
)

nodes = table(
    "nodes",
    word("run_id", None, worker=MAKES),
    number("number", None, worker=MAKES),
    number("parent", None, worker=MAKES),
    choice("kind", NodeKind, worker=MAKES),
    document("payload", worker=MAKES),
    number("created_us", None, worker=MAKES),
    # Nodes of the same write before this one, whose numbers end at number - 1: [[parent, kind, payload], …], or empty.
    # A parent of null is the node before.
    document("preceding", "", worker=MAKES, kind="array", or_empty=True),
    PrimaryKeyConstraint("run_id", "number"),
    CheckConstraint("number >= 1 AND parent < number", name="number"),
)

log_lines = table(
    # The lines that the code of a run printed, logged and raised (LOG-01), without secrets: [[time, stream, level,
    # text], …]. A row is written again until it is full; those of the tail are used in turn.
    "log_lines",
    word("run_id", None, worker=MAKES),
    number("place", None, worker=MAKES),
    # The number of its last line.
    number("number", None, worker=WRITES),
    document("lines", "[]", worker=WRITES, kind="array", most=MAX_TEXT_CHARS),
    PrimaryKeyConstraint("run_id", "place"),
)

calls = table(
    "calls",
    word("run_id", None, worker=MAKES),
    word("tool_call_id", None, worker=MAKES),
    number("position", worker=MAKES),
    word("tool", None, worker=WRITES),
    # Empty: that of its run and its id (shared/tools/ports.py).
    word("effect_id", worker=WRITES),
    flag("is_write", worker=WRITES),
    word("input_digest", worker=WRITES),
    document("inputs", worker=WRITES),
    document("facts", worker=WRITES),
    word("decision_id", worker=WRITES),
    choice("status", CallStatus, "started", worker=WRITES),
    document("result", worker=WRITES, kind="", is_null=True),
    PrimaryKeyConstraint("run_id", "tool_call_id"),
)

call_aborts = table(
    "call_aborts",
    reference("run_id", "runs.id"),
    word("tool_call_id", None),
    word("reason"),
    number("created_us"),
    PrimaryKeyConstraint("run_id", "tool_call_id"),
)

waits = table(
    "waits",
    reference("parent_run", "runs.id"),
    word("tool_call_id", None),
    reference("child_run", "runs.id"),
    PrimaryKeyConstraint("parent_run", "tool_call_id", "child_run"),
)
