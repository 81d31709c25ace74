"""The store over SQL: all four ports on one database."""

import asyncio

from shared.adapters.sql.access import SqlAccess
from shared.adapters.sql.auditing import AuditTrail, SqlAudit
from shared.adapters.sql.bad_workers import SqlBadWorkers
from shared.adapters.sql.consent import SqlConsent
from shared.adapters.sql.database import Database
from shared.adapters.sql.engine import parse_url
from shared.adapters.sql.further import SqlFurther
from shared.adapters.sql.heart import SqlHeart
from shared.adapters.sql.keys import SqlKeys
from shared.adapters.sql.reading import Contexts
from shared.adapters.sql.retrying import SqlRetrying
from shared.adapters.sql.runs import SqlRuns
from shared.adapters.sql.schema import prepare
from shared.adapters.sql.sessions import SqlSessions
from shared.adapters.sql.settling import SqlSettling
from shared.adapters.sql.steering import SqlSteering
from shared.adapters.sql.tasks import SqlTasks
from shared.sandbox.redact import Redactor
from shared.sessions.store import Heart


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
    """Implements :class:`shared.store.Store`. One object a process; safe from any loop and thread."""

    def __init__(self, database: Database, redactor: Redactor | None = None) -> None:
        self._database = database
        self._trail = AuditTrail(redactor or Redactor())
        self._contexts = Contexts()

    def heart(self) -> Heart:
        return SqlHeart(self._database.url, self._database.credential)

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
