"""Gives the rights of :mod:`soong.shared.storage.sql.roles.role_privileges` to database roles, on PostgreSQL
(``soong migrate --grant-…``).

Run by the owner of the tables after each migration. All of a role's rights are revoked and granted again in one
transaction, so nothing of an older version stays and no process sees a moment without them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import URL, Connection, text

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.value import Value
from soong.shared.permissions.access.token import DatabaseRights
from soong.shared.storage.sql.claims.claiming import LANES, LIVE_LEASES
from soong.shared.storage.sql.engine.columns import WRITES, checks_of, limits_of, written_by_worker
from soong.shared.storage.sql.engine.engine import make_engine, our_errors
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.roles.role_privileges import (
    CHANGED,
    CLIENT_ADDS,
    CLIENT_CHANGES,
    CLIENT_EMPTIES,
    EMPTIED,
    HOLDS,
    HOLDS_BODY,
    LAST_TURN,
    LAST_TURN_BODY,
    WORKER,
    WorkerRight,
    kept_rows,
    row_rules,
)
from soong.shared.storage.sql.tasks.metrics import BESIDE

VERSION_TABLE: Final = "alembic_version"

_LOCK: Final = text("SELECT pg_advisory_xact_lock(7266110104)")
"""One at a time: two that give rights at once would each find the other's row checks half made."""

_POLICIES: Final = ("soong_read", "soong_new", "soong_changed", "soong_others", "soong_values")
_VALUED: Final = ("steps", "runs")
"""Tables whose checks PostgreSQL has as row checks alone (``sqlite_checks`` of their columns' module)."""

_ROLE: Final = text(
    "SELECT rolsuper OR rolbypassrls AS is_above_rights, "
    "rolname = current_user OR pg_has_role(rolname, current_user, 'MEMBER') AS is_owner "
    "FROM pg_roles WHERE rolname = :role"
)
_NOT_OURS: Final = text(
    "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY(:tables) "
    "AND NOT pg_has_role(current_user, tableowner, 'USAGE')"
)
_SEQUENCE: Final = text("SELECT pg_get_serial_sequence(:table, 'ordinal')")

# Volatile: it sees the changes of the statement so far. Its own search path: a role may have tables of any name.
_HOLDS: Final = (
    f"CREATE OR REPLACE FUNCTION {{schema}}.{HOLDS}(run text) RETURNS boolean LANGUAGE plpgsql VOLATILE"
    f" SET search_path = {{schema}}, pg_temp AS $soong$ BEGIN RETURN ({HOLDS_BODY}); END $soong$"
)
# Stable: it sees what was before the statement, not what the statement itself has written by then.
_LAST_TURN: Final = (
    f"CREATE OR REPLACE FUNCTION {{schema}}.{LAST_TURN}() RETURNS bigint LANGUAGE plpgsql STABLE"
    f" SET search_path = {{schema}}, pg_temp AS $soong$ BEGIN RETURN ({LAST_TURN_BODY}); END $soong$"
)

SLOTS_WANTED: Final = "soong_slots_wanted"
"""``SELECT soong_slots_wanted('default')``."""

COUNTED: Final = 10_000
"""How far ready steps of a lane are counted: more call for no other number of workers."""

_SCOPES: Final = (
    "ARRAY['session:' || its.session_id, 'definition:' || its.definition, 'model:' || its.model, 'pool:' || its.pool]"
)

