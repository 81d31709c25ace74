"""The scripts that make a database, from the tables: ``python -P -m tests.schema_scripts`` writes them, and HEAD."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from soong.shared.storage.sql.engine import schema
from soong.shared.storage.sql.engine.columns import add_dialect_options
from soong.shared.storage.sql.engine.schema import MIGRATIONS
from soong.shared.storage.sql.engine.tables import metadata

DIALECTS: Mapping[str, Any] = {"sqlite": sqlite, "postgresql": postgresql}


def scripts() -> Mapping[str, str]:
    """Return the script of each database."""
    add_dialect_options(metadata)
    heading = "-- Written by tests/schema_scripts.py from the tables: edit those."
    return {name: "\n".join([heading, *_statements(dialects.dialect()), ""]) for name, dialects in DIALECTS.items()}


def head(made: Mapping[str, str]) -> str:
    """Return the revision of the one migration: until the first release it tells one form of it from another."""
    return f"0001_{hashlib.sha256(''.join(made.values()).encode()).hexdigest()[:8]}"


def _statements(dialect: Dialect) -> Iterator[str]:
    for table in metadata.sorted_tables:
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        made: list[DDLElement] = [CreateTable(table), *map(CreateIndex, indexes)]
        for each in made:
            lines = str(each.compile(dialect=dialect)).strip().expandtabs(4).splitlines()
            yield "\n".join(line.rstrip() for line in lines) + ";"
        if dialect.name == "postgresql":
            yield from (f"{statement};" for statement in table.info.get("on_postgres", ()))


if __name__ == "__main__":
    found = scripts()
    for database, text in found.items():
        (MIGRATIONS / f"{database}.sql").write_text(text, encoding="utf-8")
    path = Path(schema.__file__)
    source = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'(?m)^HEAD: Final = ".*"$', f'HEAD: Final = "{head(found)}"', source), encoding="utf-8")
