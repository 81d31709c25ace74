"""Mutants with names: places that no test noticed once, in ``named.toml``, which ``make mutants NAMED=1`` keeps killed.

Each entry has the module, the text that is there once, what replaces it, and the test files that must notice.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.mutation.operators import Mutant
from tests.mutation.selection import Subject

TABLE = Path(__file__).with_name("named.toml")


def named_mutants(root: Path, table: Path = TABLE) -> Iterator[tuple[Subject, Mutant]]:
    """Give each entry's module with its judges, and its mutant; those of one module follow each other.

    Raises:
        ValueError: the text is not there, or more than once: the entry has to follow the code.
    """
    entries = tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]
    for entry in sorted(entries, key=lambda entry: str(entry["path"])):
        path, old = entry["path"], entry["old"]
        text = (root / path).read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{table.name}, {entry['name']!r}: {path} has {old!r} {text.count(old)} times, not once")
        line = text[: text.index(old)].count("\n") + 1
        yield (
            Subject(path, (), tuple(entry["tests"])),
            Mutant(path, line, entry["name"], text.replace(old, entry["new"])),
        )
