"""The store over SQL: all ports on one database."""

import asyncio
from contextlib import nullcontext
from typing import Final

from sqlalchemy import URL

from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.sql.claims.additional_claims import SqlAdditionalClaims
from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.consent.consent import SqlConsentStore
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import make_engine, our_errors, parse_url
from soong.shared.storage.sql.engine.owned_writes import AuditTrail
from soong.shared.storage.sql.engine.schema import prepare
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.engine.transaction import Transaction
from soong.shared.storage.sql.engine.write_ahead_log import write_lock
from soong.shared.storage.sql.people.keys import SqlAccessStore, SqlAuditStore, SqlKeyStore
from soong.shared.storage.sql.tasks.budgets import SqlBudgetStore, SqlUsageSums
from soong.shared.storage.sql.tasks.event_feed import SqlFeed, SqlOutbox
from soong.shared.storage.sql.tasks.failures import SqlFailures
from soong.shared.storage.sql.tasks.retrying import SqlRetrying
from soong.shared.storage.sql.tasks.runs import SqlRuns
from soong.shared.storage.sql.tasks.sessions import SqlSessionStore
from soong.shared.storage.sql.tasks.task_commands import SqlTaskCommands
from soong.shared.storage.sql.tasks.task_ends import SqlAskStore
from soong.shared.storage.sql.tasks.tasks import SqlTasks
from soong.shared.storage.sql.tasks.worker_claims import SqlWorkerClaims

BEAT: Final = Statement(
    "beat: one more, unless the worker has been declared gone",
    "UPDATE workers SET beat = beat + 1, left_over = :left_over WHERE id = :worker_id AND state <> 'gone'",
)


class SqlTaskStore(SqlTasks, SqlFailures, SqlTaskCommands, SqlRetrying):
    """Implements :class:`soong.shared.engine.tasks.store.TaskStore`."""


class SqlClaimStore(SqlWorkerClaims, SqlAdditionalClaims):
    """Implements :class:`soong.shared.engine.tasks.claims.ClaimStore`."""


class SqlRunStore(SqlRuns, SqlUsageSums):
    """Implements :class:`soong.shared.engine.runs.store.RunStore`."""


class SqlStore:
    """Implements :class:`soong.shared.storage.store.Store`. One object per process; safe from any loop and thread."""

    def __init__(self, database: Database, redactor: Redactor | None = None) -> None:
        self._database = database
        parts = self._parts = (database, AuditTrail(redactor or Redactor()), Contexts())
        self.sessions = SqlSessionStore(*parts)
        self.tasks = SqlTaskStore(*parts)
        self.asks = SqlAskStore(*parts)
        self.claims = SqlClaimStore(*parts)
        self.runs = SqlRunStore(*parts)
        self.budgets = SqlBudgetStore(*parts)
        self.consent = SqlConsentStore(*parts)
        self.keys = SqlKeyStore(*parts)
        self.access = SqlAccessStore(*parts)
        self.audit = SqlAuditStore(*parts)
        self.feed = SqlFeed(*parts)
        self.outbox = SqlOutbox(*parts)

    def heartbeat_writer(self) -> HeartbeatWriter:
        return SqlHeartbeatWriter(self._database.url, self._database.credential)

    async def close(self) -> None:
        """Finish what was handed in and close every connection. Idempotent."""
        await asyncio.to_thread(self._database.close)


async def open_store(
    url: str, *, migrate: bool = False, redactor: Redactor | None = None, credential: str = ""
) -> SqlStore:
    """Open the database at ``sqlite:////absolute/path`` or ``postgresql://…``.

    With ``migrate`` it is created or brought to our schema first; without, another schema is refused. ``redactor`` has
    the secrets of this process, for entries of the audit log. ``credential`` is a secret that a worker's process makes
    again at each start: with rights for roles, the database lets it touch only its held rows.
    Raises: InvalidConfigError, not such a URL, or a file that cannot be used; SchemaVersionError, the schema is not
    this program's; UnavailableError, the database does not answer.
    """
    parsed = parse_url(url)
    await asyncio.to_thread(prepare, parsed, migrate=migrate)
    return SqlStore(Database(parsed, credential), redactor)


class SqlHeartbeatWriter:
    """Implements :class:`soong.shared.engine.sessions.session.HeartbeatWriter`. Used by one thread at a time."""

    def __init__(self, url: URL, credential: str = "") -> None:
        engine = make_engine(url, size=1, is_writer=True, credential=credential)
        # One statement needs no transaction around it: over a slow network a beat then takes one round trip, not four.
        is_postgres = engine.dialect.name == "postgresql"
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT") if is_postgres else engine
        self._lock = write_lock(url)

    def beat(self, worker_id: str, left_over: str = "") -> bool:
        held = self._lock.held() if self._lock is not None else nullcontext()
        with our_errors():
            try:
                with held, self._engine.connect() as connection, connection.begin():
                    return Transaction(connection).count(BEAT, worker_id=worker_id, left_over=left_over) > 0
            except Exception:
                # The next beat takes a new connection, whatever the error.
                self._engine.dispose()
                raise

    def close(self) -> None:
        self._engine.dispose()
        if self._lock is not None:
            self._lock.close()
