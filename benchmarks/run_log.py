"""What the rows of a task's runs say, read from outside the service."""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

import psycopg

CALL_ENDS: Final = frozenset({"tool_completed", "tool_failed"})
_LOG: Final = """
    SELECT events.type, events.time_us, events.data, events.preceding FROM events JOIN runs ON runs.id = events.run_id
    WHERE runs.task_id = {}
"""
_SIZES: Final = """
    SELECT length(nodes.payload), nodes.preceding FROM nodes JOIN runs ON runs.id = nodes.run_id
    WHERE runs.task_id = {} ORDER BY nodes.run_id, nodes.number
"""


class RunLog(Protocol):
    """Reads the runs of a task."""

    def rows(self, question: str, task_id: str) -> Sequence[tuple[object, ...]]: ...


class SqliteLog:
    """Implements :class:`RunLog`."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def rows(self, question: str, task_id: str) -> Sequence[tuple[object, ...]]:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            return connection.execute(question.format("?"), (task_id,)).fetchall()


class PostgresLog:
    """Implements :class:`RunLog`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, question: str, task_id: str) -> Sequence[tuple[object, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(question.format("%s").encode(), (task_id,)).fetchall()


def call_ends(log: RunLog, task_id: str) -> dict[str, int]:
    """Return by the call's id when it ended, in microseconds of the wall clock."""
    ends = {}
    for type_, time_us, data, preceding in log.rows(_LOG, task_id):
        earlier = json.loads(str(preceding)) if preceding else []
        for kind, at_us, told in (*earlier, (type_, time_us, json.loads(str(data)))):
            if kind in CALL_ENDS:
                ends[str(told["tool_call_id"])] = int(str(at_us))
    return ends


def node_sizes(log: RunLog, task_id: str) -> list[int]:
    """Return the characters that each node of the runs stores, in order."""
    sizes: list[int] = []
    for size, preceding in log.rows(_SIZES, task_id):
        earlier = json.loads(str(preceding)) if preceding else []
        sizes += [len(json.dumps(payload, separators=(",", ":"))) for _, _, payload in earlier]
        sizes.append(int(str(size)))
    return sizes
