"""Databases of both kinds for the tests of the SQL adapter, and what several of them do with one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pkgutil import iter_modules

from sqlalchemy import Connection

import shared.adapters.sql
from shared.adapters.sql.engine import make_engine, parse_url
from shared.adapters.sql.statements import Statement
from shared.adapters.sql.store import SqlStore, open_store
from shared.sessions.session import Session
from shared.tasks.step import Claim
from shared.testing.builders import make_session, make_step, make_task, make_worker
from shared.testing.clock import START_US


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
    await store.open_session(session)
    await store.register_worker(worker)
    return session, worker.id


async def claim_one(store: SqlStore, session: Session, worker_id: str) -> Claim:
    """Create a task of one step and claim it."""
    await store.create_task(make_task(session.id, make_step("a")))
    advance = await store.advance(
        worker_id, (), claim=1, pools=("default",), capabilities=(), live_workers=1, now_us=START_US
    )
    return advance.claims[0]


def statements() -> dict[str, Statement]:
    """Return every hand-written statement by module and name."""
    found = {}
    for module in iter_modules(shared.adapters.sql.__path__):
        if not module.ispkg:
            names = vars(import_module(f"{shared.adapters.sql.__name__}.{module.name}"))
            found.update(
                {f"{module.name}.{name}": value for name, value in names.items() if isinstance(value, Statement)}
            )
    return found
