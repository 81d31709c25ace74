"""What a worker's and an orchestrator's database role may do, table by table and column by column.

A worker takes what is in the rows and writes what it did: it never makes a step, a run or a decision, and never
changes whose they are (DESIGN, trust). Every column of :mod:`soong.shared.storage.sql.engine.tables` is here
once; a test fails for one that does not, and another runs all work of a worker under these rights and under no more.
"""

from collections.abc import Mapping
from typing import Final

from soong.shared.core.value import Value
from soong.shared.storage.sql.engine.pooler import CREDENTIAL


class WorkerRight(Value):
    """A worker's rights on one table. ``never`` names the columns that others write, or the database itself.

    ``new`` and ``changed`` are conditions that the rows must meet that it inserts or has updated, ``old`` a condition
    that a row must meet before it is locked or updated. A lock needs the right to update a column, so a table that is
    only locked has an update that no changed row can pass. How far a row may move in one update is for
    :mod:`soong.shared.storage.sql.roles.row_rules`.
    """

    reads: bool = False
    sees: tuple[str, ...] = ()
    """The columns that it reads of a table that it does not read as a whole."""
    inserts: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    new: str = ""
    old: str = ""
    changed: str = ""

    @property
    def is_checked(self) -> bool:
        """Say whether rows are checked, not columns alone."""
        return bool(self.new or self.old or self.changed)


_DIGEST: Final = f"encode(sha256(convert_to(coalesce(current_setting('{CREDENTIAL}', true), ''), 'UTF8')), 'hex')"
# Conditions are made of our own words alone.
OURS: Final = f"IN (SELECT ours.id FROM workers AS ours WHERE ours.credential = {_DIGEST})"  # noqa: S608  # as above
"""That a worker id is one of this process's."""

_FREE_OR_LEASED: Final = f"(worker_id = '' OR (status = 'running' AND worker_id {OURS}))"
"""A row that nobody holds, or that this process holds now: others' work, and what has ended, is not touched."""

_ENDS: Final = "'completed', 'failed', 'cancelled'"


def _of_run(table: str, held: str) -> str:
    """Return that a row belongs to a run which is ``held`` in a certain way."""
    return f"EXISTS (SELECT 1 FROM runs AS its WHERE its.id = {table}.run_id AND ({held}))"  # noqa: S608  # as above


_RUNNING: Final = f"its.status = 'running' AND its.worker_id {OURS}"
_CHARGED: Final = f"{_RUNNING} AND its.session_id = charges.session_id AND its.fence = charges.fence"
_THE_DAY: Final = "to_char((now() AT TIME ZONE 'UTC') {} interval '1 day', 'YYYY-MM-DD')"
_ABOUT_TODAY: Final = f"charges.day BETWEEN {_THE_DAY.format('-')} AND {_THE_DAY.format('+')}"
"""A charge for a later day would use up the budget of a day that has not come."""
_ASKING: Final = f"{_RUNNING} AND its.session_id = permission_requests.session_id"
MOST_ADDED: Final = 1_000_000
"""How many entries one statement may add to a log."""

HOLDS: Final = "soong_holds"
"""A function that says whether this process holds a run by now, also when it is this very statement that claims it."""

HOLDS_BODY: Final = f"SELECT EXISTS (SELECT 1 FROM runs AS its WHERE its.id = run AND {_RUNNING})"  # noqa: S608


LAST_TURN: Final = "soong_last_turn"
"""A function that says which turn was the last before this statement: a worker counts on from there, and not far."""

LAST_TURN_BODY: Final = "SELECT coalesce(max(last_claimed), 0) FROM sessions"


def _log(table: str, number: str, last: str, held: str) -> str:
    """Return that an entry is added to a log that is ``held``, not too far after the last one."""
    within = f"{table}.{number} BETWEEN its.{last} + 1 AND its.{last} + 2 * {MOST_ADDED}"
    return _of_run(table, f"{within} AND ({held})")


