"""Databases of both kinds for the tests of the SQL adapter, and what several of them do with one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pkgutil import walk_packages

from sqlalchemy import Connection

import soong.shared.storage.sql
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.engine.engine import make_engine, parse_url
from soong.shared.storage.sql.engine.statements import Statement
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.model.builders import make_session, make_step, make_task, make_worker, take_turn


@asynccontextmanager
async def opened(url: str, *, migrate: bool = True) -> AsyncIterator[SqlStore]:
    store = await open_store(url, migrate=migrate)
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def connected(url: str, *, is_writer: bool = True) -> Iterator[Connection]:
    """A connection as the writer has it, or as a reader does."""
    engine = make_engine(parse_url(url), size=1, is_writer=is_writer)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


async def begin(store: SqlStore) -> tuple[Session, str]:
    """Open an owned session and register a worker; return both."""
    session, worker = make_session(owner_id="own_1"), make_worker()
    await store.sessions.open_session(session)
    await store.sessions.register_worker(worker)
    return session, worker.id


async def claim_one(store: SqlStore, session: Session, worker_id: str) -> Claim:
    """Create a task of one step and claim it."""
    await store.tasks.create_task(make_task(session.id, make_step("a")))
    advance = await take_turn(store, worker_id)
    return advance.claims[0]


def statements() -> dict[str, Statement]:
    """Return every hand-written statement by module and name."""
    found = {}
    sql = soong.shared.storage.sql
    for module in walk_packages(sql.__path__, f"{sql.__name__}."):
        if module.ispkg or ".migrations." in module.name:
            continue
        short = module.name.removeprefix(f"{sql.__name__}.").partition(".")[2] or module.name
        names = vars(import_module(module.name))
        found.update({f"{short}.{name}": value for name, value in names.items() if isinstance(value, Statement)})
    return found
