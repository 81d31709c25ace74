"""How far a worker's rows may move in one update: triggers in addition to the policies of row level security.

A policy sees a row as it is before a statement or as it leaves it; only a trigger sees both. All of these are ``AFTER``
triggers, which lock nothing. What they compare is in functions, whose plans a session keeps: a trigger's own
condition is read again for each statement, so it says no more than whom it concerns. They are made for a worker's role,
with its rights; rows that it holds it may change as it likes, but for their fences and for counts that others continue
from.
"""

from collections.abc import Iterator
from typing import Final

from soong.shared.storage.sql.roles.role_privileges import MOST_ADDED

# A function's own search path: a role may have a temporary table of any name.
_FUNCTION: Final = (
    "CREATE OR REPLACE FUNCTION {schema}.{name}() RETURNS trigger LANGUAGE plpgsql SET search_path = {schema}, pg_temp"
    " AS $soong$ BEGIN IF ({allowed}) IS NOT TRUE THEN RAISE insufficient_privilege USING MESSAGE ="
    " format('a worker may not leave a row of %s like this', TG_TABLE_NAME); END IF; RETURN NULL; END $soong$"
)
_TRIGGER: Final = "CREATE TRIGGER {name} AFTER UPDATE ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {name}()"


def _same(*columns: str) -> str:
    """Return that an update leaves these columns as they were."""
    return " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in columns)


def _either(*conditions: str) -> str:
    return " OR ".join(f"({condition})" for condition in conditions)


_HELD_ONLY: Final = ("output", "error", "progress", "is_settled", "cancel_reason", "is_unparked")
"""What is written of a step by who holds it."""

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
    f" AND NEW.status = CASE OLD.kind WHEN 'map' THEN 'expanding' ELSE 'ready' END AND {_same('outcome', 'ended_us')}"
    f" AND {_IS_COUNTED}"
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
    # What it holds it ends or gives back under its fence, with its starts; that a failure is settled its owner says.
    ("soong_held_steps", "steps", f"{_IS_HELD} AND ({_SETTLES})", "false"),
    # Runs that nobody holds are taken with their steps, or left as they are: their logs do not grow.
    ("soong_free_runs", "runs", _IS_FREE, _either("NEW IS NOT DISTINCT FROM OLD", _TAKES_RUN)),
    ("soong_held_runs", "runs", f"{_IS_HELD} AND ({_GROWS_TOO_FAR})", "false"),
)
"""Trigger, table, which updates it looks at, and what these may be."""


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
