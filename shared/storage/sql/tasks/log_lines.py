"""The lines of runs in SQL (LOG-01)."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from soong.shared.core.log_lines import GatheredLine, LineStream, LogLine
from soong.shared.engine.runs.lines import LineRow, lines_of_rows
from soong.shared.engine.runs.record import RunStatus
from soong.shared.storage.sql.engine.columns import MAX_COUNT
from soong.shared.storage.sql.engine.statements import Statement, table_read
from soong.shared.storage.sql.engine.tables.work import log_lines
from soong.shared.storage.sql.engine.transaction import Transaction

PUT_LINES: Final = Statement(
    "put lines: rows of lines, each in place of what its place held; those of a run that is not held are dropped",
    """
    INSERT INTO log_lines (run_id, place, number, lines)
    SELECT c.run_id, c.place, c.number, c.lines
    FROM @changes c(run_id text, fence bigint, place bigint, number bigint, lines text, status text)
    JOIN runs ON runs.id = c.run_id AND runs.fence = c.fence AND runs.status = c.status
    WHERE true
    ON CONFLICT (run_id, place) DO UPDATE SET number = excluded.number, lines = excluded.lines
    """,
)
PLACES: Final = Statement(
    "places: the number of the last line and the place of each of a run's few rows",
    "SELECT number, place FROM log_lines WHERE run_id = :run_id",
)
LINES: Final = table_read("lines: of a run, after one", log_lines, "WHERE run_id = :run_id AND number > :after")
"""In the order of places, not of numbers."""
_Time = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
_DECODER: Final = msgspec.json.Decoder(list[tuple[_Time, LineStream, str, str]])


def put_lines(tx: Transaction, writes: Sequence[Sequence[LineRow]]) -> list[None]:
    """Write rows that were handed over at once; of those for one place the last one."""
    newest = {(one.run_id, one.place): one for write in writes for one in write}
    # The status comes with each row: as a condition on runs alone it would have the planner begin with all of them.
    held = RunStatus.RUNNING.value
    rows = [
        (one.run_id, one.fence, one.place, one.number, msgspec.json.encode(one.lines).decode(), held)
        for one in newest.values()
    ]
    tx.change(PUT_LINES, rows)
    return [None] * len(writes)


def read_lines(tx: Transaction, run_id: str, after: int) -> list[LogLine]:
    """Return the lines of a run after one; a worker writes their rows, and one that is malformed is one line."""
    rows = sorted(tx.rows(LINES, run_id=run_id, after=after), key=lambda row: row.number)
    return list(lines_of_rows(((row.number, _read(row)) for row in rows), after))


def _read(row: Any) -> Sequence[GatheredLine]:
    try:
        return _DECODER.decode(row.lines)
    except (msgspec.MsgspecError, RecursionError):
        return [(0, LineStream.LEFT_OUT, "", "a malformed row of lines is left out")]
