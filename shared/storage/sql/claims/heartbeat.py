"""The heartbeat of a worker: blocking, on a connection of its own, so that no busy writer of this process delays it."""

from contextlib import nullcontext
from typing import Final

from sqlalchemy import URL

from soong.shared.storage.sql.engine.engine import make_engine, our_errors
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_lock import write_lock

BEAT: Final = Statement(
    "beat: one more, unless the worker has been declared gone",
    "UPDATE workers SET beat = beat + 1 WHERE id = :worker_id AND state <> 'gone'",
)


class SqlHeartbeatWriter:
    """Implements :class:`soong.shared.engine.sessions.store.HeartbeatWriter`. Used by one thread at a time."""

    def __init__(self, url: URL, credential: str = "") -> None:
        engine = make_engine(url, size=1, is_writer=True, credential=credential)
        # One statement needs no transaction around it: over a slow network a beat then takes one round trip, not four.
        is_postgres = engine.dialect.name == "postgresql"
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT") if is_postgres else engine
        self._lock = write_lock(url)

    def beat(self, worker_id: str) -> bool:
        held = self._lock.held() if self._lock is not None else nullcontext()
        with our_errors():
            try:
                with held, self._engine.connect() as connection, connection.begin():
                    return Transaction(connection).count(BEAT, worker_id=worker_id) > 0
            except Exception:
                # Whatever happened to the connection, the next beat takes a new one.
                self._engine.dispose()
                raise

    def close(self) -> None:
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()
