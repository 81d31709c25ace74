"""The tables, their constraints and their indexes: what a database of ours looks like at its head.

Instants are integer microseconds (``_us``), JSON is text, truth is 0 or 1. ``ordinal`` is the order of insertion. The
partial indexes hold live rows only, so that no hot statement grows with what has ended; the checks are the last line
behind the status tables in :mod:`soong.shared.engine.tasks.status` and :mod:`soong.shared.engine.runs.status`.
"""

from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.runs.status import EndReason, RunStatus
from soong.shared.engine.runs.store import CallStatus
from soong.shared.engine.sessions.session import ApprovalMode, CommandKind, ProcessState, RefusalType
from soong.shared.engine.tasks.kinds import FailurePolicy, StepKind, TaskKind
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Outcome
from soong.shared.permissions.request import Choice, RequestState
from soong.shared.storage.sql.engine.columns import Big as _Big
from soong.shared.storage.sql.engine.columns import flag as _flag
from soong.shared.storage.sql.engine.columns import id_column as _id
from soong.shared.storage.sql.engine.columns import instant_column as _instant
from soong.shared.storage.sql.engine.columns import number_column as _number
from soong.shared.storage.sql.engine.columns import one_of as _one_of
from soong.shared.storage.sql.engine.columns import ordinal_column as _ordinal
from soong.shared.storage.sql.engine.columns import ranges as _ranges
from soong.shared.storage.sql.engine.columns import text_column as _text
from soong.shared.storage.sql.engine.columns import where as _where

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

READY = "status = 'ready' AND is_paused = 0"
TASK_OVER = "status IN ('completed', 'failed', 'cancelled')"
LEASED = "status IN ('claimed', 'running')"
UNSETTLED = "status = 'failed' AND is_settled = 0"
DUE = "status = 'pending' AND not_before_us IS NOT NULL"
UNTOLD = "kind = 'map' AND ready_us IS NOT NULL"

ROOM: Final[dict[str, Any]] = {"postgresql_with": {"fillfactor": 40}}
"""Of a table whose rows change often: the next version fits on the page, and little of it is written ahead (0026)."""

# -- processes and sessions
owners = Table(
    "owners",
    metadata,
    _ordinal(),
    _id(),
    _text("host"),
    _number("pid"),
    _number("started_us"),
    _text("state", "live"),
    _number("beat"),
    _one_of("state", ProcessState),
    Index("ix_owners_alive", "ordinal", **_where("state <> 'gone'")),
)

sessions = Table(
    "sessions",
    metadata,
    _ordinal(),
    _id(),
    _text("project"),
    _text("cwd"),
    _text("approval_mode", None),
    _number("created_us"),
    _text("policy", "{}"),
    _text("principal"),
    _text("owner_id"),
    _number("owner_epoch"),
    _number("is_closed"),
    _number("last_claimed"),
    _text("project_id"),
    _one_of("approval_mode", ApprovalMode),
    _flag("is_closed"),
    _ranges("last_claimed", "last_claimed"),
    Index("ix_sessions_owner", "owner_id", **_where("is_closed = 0")),
    Index("ix_sessions_last_claimed", "last_claimed"),
)

responders = Table(
    "responders",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False, index=True),
    _text("principal"),
    _text("channel"),
    _number("beat"),
)

commands = Table(
    "commands",
    metadata,
    _ordinal(),
    _id(),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
    _text("kind", None),
    _text("subject"),
    _text("principal"),
    # Whether that principal carries the right to approve, as the client that wrote it checked.
    _number("may_approve"),
    _number("created_us"),
    _text("detail", "{}"),
    _text("refusal"),
    _text("refusal_type", RefusalType.CONFLICT.value),
    _number("is_ended"),
    _one_of("kind", CommandKind),
    _one_of("refusal_type", RefusalType),
    _flag("is_ended"),
    _flag("may_approve"),
    Index("ix_commands_open", "session_id", **_where("is_ended = 0")),
)

