"""What the databases count: the statements of an act, and not those that open one more connection for it."""

import asyncio
import threading
from pathlib import Path

from sqlalchemy import text

from benchmarks.counters import SqliteCounters, watching
from soong.shared.storage.sql.engine.database import READERS, Database
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.transaction import Transaction

BEGIN_READ_AND_ROLL_BACK = 3


async def test_statements_that_open_a_connection_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "counted.db"
    path.touch()
    all_at_once = threading.Barrier(READERS)

    def look(transaction: Transaction) -> None:
        all_at_once.wait(30)
        transaction.connection.execute(text("SELECT 1"))

    with watching(str(path)) as watch:
        database = Database(parse_url(f"sqlite:///{path}"))
        counters = SqliteCounters(watch)
        await asyncio.gather(*(database.read(look) for _ in range(READERS)))

        assert len(watch.connections) == READERS
        assert counters.read().statements <= READERS * BEGIN_READ_AND_ROLL_BACK
        database.close()
