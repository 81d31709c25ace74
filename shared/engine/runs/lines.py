"""The rows that keep the lines of runs (LOG-01): few for each run, however much it writes.

A run has HEAD_ROWS rows for its first lines and TAIL_ROWS for its last ones, which are used in turn. The lines
that a row of the tail held before are left out, and readers see the gap in the numbers.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from soong.shared.core.log_lines import GatheredLine, LineStream, LogLine
from soong.shared.core.value import Value

HEAD_ROWS: Final = 16
TAIL_ROWS: Final = 16
ROW_LINES: Final = 100
ROW_CHARS: Final = 32 * 1024


class LineRow(Value):
    """Lines of one life of a run. ``number`` is that of the last of them; ``place`` is the row's, from 0 on."""

    run_id: str
    fence: int
    place: int
    number: int
    lines: tuple[GatheredLine, ...]


def next_place(place: int) -> int:
    """Return the place of the row after one; the tail begins again after its last row."""
    return place + 1 if place + 1 < HEAD_ROWS + TAIL_ROWS else HEAD_ROWS


def lines_of_rows(rows: Iterable[tuple[int, Iterable[GatheredLine]]], after: int) -> Iterator[LogLine]:
    """Yield the lines of rows, each the number of its last line and its lines, in the order of these numbers.

    One line stands for all that are missing before a row.
    """
    seen = after
    for last, lines in rows:
        kept = list(lines)
        first = last - len(kept) + 1
        if first > seen + 1:
            count = first - seen - 1
            words = "1 line is left out" if count == 1 else f"{count:,} lines are left out"
            yield LogLine(first - 1, kept[0][0] if kept else 0, LineStream.LEFT_OUT, "", words)
        for number, (time_us, stream, level, text) in enumerate(kept, start=first):
            if number > seen:
                yield LogLine(number, time_us, LineStream(stream), level, text)
        seen = max(seen, last)
