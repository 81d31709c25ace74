"""The store over SQL: all four ports on one database."""

import asyncio

from soong.shared.engine.sessions.store import HeartbeatWriter
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.sql.claims.additional_claims import SqlFurther
from soong.shared.storage.sql.claims.claim_context import Contexts
from soong.shared.storage.sql.claims.heartbeat import SqlHeartbeatWriter
from soong.shared.storage.sql.consent.consent import SqlConsent
from soong.shared.storage.sql.engine.audit_log import AuditTrail, SqlAudit
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.schema import prepare
from soong.shared.storage.sql.people.access import SqlAccess
from soong.shared.storage.sql.people.keys import SqlKeys
from soong.shared.storage.sql.tasks.bad_workers import SqlBadWorkers
from soong.shared.storage.sql.tasks.failures import SqlSettling
from soong.shared.storage.sql.tasks.retrying import SqlRetrying
from soong.shared.storage.sql.tasks.runs import SqlRuns
from soong.shared.storage.sql.tasks.sessions import SqlSessions
from soong.shared.storage.sql.tasks.task_commands import SqlSteering
from soong.shared.storage.sql.tasks.tasks import SqlTasks


class SqlStore(
    SqlSessions,
    SqlTasks,
    SqlFurther,
    SqlBadWorkers,
    SqlSettling,
    SqlSteering,
    SqlRetrying,
    SqlRuns,
    SqlConsent,
    SqlKeys,
    SqlAccess,
    SqlAudit,
):
    """Implements :class:`soong.shared.storage.store.Store`. One object a process; safe from any loop and thread."""

    def __init__(self, database: Database, redactor: Redactor | None = None) -> None:
        self._database = database
        self._trail = AuditTrail(redactor or Redactor())
        self._contexts = Contexts()

    def heart(self) -> HeartbeatWriter:
        return SqlHeartbeatWriter(self._database.url, self._database.credential)

    async def close(self) -> None:
        """Finish what was handed in and close every connection. Idempotent."""
        await asyncio.to_thread(self._database.close)


async def open_store(
    url: str, *, migrate: bool = False, redactor: Redactor | None = None, credential: str = ""
) -> SqlStore:
    """Open the database at ``sqlite:////absolute/path`` or ``postgresql://…``.

    With ``migrate`` it is created or brought to our schema first; without, another schema is refused. ``redactor``
    knows the secrets of this process, for what the audit log says. ``credential`` is a secret that a worker's process
    makes anew at each start: where roles are given rights, the database lets it touch only what it holds.

    Raises:
        InvalidConfigError: not such a URL, or a file that cannot be used.
        SchemaVersionError: the schema is not this program's.
        UnavailableError: the database does not answer.
    """
    parsed = parse_url(url)
    await asyncio.to_thread(prepare, parsed, migrate=migrate)
    return SqlStore(Database(parsed, credential), redactor)