_YES: Final = (
    "EXISTS (SELECT 1 FROM decisions AS given JOIN permission_requests AS asked ON asked.id = given.request_id"
    " WHERE given.id = consumptions.decision_id AND asked.run_id = consumptions.run_id"
    " AND asked.tool_call_id = consumptions.tool_call_id AND asked.state = 'decided'"
    " AND given.body::json->>'choice' <> 'deny')"
)


_OWN_HOLDER: Final = (
    "(holder_run_id = '' OR EXISTS"  # noqa: S608  # as above
    f" (SELECT 1 FROM runs AS its WHERE its.id = holder_run_id AND its.worker_id {OURS}))"
)
"""Nothing is held in addition to a step of another."""

WORKER: Final[Mapping[str, WorkerRight]] = {
    # -- processes and sessions
    "owners": WorkerRight(never=("ordinal", "id", "host", "pid", "started_us", "state", "beat")),
    "sessions": WorkerRight(
        reads=True,
        # Fairness: when the session was last served. Its policy, its owner and its epoch are never a worker's to write.
        updates=("last_claimed",),
        never=(
            *("ordinal", "id", "project", "cwd", "approval_mode", "created_us", "policy", "principal"),
            *("owner_id", "owner_epoch", "is_closed", "project_id", "closes_with_task"),
        ),
        changed=f"last_claimed <= {LAST_TURN}() + {MOST_ADDED}",
    ),
    "responders": WorkerRight(never=("ordinal", "id", "session_id", "principal", "channel", "beat")),
    "commands": WorkerRight(
        never=(
            *("ordinal", "id", "session_id", "kind", "subject", "principal", "created_us", "detail", "refusal"),
            *("refusal_type", "is_ended", "may_approve"),
        )
    ),
    "workers": WorkerRight(
        reads=True,
        inserts=(
            *("id", "node_name", "host", "pid", "slots", "pools", "capabilities", "started_us", "protocol"),
            *("state", "beat", "credential"),
        ),
        updates=("state", "beat"),
        never=("ordinal",),
        new=f"credential = {_DIGEST}",
        old=f"credential = {_DIGEST}",
        changed=f"credential = {_DIGEST}",
    ),
    # -- tasks
    "tasks": WorkerRight(
        reads=True,
        never=(
            *("ordinal", "id", "session_id", "kind", "title", "status", "plan", "inputs", "root_run_id", "created_us"),
            *("ended_us", "reason", "is_recorded", "trace_parent"),
        ),
    ),
    "steps": WorkerRight(
        reads=True,
        # Claim, end, hand back, park, progress, and what an end does to the steps that waited for it.
        updates=(
            *("status", "open_deps", "fence", "starts", "worker_id", "outcome", "progress", "is_settled"),
            *("cancel_reason", "started_us", "ended_us", "error", "output", "is_unparked"),
            # An additional claim: the run that holds it in addition to its own.
            "holder_run_id",
            # When an end opened it; told in its log by the claim.
            "ready_us",
        ),
        never=(
            *("ordinal", "key", "task_id", "session_id", "step_id", "title", "kind", "priority", "pool", "needs"),
            *("definition", "model", "lane", "run_id", "attempt", "max_attempts", "backoff_s", "on_failure"),
            *("lost_leases", "lost_to", "map_key", "item_index", "is_paused", "not_before_us", "spec"),
            *("claim_mode", "is_pull_worker", "growths", "depends_on", "dependents"),
        ),
        old=_FREE_OR_LEASED,
        changed=f"({_FREE_OR_LEASED} OR (worker_id {OURS} AND status IN ({_ENDS}))) AND {_OWN_HOLDER}",
    ),
    # Locked while it is counted, never changed.
    "concurrency_limits": WorkerRight(reads=True, updates=("slots",), never=("scope",), changed="false"),
    # -- runs
    "runs": WorkerRight(
        reads=True,
        updates=(
            *("status", "fence", "worker_id", "last_seq", "last_node", "usage", "end_reason"),
            *("started_us", "ended_us"),
            # Written by who holds the run, and taken back by nobody: an owner judges by it.
            "tainted_us",
        ),
        never=(
            *("ordinal", "id", "session_id", "agent_id", "role", "definition", "parent_run_id", "parent_agent_id"),
            *("task_id", "step_key", "step_title", "model", "surface", "token", "attempt", "retry_of", "created_us"),
            *("dispatched_by", "is_foreign"),
        ),
        old=_FREE_OR_LEASED,
        # The runs of a session itself are its owner's: a worker never holds one.
        changed=(
            f"(worker_id = '' OR (worker_id {OURS} AND status IN ('running', {_ENDS})"
            " AND role NOT IN ('main', 'orchestrator')))"
        ),
    ),
    # Locked while its charges are counted, never changed.
    "budgets": WorkerRight(
        reads=True,
        updates=("tokens",),
        never=("scope", "microusd", "turns", "wall_us", "since_us", "stopped"),
        changed="false",
    ),
    "charges": WorkerRight(
        reads=True,
        inserts=("run_id", "fence", "number", "session_id", "day", "tokens", "microusd", "is_open", "turns"),
        updates=("tokens", "microusd", "is_open", "turns"),
        new=f"is_open = 1 AND {_ABOUT_TODAY} AND {_of_run('charges', _CHARGED)}",
        old=f"is_open = 1 AND {_of_run('charges', _CHARGED)}",
        changed=f"is_open = 0 AND {_of_run('charges', _CHARGED)}",
    ),
    "surfaces": WorkerRight(reads=True, never=("digest", "body")),
    # The logs: written once, read by whoever may. A worker reads only the nodes it goes on from, and writes only in
    # those of runs that it holds; of what it claims, in the statement that does.
    "events": WorkerRight(
        # Where the log ends: what a bad worker left beyond the count is counted over.
        sees=("run_id", "seq"),
        inserts=("run_id", "seq", "type", "time_us", "data", "preceding"),
        new=_log("events", "seq", "last_seq", f"({_RUNNING}) OR (its.worker_id = '' AND {HOLDS}(its.id))"),
    ),
    "nodes": WorkerRight(
        reads=True,
        inserts=("run_id", "number", "parent", "kind", "payload", "preceding", "created_us"),
        new=_log("nodes", "number", "last_node", _RUNNING),
    ),
    "calls": WorkerRight(
        reads=True,
        inserts=(
            *("run_id", "tool_call_id", "position", "tool", "effect_id", "is_write", "input_digest", "inputs"),
            *("facts", "decision_id", "status", "result"),
        ),
        updates=(
            *("tool", "effect_id", "is_write", "input_digest", "inputs", "facts", "decision_id", "status", "result"),
        ),
        new=_of_run("calls", _RUNNING),
        old=_of_run("calls", _RUNNING),
        changed=_of_run("calls", _RUNNING),
    ),
    "call_aborts": WorkerRight(reads=True, never=("run_id", "tool_call_id", "reason", "created_us")),
    "waits": WorkerRight(never=("parent_run", "tool_call_id", "child_run")),
    # -- consent
    "permission_requests": WorkerRight(
        reads=True,
        inserts=("id", "run_id", "session_id", "tool_call_id", "created_us", "body"),
        updates=("state",),
        never=("ordinal",),
        # It asks, takes back, and lets go a decision that expired; that a question is decided is for its owner to say.
        new=f"state = 'pending' AND {_of_run('permission_requests', _ASKING)}",
        old=_of_run("permission_requests", _RUNNING),
        changed="state IN ('withdrawn', 'expired')",
    ),
    "answers": WorkerRight(
        never=(
            *("request_id", "choice", "principal", "channel", "input_digest", "answered_us", "reason", "metadata"),
            "provenance",
        )
    ),
    "decisions": WorkerRight(reads=True, never=("request_id", "id", "body")),
    # Used once: inserted in the transaction in which the call starts, and never taken back.
    # Only what says yes, to that call of a run that this process holds.
    "consumptions": WorkerRight(
        reads=True,
        inserts=("decision_id", "run_id", "tool_call_id", "consumed_us"),
        new=f"{_YES} AND {_of_run('consumptions', _RUNNING)}",
    ),
    # Public keys. The private one is a file that only orchestrators have.
    "signing_keys": WorkerRight(reads=True, never=("id", "public_key", "created_us", "is_first")),
    "key_retirements": WorkerRight(reads=True, never=("key_id", "is_revoked", "retired_us", "principal", "reason")),
    # Evidence is written by those who decide. A worker leaves reports, and can neither read nor take one back.
    "audit": WorkerRight(
        never=(
            *("ordinal", "chain", "number", "time_us", "kind", "session_id", "data", "previous", "beside"),
            "digest",
        )
    ),
    "reports": WorkerRight(
        inserts=("run_id", "type", "data", "time_us"), never=("ordinal", "is_taken"), new=_of_run("reports", _RUNNING)
    ),
    # Who may use the HTTP API is nothing that a run may know.
    "api_tokens": WorkerRight(
        never=(
            "ordinal",
            "id",
            "principal",
            "rights",
            "digest",
            "created_us",
            "expires_us",
            "revoked_us",
            "sign_in_by_us",
        )
    ),
    "artifacts": WorkerRight(never=("digest", "size_bytes", "media_type", "created_us")),
    # What is told outside of the logs is told by an owner.
    "event_consumers": WorkerRight(never=("name", "owner_id", "since_us")),
    "event_cursors": WorkerRight(never=("consumer", "run_id", "seq", "state")),
    "metric_totals": WorkerRight(never=("name", "labels", "total")),
    "notices": WorkerRight(
        never=(
            *("ordinal", "id", "channel", "event", "session_id", "request_id", "created_us", "due_us", "facts"),
            *("message_id", "state", "attempts", "error", "ended_us"),
        )
    ),
}

