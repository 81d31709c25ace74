"""The rights of a worker's and an orchestrator's database role, table by table and column by column.

A worker takes what is in the rows and writes what it did: it never makes a step, a run or a decision, and never
changes whose they are (DESIGN, trust). The columns that a worker writes are marked in the tables
(:mod:`soong.shared.storage.sql.engine.columns`); a test runs all work of a worker under these rights and no others.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from soong.shared.core.value import Value
from soong.shared.storage.sql.engine.pooler import CREDENTIAL

# A function's own search path: a role may have a temporary table of any name.
_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql SET search_path = {schema}, pg_temp"
    " AS $soong$ BEGIN IF ({allowed}) IS NOT TRUE THEN RAISE insufficient_privilege USING MESSAGE ="
    " format('a worker may not leave a row of %s like this', TG_TABLE_NAME); END IF; RETURN NULL; END $soong$"
)
_TRIGGER: Final = "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {name}()"


class WorkerRight(Value):
    """A worker's rights on the rows of one table.

    ``new`` and ``changed`` are conditions that the rows must meet that it inserts or has updated, ``old`` a condition
    that a row must meet before it is locked or updated. A lock needs the right to update a column, so a table that is
    only locked has an update that no changed row can pass. How far a row may move in one update is for
    :mod:`soong.shared.storage.sql.roles.role_privileges`.
    """

    reads: bool = True
    sees: tuple[str, ...] = ()
    """The columns that it reads of a table that it does not read as a whole."""
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
"""A function that returns whether this process holds a run by now, also when this very statement claims it."""

HOLDS_BODY: Final = f"SELECT EXISTS (SELECT 1 FROM runs AS its WHERE its.id = run AND {_RUNNING})"  # noqa: S608


LAST_TURN: Final = "soong_last_turn"
"""A function that returns the last turn before this statement: a worker counts on from there, and not far."""

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
    "sessions": WorkerRight(changed=f"last_claimed <= {LAST_TURN}() + {MOST_ADDED}"),
    "workers": WorkerRight(
        new=f"credential = {_DIGEST}", old=f"credential = {_DIGEST}", changed=f"credential = {_DIGEST}"
    ),
    "tasks": WorkerRight(),
    # Claim, end, hand back, park, progress, and what an end does to the steps that waited for it.
    "steps": WorkerRight(
        old=_FREE_OR_LEASED,
        changed=f"({_FREE_OR_LEASED} OR (worker_id {OURS} AND status IN ({_ENDS}))) AND {_OWN_HOLDER}",
    ),
    "concurrency_limits": WorkerRight(changed="false"),
    "runs": WorkerRight(
        old=_FREE_OR_LEASED,
        # The runs of a session itself are its owner's: a worker never holds one.
        changed=(
            f"(worker_id = '' OR (worker_id {OURS} AND status IN ('running', {_ENDS})"
            " AND role NOT IN ('main', 'orchestrator')))"
        ),
    ),
    "budgets": WorkerRight(changed="false"),
    "charges": WorkerRight(
        new=f"is_open = 1 AND {_ABOUT_TODAY} AND {_of_run('charges', _CHARGED)}",
        old=f"is_open = 1 AND {_of_run('charges', _CHARGED)}",
        changed=f"is_open = 0 AND {_of_run('charges', _CHARGED)}",
    ),
    "surfaces": WorkerRight(),
    # The logs: written once, read with the right to. A worker reads only the nodes it continues from, and writes only
    # in those of runs that it holds, or claims in the same statement.
    "events": WorkerRight(
        reads=False,
        # The end of the log: the numbering skips entries that a bad worker left beyond the count.
        sees=("run_id", "seq"),
        new=_log("events", "seq", "last_seq", f"({_RUNNING}) OR (its.worker_id = '' AND {HOLDS}(its.id))"),
    ),
    "nodes": WorkerRight(new=_log("nodes", "number", "last_node", _RUNNING)),
    "calls": WorkerRight(
        new=_of_run("calls", _RUNNING), old=_of_run("calls", _RUNNING), changed=_of_run("calls", _RUNNING)
    ),
    # A row is written again as it fills, and in its turn.
    "log_lines": WorkerRight(
        new=_of_run("log_lines", _RUNNING), old=_of_run("log_lines", _RUNNING), changed=_of_run("log_lines", _RUNNING)
    ),
    "call_aborts": WorkerRight(),
    "permission_requests": WorkerRight(
        # It asks, takes back, and lets go a decision that expired; that a question is decided is for its owner to say.
        new=f"state = 'pending' AND {_of_run('permission_requests', _ASKING)}",
        old=_of_run("permission_requests", _RUNNING),
        changed="state IN ('withdrawn', 'expired')",
    ),
    "decisions": WorkerRight(),
    # Only what says yes, to that call of a run that this process holds.
    "consumptions": WorkerRight(new=f"{_YES} AND {_of_run('consumptions', _RUNNING)}"),
    "signing_keys": WorkerRight(),
    "key_retirements": WorkerRight(),
    "reports": WorkerRight(reads=False, new=_of_run("reports", _RUNNING)),
}
"""The tables that a worker reads or writes; the others are hidden from it."""

CHANGED: Final = frozenset(
    {
        *("owners", "sessions", "responders", "commands", "workers", "tasks", "steps", "concurrency_limits", "runs"),
        *("budgets", "charges", "calls", "waits", "permission_requests", "api_tokens", "reports"),
        *("event_consumers", "event_cursors", "metric_totals", "notices"),
    }
)
"""Tables in which an orchestrator also updates rows. In the others it inserts and changes nothing: questions,
decisions, usage and acts stay recorded."""

EMPTIED: Final = frozenset({"responders", "concurrency_limits", "budgets", "steps", "notices"})
"""Tables from which it also takes rows away; from steps, the items of a map step that is expanded again."""

CLIENT_ADDS: Final = frozenset(
    {
        *("sessions", "tasks", "steps", "runs", "surfaces", "events", "commands", "answers", "audit"),
        *("responders", "budgets", "concurrency_limits"),
    }
)
"""Tables in which a client (the HTTP API) inserts its submissions, commands and answers. Never a decision, a key, a
token, a node or a call."""

CLIENT_CHANGES: Final[Mapping[str, tuple[str, ...]]] = {
    # A retry opens a closed session again, for whichever owner adopts it.
    "sessions": ("is_closed", "owner_id"),
    # A late answer is noted in its run's log.
    "runs": ("last_seq",),
    # Held while it is answered; a lock needs the right to change some column.
    "permission_requests": ("created_us",),
    "responders": ("beat",),
    # A person raises the budget of a session, or the limits of a task.
    "budgets": ("tokens", "microusd", "turns", "wall_us"),
    "concurrency_limits": ("is_paused",),
}
"""The columns of existing rows that a client changes."""

CLIENT_EMPTIES: Final = frozenset({"responders"})


def _same(*columns: str) -> str:
    """Return that an update leaves these columns as they were."""
    return " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in columns)


def _either(*conditions: str) -> str:
    return " OR ".join(f"({condition})" for condition in conditions)


_HELD_ONLY: Final = ("output", "error", "progress", "is_settled", "cancel_reason", "is_unparked")
"""The columns of a step that its holder writes."""

_TAKES_STEP: Final = (
    "NEW.worker_id <> '' AND OLD.status = 'ready' AND NEW.status = 'running' AND OLD.is_paused = 0"
    " AND NEW.fence = OLD.fence + 1 AND NEW.starts = OLD.starts + 1"
    f" AND {_same('open_deps', 'outcome', 'ended_us', *_HELD_ONLY)}"
)
_LEAVES: Final = f"NEW.worker_id = '' AND {_same('fence', 'starts', 'started_us', 'holder_run_id', *_HELD_ONLY)}"
# Our own words alone.
_OPEN_PARENTS: Final = (
    "SELECT count(*) FROM json_array_elements_text(OLD.depends_on::json) AS its(id) JOIN steps AS parent"
    " ON parent.key = OLD.task_id || '/' || its.id WHERE {open}"
)
_OPEN_ITEMS: Final = (
    "SELECT count(*) FROM steps AS parent WHERE parent.map_key = OLD.key AND parent.map_key <> '' AND {open}"
)
_OPEN: Final = "NOT (parent.status = 'completed' OR (parent.status = 'failed' AND parent.is_settled = 1))"
_IS_COUNTED: Final = (
    "NEW.open_deps >= CASE OLD.status"
    f" WHEN 'pending' THEN ({_OPEN_PARENTS.format(open=_OPEN)})"
    f" WHEN 'waiting' THEN ({_OPEN_ITEMS.format(open=_OPEN)}) END"
)
"""No step waits for fewer than have still to end: it would start before them, or the end of one of them would fail."""
_COUNTS_DOWN: Final = (
    f"{_LEAVES} AND {_same('status', 'outcome', 'ended_us', 'ready_us')}"
    f" AND ({_same('open_deps')} OR (NEW.open_deps BETWEEN 1 AND OLD.open_deps AND {_IS_COUNTED}))"
)
_OPENS: Final = (
    f"{_LEAVES} AND OLD.status = 'pending' AND OLD.open_deps > 0 AND NEW.open_deps = 0"
    " AND NEW.status = CASE OLD.gate WHEN 'workers' THEN 'ready' ELSE 'expanding' END"
    f" AND {_same('outcome', 'ended_us')} AND {_IS_COUNTED}"
)
_COMPLETES_MAP: Final = (
    f"{_LEAVES} AND OLD.status = 'waiting' AND OLD.open_deps > 0 AND NEW.open_deps = 0 AND NEW.status = 'completed'"
    f" AND {_same('outcome')} AND {_IS_COUNTED}"
)
_JUDGES_MAP: Final = (
    f"{_LEAVES} AND OLD.kind = 'map' AND OLD.status = 'completed' AND OLD.outcome IS NULL"
    f" AND {_same('status', 'open_deps', 'ended_us', 'ready_us')}"
)
# Our own words alone.
_WITH_ITS_STEP: Final = (
    "EXISTS (SELECT 1 FROM steps AS taken WHERE taken.key = NEW.step_key AND taken.run_id = NEW.id"
    " AND taken.fence = NEW.fence AND taken.worker_id = NEW.worker_id AND taken.status = 'running')"
)
_TAKES_RUN: Final = (
    "NEW.worker_id <> '' AND OLD.status = 'queued' AND NEW.status = 'running'"
    f" AND NEW.last_seq BETWEEN OLD.last_seq AND OLD.last_seq + {MOST_ADDED}"
    f" AND {_same('last_node', 'usage', 'end_reason', 'ended_us', 'tainted_us')} AND {_WITH_ITS_STEP}"
    f" AND (OLD.started_us IS NULL OR {_same('started_us')})"
)

_GROWS_TOO_FAR: Final = _either(
    "NEW.fence <> OLD.fence",
    f"NOT ({_same('started_us')})",
    f"NEW.last_seq NOT BETWEEN OLD.last_seq AND OLD.last_seq + {MOST_ADDED}",
    f"NEW.last_node NOT BETWEEN OLD.last_node AND OLD.last_node + {MOST_ADDED}",
)
_SETTLES: Final = _either(
    "NEW.fence <> OLD.fence OR NEW.starts <> OLD.starts",
    "NEW.is_settled <> OLD.is_settled AND OLD.cancel_reason IS NULL",
)
_IS_FREE: Final = "OLD.worker_id = ''"
_IS_HELD: Final = "OLD.worker_id <> ''"

RULES: Final = (
    # Steps that nobody holds are taken, with the next fence, opened by what they waited for, or left as they are.
    ("soong_free_steps", "steps", _IS_FREE, _either(_TAKES_STEP, _COUNTS_DOWN, _OPENS, _COMPLETES_MAP, _JUDGES_MAP)),
    # A held step is ended or given back under its fence, with its starts; its owner alone settles a failure.
    ("soong_held_steps", "steps", f"{_IS_HELD} AND ({_SETTLES})", "false"),
    # Runs that nobody holds are taken with their steps, or left as they are: their logs do not grow.
    ("soong_free_runs", "runs", _IS_FREE, _either("NEW IS NOT DISTINCT FROM OLD", _TAKES_RUN)),
    ("soong_held_runs", "runs", f"{_IS_HELD} AND ({_GROWS_TOO_FAR})", "false"),
)
"""Trigger, table, the updates that it checks, and the condition that they must meet."""


_REWRITES: Final = _either(
    f"OLD.tainted_us IS NOT NULL AND NOT ({_same('tainted_us')})",
    # The root run of an ask has the time of its creation until an owner takes it up.
    f"OLD.started_us IS NOT NULL AND OLD.fence > 0 AND NOT ({_same('started_us')})",
)
_KEPT_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION {schema}.soong_told_runs() RETURNS trigger LANGUAGE plpgsql AS $soong$ BEGIN"
    " RAISE insufficient_privilege USING MESSAGE = 'what a run has read, and when it started, stay as they are'; END"
    " $soong$"
)


def kept_rows(schema: str) -> Iterator[str]:
    """Yield the statements that let nobody change what rows of runs say once. ``schema`` is quoted."""
    yield "DROP TRIGGER IF EXISTS soong_told_runs ON runs"
    yield _KEPT_FUNCTION.format(schema=schema)
    yield (
        f"CREATE TRIGGER soong_told_runs AFTER UPDATE ON runs FOR EACH ROW WHEN ({_REWRITES})"
        " EXECUTE FUNCTION soong_told_runs()"
    )


def row_rules(schema: str, role: str) -> Iterator[str]:
    """Yield the statements that make the triggers for a role, given as text in a condition. ``schema`` is quoted."""
    for name, table, concerned, allowed in RULES:
        yield f"DROP TRIGGER IF EXISTS {name} ON {table}"
        yield _FUNCTION.format(schema=schema, name=name, allowed=allowed)
        yield _TRIGGER.format(name=name, table=table, when=f"current_user = '{role}' AND {concerned}")