# A definer's function: its caller needs no right on the tables. The limits are shared out lane by lane.
_FUNCTION: Final = f"""
CREATE OR REPLACE FUNCTION {{schema}}.{SLOTS_WANTED}(wanted_pool text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = {{schema}}, pg_temp AS $soong$
#variable_conflict use_column
DECLARE
    room jsonb;
    found_row record;
    one_scope text;
    fitting bigint;
    slots_wanted bigint := 0;
BEGIN
    SELECT coalesce(jsonb_object_agg(scope, slots * (1 - is_paused)), jsonb_build_object()) INTO room
        FROM concurrency_limits;
    FOR found_row IN SELECT its.pool, its.number, {_SCOPES} AS scopes FROM ({LIVE_LEASES.postgres}) AS its LOOP
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted + greatest(found_row.number, 0);
        END IF;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            IF room ? one_scope THEN
                room := room || jsonb_build_object(one_scope, (room->>one_scope)::bigint - found_row.number);
            END IF;
        END LOOP;
    END LOOP;
    FOR found_row IN {BESIDE.postgres} LOOP
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted - found_row.count;
        END IF;
    END LOOP;
    FOR found_row IN
        SELECT its.pool, its.ready, {_SCOPES} AS scopes
        FROM ({LANES.postgres.replace("%(most)s", str(COUNTED))}) AS its WHERE its.claim_mode = 'assigned'
    LOOP
        fitting := found_row.ready;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            fitting := least(fitting, greatest(coalesce((room->>one_scope)::bigint, fitting), 0));
        END LOOP;
        FOREACH one_scope IN ARRAY found_row.scopes LOOP
            IF room ? one_scope THEN
                room := room || jsonb_build_object(one_scope, (room->>one_scope)::bigint - fitting);
            END IF;
        END LOOP;
        IF found_row.pool = wanted_pool THEN
            slots_wanted := slots_wanted + fitting;
        END IF;
    END LOOP;
    RETURN slots_wanted;
END $soong$
"""  # noqa: S608  # of texts of our own

_RIGHTS: Final = text(
    """
    SELECT current_user,
           EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'decisions'
                   AND pg_has_role(current_user, tableowner, 'USAGE')),
           has_any_column_privilege('decisions', 'INSERT') OR has_any_column_privilege('signing_keys', 'INSERT')
    """
)


class Roles(Value):
    """The roles of a deployment; an empty name is left as it is."""

    worker: str = ""
    orchestrator: str = ""
    client: str = ""
    scaler: str = ""
    """It may ask how many slots a pool wants, and nothing else."""

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(role for role in (self.worker, self.orchestrator, self.client, self.scaler) if role)


def grant(url: URL, roles: Roles) -> None:
    """Give the roles their rights on a migrated database, and take every other one on our tables from them.
    Raises: InvalidConfigError, not PostgreSQL, a role that is not there, one to which rights mean nothing, or tables
    that are another's; UnavailableError, the database does not answer.
    """
    if url.get_backend_name() != "postgresql":
        raise InvalidConfigError("database roles are PostgreSQL's: an SQLite file is read and written by its owner")
    if len(set(roles.named)) < len(roles.named):
        shared = next(role for role in roles.named if roles.named.count(role) > 1)
        raise InvalidConfigError(f"two parts cannot share the role {shared!r}; make one for each")
    engine = make_engine(url, size=1, is_writer=True)
    try:
        with our_errors(), engine.connect() as connection, connection.begin():
            connection.execute(_LOCK)
            _check(connection, roles)
            for statement in _statements(connection, roles):
                connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def _check(connection: Connection, roles: Roles) -> None:
    for role in roles.named:
        found = connection.execute(_ROLE, {"role": role}).first()
        if found is None:
            raise InvalidConfigError(f"there is no database role {role!r}; make it first: CREATE ROLE {role} LOGIN")
        if found.is_above_rights:
            raise InvalidConfigError(f"the database role {role!r} is above all rights; name one that bypasses none")
        if found.is_owner:
            raise InvalidConfigError(f"the database role {role!r} is, or may become, the owner of the tables")
    others = connection.execute(_NOT_OURS, {"tables": sorted(metadata.tables)}).scalars().all()
    if others:
        raise InvalidConfigError(f"{', '.join(others)} belong to another role: run `soong migrate` as their owner")


def _statements(connection: Connection, roles: Roles) -> Iterator[str]:
    quote = connection.dialect.identifier_preparer.quote
    schema = quote(str(connection.execute(text("SELECT current_schema()")).scalar_one()))
    sequences = {
        name: str(connection.execute(_SEQUENCE, {"table": name}).scalar_one())
        for name, table in metadata.tables.items()
        if "ordinal" in table.columns
    }
    for role in map(quote, roles.named):
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role}"
        yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role}"
        yield f"REVOKE ALL ON SCHEMA {schema} FROM {role}"
        yield f"GRANT USAGE ON SCHEMA {schema} TO {role}"
    for role in (quote(role) for role in roles.named if role != roles.scaler):
        yield f"GRANT SELECT ON {VERSION_TABLE} TO {role}"
    if roles.worker or roles.orchestrator:
        yield from kept_rows(schema)
    if roles.worker:
        yield from _grants(quote(roles.worker), _worker_rights, sequences)
        yield _HOLDS.format(schema=schema)
        yield _LAST_TURN.format(schema=schema)
        yield from _row_checks(quote(roles.worker), roles.worker.replace("'", "''"))
        yield from _value_checks([quote(role) for role in roles.named if role != roles.scaler])
        yield from row_rules(schema, roles.worker.replace("'", "''"))
    if roles.orchestrator:
        yield from _grants(quote(roles.orchestrator), _orchestrator_rights, sequences)
    if roles.client:
        yield from _grants(quote(roles.client), _client_rights, sequences)
    if roles.scaler:
        yield from scaler_grants(schema, quote(roles.scaler))


