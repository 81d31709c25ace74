"""Which artifacts the rows name (OPS-10): a digest in any text that a run or a task left counts as a name."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import literal, select, tuple_

from soong.shared.engine.tasks.retention import NamedArtifact
from soong.shared.storage.sql.engine.tables import metadata, runs
from soong.shared.storage.sql.engine.transaction import Transaction

NAMING: Final = (
    ("events", "data", ("run_id", "seq")),
    ("events", "preceding", ("run_id", "seq")),
    ("nodes", "payload", ("run_id", "number")),
    ("nodes", "preceding", ("run_id", "number")),
    ("calls", "result", ("run_id", "tool_call_id")),
    ("steps", "output", ("key",)),
    ("steps", "spec", ("key",)),
    ("tasks", "inputs", ("id",)),
    ("tasks", "plan", ("id",)),
    ("permission_requests", "body", ("id",)),
)
"""Columns in which digests of artifacts are, and what orders their rows."""
PAGE: Final = 2000
DELIVERABLE: Final = "deliverable"
_TASK_COLUMNS: Final = {"steps": "task_id", "tasks": "id"}
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")


def page_of(
    table: str, column: str, order: Sequence[str], after: Sequence[Any]
) -> Callable[[Transaction], tuple[list[NamedArtifact], Sequence[Any] | None]]:
    """Return what reads the next rows of a column: the artifacts that they name, and the place of the last row.

    The place is None when no row follows.
    """
    columns = metadata.tables[table].c
    keys = [columns[name] for name in order]
    if table in _TASK_COLUMNS:
        task = columns[_TASK_COLUMNS[table]].label("task")
    else:
        task = select(runs.c.task_id).where(runs.c.id == columns["run_id"]).scalar_subquery().label("task")
    wanted = (
        select(columns[column], task, *keys)
        .where(columns[column].like("%digest%") | columns[column].like("%artifact%"))
        .order_by(*keys)
        .limit(PAGE)
    )
    if after:
        wanted = wanted.where(tuple_(*keys) > tuple_(*(literal(value) for value in after)))

    def read(tx: Transaction) -> tuple[list[NamedArtifact], Sequence[Any] | None]:
        rows: Sequence[Sequence[Any]] = tx.execute(wanted).all()
        named = [
            NamedArtifact(digest, task_id or "", kind)
            for text, task_id, *_ in rows
            for digest, kind in named_in(text or "").items()
        ]
        return named, rows[-1][2:] if len(rows) == PAGE else None

    return read


def named_in(text: str) -> dict[str, str]:
    """Return each digest in a text with its kind: a media type, ``deliverable``, or "" when the text does not say."""
    found = dict.fromkeys(_DIGEST.findall(text), "")
    if not found:
        return found
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return found  # a row that was not written by this program: what it names stays all the same
    for item in _objects(value):
        digest, media_type = item.get("digest"), item.get("media_type")
        if not isinstance(digest, str) or digest not in found:
            continue
        if isinstance(media_type, str):
            found[digest] = media_type
        elif "path" in item and "size_bytes" in item:
            found[digest] = DELIVERABLE
    return found


def _objects(value: object) -> Iterator[dict[str, Any]]:
    """Yield every JSON object within a value."""
    open_values = [value]
    while open_values:
        match open_values.pop():
            case dict() as item:
                yield item
                open_values += item.values()
            case list() as items:
                open_values += items
