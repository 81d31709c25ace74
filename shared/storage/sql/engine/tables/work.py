"""Tasks, their steps, and the limits on how many of these are held at once."""

from sqlalchemy import CheckConstraint, Column, Float, ForeignKey, Index, Table, Text, text

from soong.shared.engine.tasks.kinds import FailurePolicy, StepKind, TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome
from soong.shared.storage.sql.engine.columns import Big as _Big
from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import instant_column as _instant
from soong.shared.storage.sql.engine.columns import known_by
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import sqlite_checks as _sqlite_checks
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where
from soong.shared.storage.sql.engine.tables.base import DUE, LEASED, READY, ROOM, TASK_OVER, UNSETTLED, UNTOLD, metadata

tasks = Table(
    "tasks",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
    _text("kind", "plan"),
    _text("title"),
    _text("status", "running"),
    _text("plan", "{}"),
    _text("inputs", "{}"),
    _text("root_run_id", None),
    _number("created_us"),
    _instant("ended_us"),
    _text("reason"),
    # Whether the folders of its runs have been written since it ended.
    _number("is_recorded"),
    # The trace of its submitter that it belongs to (W3C trace context).
    _text("trace_parent"),
    _one_of("status", TaskStatus),
    _one_of("kind", TaskKind),
    Index("ix_tasks_session", "session_id", "ordinal"),
    Index("ix_tasks_unrecorded", "ordinal", **_where(f"is_recorded = 0 AND {TASK_OVER}")),
    Index("ix_tasks_open", "session_id", "ordinal", **_where("status IN ('running', 'paused')")),
    Index("ix_tasks_ended", "ended_us", "id", **_where(f"is_recorded = 1 AND {TASK_OVER}")),
)

steps = Table(
    "steps",
    metadata,
    _ordinal(),
    Column("key", Text, nullable=False, unique=True),
    # No foreign keys here and in runs, events and nodes: they are written by one program in the transaction of what
    # they belong to, and PostgreSQL would check them again at every claim.
    _text("task_id", None),
    _text("session_id", None),
    _text("step_id", None),
    _text("title"),
    _text("kind", None),
    _number("priority"),
    _text("pool", "default"),
    _text("needs", "[]"),
    _text("definition"),
    _text("model"),
    # A digest of all that decides who may claim the step: steps of one lane are claimable together.
    _text("lane", None),
    # A step that is pulled is never claimed by a claim loop; one that is a pull worker is no work of the plan's own.
    _text("claim_mode", "assigned"),
    _number("is_pull_worker"),
    _text("run_id"),
    _number("attempt", 1),
    _number("max_attempts", 1),
    Column("backoff_s", Float, nullable=False, server_default=text("1.0")),
    _text("on_failure", "skip_dependents"),
    _text("map_key"),
    Column("item_index", _Big),
    # How often steps were made to depend on it after it was written: an end whose statement began before such a change
    # sees that it missed one.
    _number("growths"),
    _number("lost_leases"),
    # Which worker lost it last and how that ended, for people.
    _text("lost_to"),
    _number("is_settled"),
    # A copy of the task's pause, so that a claim need not look at steps it may not take.
    _number("is_paused"),
    # Its run was parked and may go on: claimed before what has not begun. 0 again when it parks again.
    _number("is_unparked"),
    Column("cancel_reason", Text),
    _text("progress"),
    # The run that holds or held it beside its own step; empty when its own run does.
    _text("holder_run_id"),
    _instant("not_before_us"),
    # What each step's way through changes lies together, in the order of that way.
    _number("open_deps"),
    # When the end of another step made it ready (or a map due, or complete). A worker writes in no log but those of
    # runs that it holds, so the event is written with the claim, or by the owner.
    _instant("ready_us"),
    _text("worker_id"),
    _number("fence"),
    # How often this attempt was claimed: more than once means that its run is resumed. Of a map step: how often owners
    # began to expand it.
    _number("starts"),
    _instant("started_us"),
    _text("status", "pending"),
    _instant("ended_us"),
    Column("outcome", Text),
    Column("error", Text),
    Column("output", Text),
    _text("spec", "{}"),
    # The ids of the steps that it depends on, in the plan's order, and of those that depend on it: lists, or null.
    # They may be long; being last, no read of other columns passes through them.
    Column("depends_on", Text),
    Column("dependents", Text),
    *_sqlite_checks(
        _one_of("status", StepStatus),
        _one_of("kind", StepKind),
        _one_of("on_failure", FailurePolicy),
        _one_of("outcome", Outcome),
        _flag("is_settled"),
        _flag("is_paused"),
        _flag("is_unparked"),
        _ranges("counters", "open_deps", "fence", "starts", "lost_leases"),
        _ranges("instants", "started_us", "ended_us", "ready_us"),
        CheckConstraint("kind <> 'map' OR status NOT IN ('ready', 'running', 'blocked')", name="map_unclaimed"),
        CheckConstraint("status <> 'running' OR worker_id <> ''", name="lease_holder"),
        CheckConstraint("status NOT IN ('ready', 'running') OR open_deps = 0", name="unlocked"),
    ),
    Index("ix_steps_ready", "lane", text("is_unparked DESC"), text("priority DESC"), "ordinal", **_where(READY)),
    Index("ix_steps_leased", "worker_id", **_where(LEASED)),
    Index("ix_steps_holder", "holder_run_id", **_where("holder_run_id <> ''")),
    Index("ix_steps_additional", "holder_run_id", **_where(f"holder_run_id <> '' AND {LEASED}")),
    Index("ix_steps_blocked", "session_id", **_where("status = 'blocked'")),
    Index("ix_steps_expanding", "session_id", **_where("status = 'expanding'")),
    Index("ix_steps_unsettled", "session_id", **_where(UNSETTLED)),
    Index("ix_steps_due", "session_id", "not_before_us", **_where(DUE)),
    Index("ix_steps_children", "map_key", "item_index", **_where("map_key <> ''")),
    Index("ix_steps_untold", "session_id", "task_id", **_where(UNTOLD)),
    Index("ix_steps_task", "task_id", "status"),
    info=ROOM["info"] | known_by("uq_steps_key", "steps"),
)

concurrency_limits = Table(
    "concurrency_limits",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("slots", _Big, nullable=False),
    CheckConstraint("slots >= 1", name="slots"),
    # The concurrency limits of sessions stay with them: what has ended is not to be read by every claim.
    Index("ix_concurrency_limits_standing", "scope", **_where("substr(scope, 1, 8) <> 'session:'")),
)
