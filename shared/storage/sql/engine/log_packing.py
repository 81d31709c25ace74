"""Which events and which nodes of one write share a row: each row holds those before its own in ``preceding``."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from soong.shared.engine.runs.events import NodeKind
from soong.shared.storage.sql.engine.rows import pack
from soong.shared.storage.sql.engine.transaction import Row

ROW_ENTRIES: Final = 64
ROW_CHARS: Final = 64 * 1024
"""Most events or nodes in one row, and about how long they may be: a page of a log reads full rows."""


@lru_cache(maxsize=256)
def _word(text: str) -> str:
    """Return a type of events or a kind of nodes as JSON has it: there are few."""
    return pack(text)


def rows_of_events(events: Sequence[Row], now_us: int) -> list[Row]:
    """Return (place from the last event, type, time, data, preceding) of each row.

    ``events`` are (type, time or None for now, data).
    """
    if len(events) == 1:  # most rows of calls
        type_, time_us, data = events[0]
        return [(0, type_, now_us if time_us is None else time_us, data, "")]
    rows: list[Row] = []
    texts: list[str] = []
    size = 0
    left = len(events)
    for type_, given_us, data in events:
        time_us = now_us if given_us is None else given_us
        left -= 1
        if left and len(texts) + 1 < ROW_ENTRIES and size + len(data) <= ROW_CHARS:
            texts.append(f"[{_word(type_)},{time_us},{data}]")
            size += len(data)
            continue
        rows.append((left, type_, time_us, data, _list_of(texts)))
        texts, size = [], 0
    return rows


def rows_of_nodes(nodes: Sequence[Row], followers: int) -> list[Row]:
    """Return (place from the last node, parent, kind, payload, preceding) of each row; a result ends its row.

    ``nodes`` are (parent, kind, payload); ``followers`` is how many nodes without a row come after them.
    """
    rows: list[Row] = []
    texts: list[str] = []
    size = 0
    left = len(nodes)
    for parent, kind, payload in nodes:
        left -= 1
        if left and len(texts) + 1 < ROW_ENTRIES and size + len(payload) <= ROW_CHARS and kind != NodeKind.RESULT:
            texts.append(f"[{'null' if parent is None else pack(parent)},{_word(kind)},{payload}]")
            size += len(payload)
            continue
        rows.append((left + followers, parent, kind, payload, _list_of(texts)))
        texts, size = [], 0
    return rows


def _list_of(texts: Sequence[str]) -> str:
    return f"[{','.join(texts)}]" if texts else ""
