"""Reading the rows of events and nodes: each row holds those of one write, and is read as a stranger's."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from soong.shared.core.jsontext import MAX_DEPTH, Json
from soong.shared.engine.runs.events import Event, EventType, Node, NodeKind
from soong.shared.engine.tasks.step import MALFORMED
from soong.shared.storage.sql.engine.row_mapper import (
    MAX_SHOWN_CHARS,
    MalformedError,
    RowReader,
    number_of,
    object_of,
    value_of,
    word_of,
)
from soong.shared.storage.sql.engine.statements import PAGE_SIZE, SIZE
from soong.shared.storage.sql.engine.transaction import Row

ENTRY_FIELDS: Final = 3
ENTRY_DEPTH: Final = 2
"""An event or a node in the row of a later one: the number of its columns, and the depth of its object there."""


OF_STEP: Final = frozenset(
    {
        EventType.STEP_READY,
        EventType.STEP_CLAIMED,
        EventType.STEP_COMPLETED,
        EventType.STEP_FAILED,
        EventType.STEP_CANCELLED,
        EventType.RUN_STARTED,
        EventType.RUN_RESUMED,
    }
)
"""Events whose ``step`` is that of their run, where they name none."""


def sized_before(document: str, order: str) -> str:
    """Return a column: the size of the rows of a log before a row, in this order."""
    size = f"{SIZE.format(document)} + {SIZE.format('preceding')}"
    return f"coalesce(sum({size}) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)"


def page_of_log(table: str, number: str, document: str, last: str) -> str:
    """Return what follows ``FROM table``: rows of a run after one, at most so many, and only up to ``PAGE_SIZE``.

    Entries beyond the count of their run are not part of its log.
    """
    return f"""
    WHERE run_id = :run_id AND {number} > :after AND {number} <= (
        SELECT max({number}) FROM (
            SELECT {number}, {sized_before(document, number)} AS size FROM {table}
            WHERE run_id = :run_id AND {number} > :after
              AND {number} <= (SELECT {last} FROM runs WHERE id = :run_id) ORDER BY {number} LIMIT :limit
        ) AS sized WHERE size < {PAGE_SIZE}
    ) ORDER BY {number}
    """  # noqa: S608  # our own words


def events_of(rows: Iterable[Row], after: int = 0) -> Iterator[Event]:
    """Yield the events of rows, in the order of each run's log; in the first run only those after a number.

    A row has the columns of ``events`` and ``step_key``, that of its run's step.

    A malformed event becomes a security event. A row that also claims numbers of the rows before it has only those that
    are left.
    """
    run_id, last = "", after
    for row in rows:
        if row.run_id != run_id:
            run_id, last = row.run_id, 0 if run_id else after
        for event in _events_of_row(row):
            if event.seq > last and row.step_key and event.type in OF_STEP and "step" not in event.data:
                yield replace(event, data={"step": row.step_key, **event.data})
            elif event.seq > last:
                yield event
        last = max(last, row.seq)


def _events_of_row(row: Row) -> Iterator[Event]:
    run_id, seq = row.run_id, row.seq
    problem = ""
    try:
        preceding = preceding_of(row.preceding)
        data, time_us = object_of("data", row.data), number_of("time_us", row.time_us)
    except MalformedError:  # seldom: each part is read alone
        reading, nothing = RowReader(), list[Json]()
        preceding = reading.take(lambda: preceding_of(row.preceding), nothing)
        data = reading.object("data", row.data)
        time_us = reading.take(lambda: number_of("time_us", row.time_us), 0)
        problem = reading.problem
    for number, entry in enumerate(preceding, start=seq - len(preceding)):
        yield _event_of_entry(run_id, number, entry)
    if problem:
        yield _malformed_event(run_id, seq, time_us, problem)
    else:
        yield Event(run_id, seq, row.type, time_us, data)


def preceding_of(text: Any) -> list[Json]:
    """Return the entries that a row of events or nodes holds before its own. Raises: MalformedError."""
    if text == "":
        return []
    value = value_of("preceding", text, depth=MAX_DEPTH + ENTRY_DEPTH)
    if not isinstance(value, list):
        raise MalformedError("preceding is not a list")
    return value


def _event_of_entry(run_id: str, seq: int, entry: Json) -> Event:
    try:
        if not isinstance(entry, list) or len(entry) != ENTRY_FIELDS or not isinstance(entry[2], dict):
            raise MalformedError("preceding holds what is not a type, a time and data")
        type_, time_us = word_of("type", entry[0]), number_of("time_us", entry[1])
    except MalformedError as error:
        return _malformed_event(run_id, seq, 0, str(error))
    return Event(run_id, seq, type_, time_us, entry[2])


def _malformed_event(run_id: str, seq: int, time_us: int, reason: str) -> Event:
    return Event(run_id, seq, EventType.SECURITY, time_us, {"what": MALFORMED, "reason": reason})


def nodes_of(rows: Iterable[Row], after: int = 0) -> Iterator[Node]:
    """Yield the nodes of one run's rows, which are in order, after a number.

    The payload of a malformed node has the problem under ``malformed_row``. A row that also claims numbers of the rows
    before it has only those that are left.
    """
    last = after
    for row in rows:
        for node in _nodes_of_row(row):
            if node.number > last:
                yield node
        last = row.number


def _nodes_of_row(row: Row) -> Iterator[Node]:
    reading = RowReader()
    nothing: list[Json] = []
    preceding = reading.take(lambda: preceding_of(row.preceding), nothing)
    payload = reading.object("payload", row.payload)
    created_us = reading.take(lambda: number_of("created_us", row.created_us), 0)
    kind = reading.take(lambda: _kind_of(row.kind), NodeKind.USER)
    for number, entry in enumerate(preceding, start=row.number - len(preceding)):
        yield _node_of_entry(row.run_id, number, entry, created_us)
    if reading.problems:
        payload = {"v": 1, MALFORMED: reading.problem}
    yield Node(row.run_id, row.number, row.parent, kind, payload, created_us)


def _node_of_entry(run_id: str, number: int, entry: Json, created_us: int) -> Node:
    """Return an earlier node of a row; an invalid one is placed under the node before it, with the problem."""
    try:
        if not isinstance(entry, list) or len(entry) != ENTRY_FIELDS or not isinstance(entry[2], dict):
            raise MalformedError("preceding holds what is not a parent, a kind and a payload")
        parent = number - 1 if entry[0] is None else number_of("parent", entry[0])
        if parent >= number:
            raise MalformedError(f"parent is {parent} of node {number}")
        kind = _kind_of(word_of("kind", entry[1]))
        return Node(run_id, number, parent, kind, entry[2], created_us)
    except MalformedError as error:
        return Node(run_id, number, number - 1, NodeKind.USER, {"v": 1, MALFORMED: str(error)}, created_us)


def _kind_of(text: str) -> NodeKind:
    try:
        return NodeKind(text)
    except ValueError as error:
        raise MalformedError(f"kind is {text[:MAX_SHOWN_CHARS]!r}") from error
