"""The script that makes an SQLite database, as the migrations do: ``python -P -m tests.sqlite_script`` writes it."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from soong.shared.storage.sql.engine.engine import make_engine, parse_url
from soong.shared.storage.sql.engine.schema import HEAD, SQLITE_SCRIPT, upgrade


def script(folder: Path) -> str:
    """Return the script, from a database that the migrations make in this folder."""
    path = folder / "migrated.db"
    path.touch()
    engine = make_engine(parse_url(f"sqlite:///{path}"), size=1, is_writer=True)
    try:
        with engine.connect() as connection, connection.begin():
            upgrade(connection)
    finally:
        engine.dispose()
    with closing(sqlite3.connect(path)) as made:
        found = made.execute(
            "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type = 'table' DESC, "
            "CASE type WHEN 'table' THEN rowid END, type, name"
        )
        statements = [f"{sql};" for (sql,) in found]
    return "\n".join(
        (
            "-- Written by tests/sqlite_script.py from what the migrations make: edit those.",
            "PRAGMA journal_mode=WAL;",
            "BEGIN IMMEDIATE;",
            *statements,
            f"INSERT INTO alembic_version VALUES ('{HEAD}');",
            "COMMIT;",
            "",
        )
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        SQLITE_SCRIPT.write_text(script(Path(place)), encoding="utf-8")
