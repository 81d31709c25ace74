"""What a worker may write into each column: conditions of PostgreSQL's row checks, after whose row it is.

Numbers and instants have their ranges in :mod:`soong.shared.storage.sql.engine.tables`, for every role: as checks of
the table, or as row checks of all roles (``soong_values``). What readers take as JSON is JSON here, and what they load
is bounded here. Readers rely on neither (:mod:`soong.shared.storage.sql.engine.strict`). A cast of what is not JSON
raises, which refuses the statement as a condition that does not hold does.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from soong.shared.storage.sql.engine.strict import MAX_CHARS, MAX_TEXT_CHARS, MAX_USAGE_CHARS, MAX_WORD_CHARS

MAX_QUESTION_CHARS: Final = 4 * MAX_TEXT_CHARS


def _within(most: int) -> str:
    return f"octet_length({{0}}) <= {most}"


def _json(kind: str, most: int = MAX_CHARS) -> str:
    return f"{_within(most)} AND json_typeof({{0}}::json) = '{kind}'"


def _any_json(most: int = MAX_CHARS) -> str:
    return f"{_within(most)} AND json_typeof({{0}}::json) <> ''"


def _or_null(condition: str) -> str:
    return f"({{0}} IS NULL OR ({condition}))"


_WORD: Final = _within(MAX_WORD_CHARS)
_NUMBER: Final = ""
"""Its range is the table's."""
_ONE_OF: Final = ""
"""Its words are the table's."""

LIMITS: Final[Mapping[str, Mapping[str, str]]] = {
    "sessions": {"last_claimed": _NUMBER},
    "workers": {
        **dict.fromkeys(("id", "node_name", "host", "credential"), _WORD),
        **dict.fromkeys(("pools", "capabilities"), _json("array", MAX_WORD_CHARS)),
        **dict.fromkeys(("pid", "slots", "started_us", "protocol", "beat"), _NUMBER),
        "state": _ONE_OF,
    },
    "steps": {
        **dict.fromkeys(("status", "outcome"), _ONE_OF),
        **dict.fromkeys(("open_deps", "fence", "starts", "is_settled", "is_unparked"), _NUMBER),
        **dict.fromkeys(("started_us", "ended_us", "ready_us"), _NUMBER),
        **dict.fromkeys(("worker_id", "holder_run_id"), _WORD),
        "progress": _within(MAX_TEXT_CHARS),
        "cancel_reason": _or_null(_within(MAX_TEXT_CHARS)),
        "error": _or_null(_json("object", MAX_TEXT_CHARS)),
        "output": _or_null(_any_json()),
    },
    "concurrency_limits": {"slots": _NUMBER},
    "runs": {
        **dict.fromkeys(("status", "end_reason"), _ONE_OF),
        **dict.fromkeys(("fence", "last_seq", "last_node", "started_us", "ended_us", "tainted_us"), _NUMBER),
        "worker_id": _WORD,
        "usage": _json("object", MAX_USAGE_CHARS),
    },
    "budgets": {"tokens": _NUMBER},
    "charges": {
        **dict.fromkeys(("run_id", "session_id", "day"), _WORD),
        **dict.fromkeys(("fence", "number", "tokens", "microusd", "is_open", "turns"), _NUMBER),
    },
    "events": {
        **dict.fromkeys(("run_id", "type"), _WORD),
        **dict.fromkeys(("seq", "time_us"), _NUMBER),
        "data": _json("object"),
        "preceding": f"{{0}} = '' OR ({_json('array')})",
    },
    "nodes": {
        **dict.fromkeys(("number", "parent", "created_us"), _NUMBER),
        "run_id": _WORD,
        "kind": _ONE_OF,
        "payload": _json("object"),
        "preceding": f"{{0}} = '' OR ({_json('array')})",
    },
    "calls": {
        **dict.fromkeys(("run_id", "tool_call_id", "tool", "effect_id", "input_digest", "decision_id"), _WORD),
        **dict.fromkeys(("position", "is_write"), _NUMBER),
        **dict.fromkeys(("inputs", "facts"), _json("object")),
        "status": _ONE_OF,
        "result": _or_null(_any_json()),
    },
    "permission_requests": {
        **dict.fromkeys(("id", "run_id", "session_id", "tool_call_id"), _WORD),
        "state": _ONE_OF,
        "created_us": _NUMBER,
        "body": _any_json(MAX_QUESTION_CHARS),
    },
    "consumptions": {
        **dict.fromkeys(("decision_id", "run_id", "tool_call_id"), _WORD),
        "consumed_us": _NUMBER,
    },
    "reports": {
        **dict.fromkeys(("run_id", "type"), _WORD),
        "time_us": _NUMBER,
        "data": _json("object", MAX_TEXT_CHARS),
    },
}
"""Every column of a worker's, by table."""


def fitting(table: str, columns: Iterable[str]) -> str:
    """Return the condition that these columns hold what readers take; empty when the table's own checks say it all."""
    conditions = [LIMITS[table][column].format(f"{table}.{column}") for column in columns]
    return " AND ".join(f"({condition})" for condition in conditions if condition)
