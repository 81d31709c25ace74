"""Copies of an SQLite database: taken at one moment while others write it, and checked before use."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from soong.shared.core.errors import ForgedError, SchemaVersionError, UnavailableError
from soong.shared.storage.sql.engine.schema import HEAD


def copy_database(source: Path, target: Path) -> None:
    """Copy the database into a new file that its owner alone reads.

    The copy is one transaction of a reader: writers continue, and none of what they write meanwhile is in it.
    Raises: UnavailableError, the database cannot be read; OSError, the copy cannot be written.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    try:
        with (
            closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(target)) as copy,
        ):
            # All pages in one step: with several, each write of others would make it begin again.
            reader.backup(copy, pages=-1)
            # A file of its own: nothing of it is in a second one.
            copy.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        raise UnavailableError(f"the database {source} cannot be copied: {error}") from error


def check_database(path: Path) -> str:
    """Return the revision of a copy's schema.
    Raises: ForgedError, it is damaged, or no database of ours; SchemaVersionError, it is newer than this program.
    """
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
            (found,) = reader.execute("PRAGMA integrity_check(1)").fetchone()
            (schema,) = reader.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, TypeError) as error:
        raise ForgedError(f"its database cannot be used: {error}", what="damaged_backup") from error
    if found != "ok":
        raise ForgedError(f"its database is damaged: {found}", what="damaged_backup")
    if schema > HEAD:
        raise SchemaVersionError(f"its database has schema {schema}, newer than this program's {HEAD}; upgrade soong")
    return str(schema)
