"""Search in short texts by BM25, with an SQLite FTS5 table in the memory of one process.

Owns how text becomes words. Words of several parts (``readFile``, ``read_file``) are found by each part, words of
Chinese, Japanese and Korean by each pair of neighbouring characters, English ones by their stem.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_QUERY_WORDS: Final = 64

_WORD: Final = re.compile(r"[^\W_]+")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_UNSPACED: Final = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufad9"
_WITHOUT_SPACES: Final = re.compile(f"[{_UNSPACED}]+")
_RUNS: Final = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")


def words_of(text: str) -> list[str]:
    """Return the words by which a text is found, in lower case and in order."""
    words: list[str] = []
    for word in _WORD.findall(text):
        parts = (_PARTS if word.isascii() else _RUNS).findall(word)
        if len(parts) > 1 and word.isascii():
            words.append(word.lower())
        for part in parts:
            is_cut = len(part) > 1 and _WITHOUT_SPACES.fullmatch(part)
            words += [part[at : at + 2] for at in range(len(part) - 1)] if is_cut else [part.lower()]
    return words


@dataclass(slots=True)
class FullTextIndex:
    """Documents by key. ``weights`` say how much a hit counts in each field of a document. Safe for several threads."""

    weights: Sequence[float]
    _rows: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _database: sqlite3.Connection = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        fields = ", ".join(self._fields)
        self._database.execute(
            f"CREATE VIRTUAL TABLE documents USING fts5(key UNINDEXED, {fields}, tokenize = 'porter unicode61')"
        )

    @property
    def _fields(self) -> list[str]:
        return [f"field_{place}" for place in range(len(self.weights))]

    def put(self, key: str, texts: Sequence[str]) -> None:
        """Add a document, one text for each weight, in place of one with its key."""
        marks = ", ".join("?" * (len(self.weights) + 1))
        said = [" ".join(words_of(text)) for text in texts]
        with self._lock:
            self._remove(key)
            row = self._database.execute(f"INSERT INTO documents VALUES ({marks})", (key, *said)).lastrowid  # noqa: S608  # marks only
            self._rows[key] = row or 0

    def remove(self, key: str) -> None:
        with self._lock:
            self._remove(key)

    def search(self, query: str, limit: int, accepts: Callable[[str], bool] = lambda _key: True) -> list[str]:
        """Return the keys of the documents that have a word of the query, the best first, at most ``limit``."""
        words = list(dict.fromkeys(words_of(query)))[:MAX_QUERY_WORDS]
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)
        weights = ", ".join(str(float(weight)) for weight in self.weights)
        found: list[str] = []
        with self._lock:
            statement = (
                f"SELECT key FROM documents WHERE documents MATCH ? ORDER BY bm25(documents, 0.0, {weights}), rowid"  # noqa: S608  # numbers only
            )
            for (key,) in self._database.execute(statement, (wanted,)):
                if accepts(key):
                    found.append(key)
                if len(found) == limit:
                    break
        return found

    def close(self) -> None:
        self._database.close()

    def _remove(self, key: str) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._database.execute("DELETE FROM documents WHERE rowid = ?", (row,))