KEPT: Final = frozenset(
    {
        *(
            "surfaces",
            "events",
            "nodes",
            "answers",
            "decisions",
            "consumptions",
            "signing_keys",
            "artifacts",
        ),
        *("key_retirements", "audit", "call_aborts"),
    }
)
"""Tables in which an orchestrator inserts and changes nothing: what was asked, decided, used and done stays said."""

CHANGED: Final = frozenset(
    {
        *(
            "owners",
            "sessions",
            "responders",
            "commands",
            "workers",
            "tasks",
            "steps",
            "concurrency_limits",
            "runs",
            "budgets",
            "charges",
            "calls",
            "waits",
            "api_tokens",
            "reports",
        ),
        "permission_requests",
        *("event_consumers", "event_cursors", "metric_totals", "notices"),
    }
)
"""Tables in which an orchestrator also updates rows."""

EMPTIED: Final = frozenset({"responders", "concurrency_limits", "budgets", "steps", "notices"})
"""Tables from which it also takes rows away; of steps, the items of a map step that is expanded again."""

CLIENT_ADDS: Final = frozenset(
    {
        *("sessions", "tasks", "steps", "runs", "surfaces", "events", "commands", "answers", "audit"),
        *("responders", "budgets"),
    }
)
"""Tables in which a client (the HTTP API) inserts: what it submits, asks of owners and answers. Never a decision, a
key, a token, a node or a call."""

CLIENT_CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    # A retry opens a closed session again, for whichever owner adopts it.
    "sessions": ("is_closed", "owner_id"),
    # An answer that comes late is told in its run's log.
    "runs": ("last_seq",),
    # Held while it is answered; a lock needs the right to change some column.
    "permission_requests": ("created_us",),
    "responders": ("beat",),
    # A person raises the budget of a session, or the limits of a task.
    "budgets": ("tokens", "microusd", "turns", "wall_us"),
}
"""What of existing rows a client changes, column by column."""

CLIENT_EMPTIES: Final = frozenset({"responders"})
