"""What the database lets the role of a connection do, read from PostgreSQL itself (``soong doctor``)."""

from typing import Final

from sqlalchemy import URL, text

from soong.shared.permissions.access.store import DatabaseRights
from soong.shared.storage.sql.engine.engine import make_engine, our_errors

_RIGHTS: Final = text(
    """
    SELECT current_user,
           EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'decisions'
                   AND pg_has_role(current_user, tableowner, 'USAGE')),
           has_any_column_privilege('decisions', 'INSERT') OR has_any_column_privilege('signing_keys', 'INSERT')
    """
)


def standing(url: URL) -> DatabaseRights | None:
    """Return what the role of this URL may do; None for SQLite, which has no roles. Raises: UnavailableError."""
    if url.get_backend_name() != "postgresql":
        return None
    engine = make_engine(url, size=1, is_writer=False)
    try:
        with our_errors(), engine.connect() as connection:
            name, owns, decides = connection.execute(_RIGHTS).one()
    finally:
        engine.dispose()
    return DatabaseRights(str(name), owns_tables=bool(owns), decides=bool(decides))