workers = Table(
    "workers",
    metadata,
    _ordinal(),
    _id(),
    _text("node_name"),
    _text("host"),
    _number("pid"),
    _number("slots"),
    _text("pools", "[]"),
    _text("capabilities", "[]"),
    _number("started_us"),
    _number("protocol"),
    _text("state", "live"),
    _number("beat"),
    # The SHA-256 of what only its process knows: by it the database tells one worker's rows from another's.
    _text("credential"),
    _one_of("state", ProcessState),
    CheckConstraint("id <> ''", name="id"),
    _ranges("numbers", "pid", "slots", "started_us", "protocol", "beat"),
    Index("ix_workers_credential", "credential"),
    Index("ix_workers_alive", "ordinal", **_where("state <> 'gone'")),
)

# -- tasks
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
    _one_of("status", TaskStatus),
    _one_of("kind", TaskKind),
    Index("ix_tasks_session", "session_id", "ordinal"),
    Index("ix_tasks_unrecorded", "ordinal", **_where(f"is_recorded = 0 AND {TASK_OVER}")),
    Index("ix_tasks_open", "session_id", **_where("status IN ('running', 'paused')")),
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
    _one_of("status", StepStatus),
    _one_of("kind", StepKind),
    _one_of("on_failure", FailurePolicy),
    _one_of("outcome", Outcome),
    _flag("is_settled"),
    _flag("is_paused"),
    _flag("is_unparked"),
    _ranges("counters", "open_deps", "fence", "starts", "lost_leases"),
    _ranges("instants", "started_us", "ended_us", "ready_us"),
    CheckConstraint("kind <> 'map' OR status NOT IN ('ready', 'claimed', 'running', 'blocked')", name="map_unclaimed"),
    CheckConstraint("status NOT IN ('claimed', 'running') OR worker_id <> ''", name="lease_holder"),
    CheckConstraint("status NOT IN ('ready', 'claimed', 'running') OR open_deps = 0", name="unlocked"),
    Index("ix_steps_ready", "lane", text("is_unparked DESC"), text("priority DESC"), "ordinal", **_where(READY)),
    Index("ix_steps_leased", "worker_id", "lane", **_where(LEASED)),
    Index("ix_steps_holder", "holder_run_id", **_where("holder_run_id <> ''")),
    Index("ix_steps_additional", "holder_run_id", **_where(f"holder_run_id <> '' AND {LEASED}")),
    Index("ix_steps_blocked", "session_id", **_where("status = 'blocked'")),
    Index("ix_steps_expanding", "session_id", **_where("status = 'expanding'")),
    Index("ix_steps_unsettled", "session_id", **_where(UNSETTLED)),
    Index("ix_steps_due", "session_id", "not_before_us", **_where(DUE)),
    Index("ix_steps_children", "map_key", "item_index", **_where("map_key <> ''")),
    Index("ix_steps_untold", "session_id", "task_id", **_where(UNTOLD)),
    Index("ix_steps_task", "task_id", "status"),
    **ROOM,
)

edges = Table(
    "edges",
    metadata,
    # The key's columns come first: the integrity check of SQLite 3.40 takes those of others for NULL.
    Column("child_key", Text, nullable=False),
    _number("position"),
    Column("parent_key", Text, nullable=False),
    PrimaryKeyConstraint("child_key", "position"),
    Index("ix_edges_parent", "parent_key"),
    sqlite_with_rowid=False,
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

# -- runs
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
    _instant("ended_us"),
    Column("end_reason", Text),
    _text("usage", "{}"),
    _one_of("status", RunStatus),
    _one_of("end_reason", EndReason),
    _flag("is_foreign"),
    CheckConstraint("(ended_us IS NULL) = (end_reason IS NULL)", name="end"),
    _ranges("counters", "fence", "last_seq", "last_node"),
    _ranges("instants", "started_us", "ended_us"),
    Index("ix_runs_task", "task_id"),
    **ROOM,
)

taints = Table(
    # The runs that have themselves read what strangers wrote. A row is inserted with the end of the first call that
    # read such, and neither changed nor deleted while its run is there (PER-21).
    "taints",
    metadata,
    Column("run_id", Text, primary_key=True),
    _number("tainted_us", None),
    _ranges("tainted_us", "tainted_us"),
)