def _worker_rights(table: str) -> list[str]:
    right = WORKER.get(table)
    if right is None:
        return []
    written = {verb: written_by_worker(metadata.tables[table], verb) for verb in WRITES}
    sees = [f"SELECT ({', '.join(right.sees)})"] if right.sees else []
    given = [f"{verb} ({', '.join(columns)})" for verb, columns in written.items() if columns]
    return [*(["SELECT"] if right.reads else []), *sees, *given]


def _orchestrator_rights(table: str) -> list[str]:
    more = ("UPDATE", table in CHANGED), ("DELETE", table in EMPTIED)
    return ["SELECT", "INSERT", *(verb for verb, is_given in more if is_given)]


def _client_rights(table: str) -> list[str]:
    changes = f"UPDATE ({', '.join(CLIENT_CHANGES.get(table, ()))})"
    more = ("INSERT", table in CLIENT_ADDS), (changes, table in CLIENT_CHANGES), ("DELETE", table in CLIENT_EMPTIES)
    return ["SELECT", *(verb for verb, is_given in more if is_given)]


def _grants(role: str, rights: Callable[[str], list[str]], sequences: Mapping[str, str]) -> Iterator[str]:
    """Give a role its rights on each table, and on the numbers of those in which it inserts."""
    for table in metadata.tables:
        if given := rights(table):
            yield f"GRANT {', '.join(given)} ON {table} TO {role}"
        if table in sequences and any(right.startswith("INSERT") for right in given):
            yield f"GRANT USAGE ON SEQUENCE {sequences[table]} TO {role}"


def _value_checks(roles: Sequence[str]) -> Iterator[str]:
    """Let no role leave a value in these tables that nobody can use, such as a number at the end of its range."""
    for table in _VALUED:
        checks = checks_of(metadata.tables[table])
        yield (
            f"CREATE POLICY soong_values ON {table} AS RESTRICTIVE FOR ALL TO {', '.join(roles)}"
            f" USING (true) WITH CHECK ({checks})"
        )


def _and(condition: str, fits: str) -> str:
    return f"({condition}) AND {fits}" if fits else condition


def _row_checks(role: str, name: str) -> Iterator[str]:
    """Check a worker's rows where columns do not say enough; everybody else passes, the tables' owner unasked.

    ``name`` is the role as text in a condition, ``role`` as an identifier.
    """
    for table in metadata.tables:
        right = WORKER.get(table, WorkerRight())
        for policy in _POLICIES:
            yield f"DROP POLICY IF EXISTS {policy} ON {table}"
        if not right.is_checked:
            yield f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY"
            continue
        old, changed = right.old or "true", _and(right.changed or "false", limits_of(metadata.tables[table], "UPDATE"))
        new = _and(right.new or "false", limits_of(metadata.tables[table], "INSERT"))
        others = f"current_user <> '{name}'"
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        yield f"CREATE POLICY soong_read ON {table} FOR SELECT TO PUBLIC USING (true)"
        yield f"CREATE POLICY soong_new ON {table} FOR INSERT TO {role} WITH CHECK ({new})"
        yield f"CREATE POLICY soong_changed ON {table} FOR UPDATE TO {role} USING ({old}) WITH CHECK ({changed})"
        yield f"CREATE POLICY soong_others ON {table} FOR ALL TO PUBLIC USING ({others}) WITH CHECK ({others})"


def scaler_grants(schema: str, role: str) -> Iterator[str]:
    """Return what makes the question one that this role alone may ask, besides the owner. Both names are quoted."""
    yield _FUNCTION.format(schema=schema)
    yield f"REVOKE ALL ON FUNCTION {schema}.{SLOTS_WANTED}(text) FROM PUBLIC"
    yield f"GRANT EXECUTE ON FUNCTION {schema}.{SLOTS_WANTED}(text) TO {role}"


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