budgets = Table(
    # What a session, or all in a day, may use (DIS-11). Locked while its charges are counted.
    "budgets",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("tokens", _Big),
    Column("microusd", _Big),
    _ranges("limits", "tokens", "microusd"),
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
    PrimaryKeyConstraint("run_id", "fence", "number"),
    _flag("is_open"),
    _ranges("numbers", "fence", "number", "tokens", "microusd"),
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
    sqlite_with_rowid=False,
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
    PrimaryKeyConstraint("run_id", "number"),
    _one_of("kind", NodeKind),
    CheckConstraint("number >= 1 AND parent >= 0 AND parent < number", name="number"),
    _ranges("numbers", "number", "created_us"),
)

calls = Table(
    "calls",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    Column("tool_call_id", Text, nullable=False),
    _number("position"),
    _text("tool", None),
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

# -- consent
permission_requests = Table(
    "permission_requests",
    metadata,
    _ordinal(),
    _id(),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False, index=True),
    _text("session_id", None),
    _text("tool_call_id", None),
    _text("state", "pending"),
    _number("created_us"),
    # The request as it was raised, without its identity: that is the run's row.
    _text("body", None),
    _one_of("state", RequestState),
    _ranges("created_us", "created_us"),
    Index("ix_permission_requests_pending", "session_id", "ordinal", **_where("state = 'pending'")),
    Index(
        "ix_permission_requests_call",
        "run_id",
        "tool_call_id",
        unique=True,
        **_where("state IN ('pending', 'decided')"),
    ),
)

answers = Table(
    "answers",
    metadata,
    Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
    Column("choice", Text),
    _text("principal"),
    _text("channel"),
    _text("input_digest"),
    _number("answered_us"),
    _text("reason"),
    _text("metadata", "{}"),
    # The process that answered and those that it comes from.
    _text("provenance", "{}"),
    _one_of("choice", Choice),
)

decisions = Table(
    "decisions",
    metadata,
    Column("request_id", Text, ForeignKey("permission_requests.id"), primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    _text("body", None),
)

consumptions = Table(
    "consumptions",
    metadata,
    Column("decision_id", Text, primary_key=True),
    _text("run_id", None),
    _text("tool_call_id", None),
    _number("consumed_us"),
    _ranges("consumed_us", "consumed_us"),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("public_key", LargeBinary, nullable=False),
    _number("created_us"),
    # 1 of the key that the first owner published, else null: of two that start at once one inserts it.
    Column("is_first", _Big),
    CheckConstraint("length(public_key) = 32", name="public_key"),
    CheckConstraint("is_first = 1", name="is_first"),
    UniqueConstraint("is_first", name="uq_signing_keys_is_first"),
)

key_retirements = Table(
    "key_retirements",
    metadata,
    Column("key_id", Text, ForeignKey("signing_keys.id"), nullable=False),
    # 1: nothing signed with it counts any more. 0: what was signed with it until then does, until it expires.
    _number("is_revoked", None),
    _number("retired_us", None),
    _text("principal"),
    _text("reason"),
    _flag("is_revoked"),
    PrimaryKeyConstraint("key_id", "is_revoked", name="pk_key_retirements"),
)

# -- audit
audit = Table(
    "audit",
    metadata,
    _ordinal(),
    _text("chain", None),
    _number("number", None),
    _number("time_us", None),
    _text("kind", None),
    _text("session_id"),
    _text("data", None),
    _text("previous"),
    _text("beside"),
    _text("digest", None),
    Index("ix_audit_chain", "chain", "number", unique=True),
    Index("ix_audit_session", "session_id", "ordinal"),
)

reports = Table(
    "reports",
    metadata,
    _ordinal(),
    Column("run_id", Text, ForeignKey("runs.id"), nullable=False),
    _text("type", None),
    _text("data", None),
    _number("time_us", None),
    _number("is_taken"),
    _flag("is_taken"),
    _ranges("time_us", "time_us"),
    Index("ix_reports_new", "ordinal", **_where("is_taken = 0")),
)

# -- access
api_tokens = Table(
    "api_tokens",
    metadata,
    _ordinal(),
    _id(),
    _text("principal", None),
    _text("rights", None),
    # The SHA-256 of the secret: the secret itself is shown once and stands nowhere.
    _text("digest", None),
    _number("created_us"),
    _instant("expires_us"),
    _instant("revoked_us"),
    _instant("sign_in_by_us"),
    CheckConstraint("length(digest) = 64", name="digest"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Text, primary_key=True),
    _number("size_bytes"),
    _text("media_type"),
    _number("created_us"),
)
