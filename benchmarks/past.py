"""A past for a database: one task that was really run, multiplied by SQL.

The template is written by the store itself, so its rows are what a run leaves today, whatever columns there are. Its
ids all begin with :data:`MARK`; a copy is the same rows with a number in its place, so every reference still holds.
Numbers are small and so lie before every id that is made later, as what is older does.
"""

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import psycopg
from sqlalchemy import Table, Text

from soong.shared.core.identity import ids_from
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import CommandKind, ProcessState, Session
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, ConcurrencyLimit, NewStep, StepEnd
from soong.shared.permissions.request import RequestState
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.model.builders import (
    make_answer,
    make_call,
    make_command,
    make_decision,
    make_owner,
    make_request,
    make_session,
    make_step,
    make_task,
    make_worker,
)

MARK: Final = "facade00"
"""What the template's ids begin with; it stands in no other text. As long as the number that takes its place."""

STEPS: Final = 100
"""Steps of the template's task, and so of every copy."""

LAYERS: Final = 10
LARGE: Final = 1_000
"""From so many copies on, PostgreSQL's indexes are made afterwards."""

_SHARED: Final = frozenset({"surfaces", "signing_keys"})
"""Tables whose rows all tasks have in common."""

_KEEP_INDEXES: Final = b"""
    UPDATE pg_index SET indisready = % WHERE indrelid IN (
        SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
    )
"""
_CLOCK: Final = SystemClock()


def fill(url: str, steps: int) -> None:
    """Write about ``steps`` finished steps, with all that finished steps leave, into the new database at ``url``."""
    asyncio.run(_write_template(url))
    copies = steps // STEPS
    if parse_url(url).get_backend_name() == "sqlite":
        _multiply_sqlite(url, copies)
    else:
        _multiply_postgres(url, copies)


def end_of(claim: Claim) -> StepEnd:
    """Return the end of a step as a worker tells it."""
    return StepEnd(
        step_key=claim.step_key,
        run_id=claim.identity.run_id,
        fence=claim.fence,
        status=StepStatus.COMPLETED,
        end_reason=EndReason.COMPLETED,
        output={"value": 1},
    )


async def call_tool(store: SqlStore, claim: Claim, tool_call_id: str = "call_1") -> None:
    """Record one call with its result, as a worker does."""
    call = make_call(claim, tool_call_id)
    await store.runs.start_call(
        call, claim.fence, events=[NewEvent(EventType.TOOL_STARTED, {})], now_us=_CLOCK.now_us()
    )
    await store.runs.end_call(
        call.run_id,
        claim.fence,
        call.tool_call_id,
        result={"v": 1, "text": "x" * 200},
        nodes=[NewNode(NodeKind.TOOL_RESULT, {"v": 1, "text": "x" * 200})],
        events=[NewEvent(EventType.TOOL_COMPLETED, {})],
        now_us=_CLOCK.now_us(),
    )


# -- the template
async def _write_template(url: str) -> None:
    """Run one task of :data:`STEPS` steps to its end: calls, a question with its answer, commands and all."""
    numbers = count(1)
    with ids_from(lambda: f"{MARK}{next(numbers):024x}"):
        store = await open_store(url, migrate=True)
        try:
            await _run_one(store)
        finally:
            await store.close()


async def _run_one(store: SqlStore) -> None:
    owner, worker = make_owner(), make_worker()
    session = make_session(owner_id=owner.id)
    await store.sessions.register_owner(owner)
    await store.sessions.register_worker(worker)
    await store.sessions.open_session(session)
    await store.claims.set_concurrency_limits([ConcurrencyLimit(f"session:{session.id}", STEPS)])
    task = make_task(session.id, *_layers())
    await store.tasks.create_task(task)
    claims = await _advance(store, worker.id, ())
    await _ask(store, session, claims[-1])
    while claims:
        for claim in claims[: len(claims) // 2]:
            await call_tool(store, claim)
        claims = await _advance(store, worker.id, claims)
    command = make_command(session.id, CommandKind.PAUSE, task.id)
    await store.sessions.send_command(command)
    await store.sessions.end_command(command.id, refusal="it is over")
    await store.tasks.finish_task(session.ownership, task.id, now_us=_CLOCK.now_us())
    await store.sessions.close_session(session.ownership)
    await store.sessions.set_worker_state(worker.id, ProcessState.GONE)
    await store.sessions.release_owner(owner.id)


def _layers() -> list[NewStep]:
    """Return layers of steps, each after two of the layer before."""
    wide = STEPS // LAYERS
    return [
        make_step(
            f"s{layer}_{place}",
            depends_on=[f"s{layer - 1}_{place}", f"s{layer - 1}_{(place + 1) % wide}"] if layer else [],
        )
        for layer in range(LAYERS)
        for place in range(wide)
    ]


async def _advance(store: SqlStore, worker_id: str, ended: Sequence[Claim]) -> tuple[Claim, ...]:
    ends = [end_of(claim) for claim in ended]
    taken = await store.claims.advance(
        worker_id, ends, claim=16, pools=("default",), capabilities=(), live_workers=1, now_us=_CLOCK.now_us()
    )
    return taken.claims


async def _ask(store: SqlStore, session: Session, claim: Claim) -> None:
    """Let one call ask, be answered, decided and begun: the decision is used."""
    request, now_us = make_request(claim), _CLOCK.now_us()
    await store.consent.raise_request(request, events=(), now_us=now_us)
    await store.consent.answer(make_answer(request))
    decision = make_decision(request)
    await store.consent.decide(session.ownership, decision, state=RequestState.DECIDED, events=(), now_us=now_us)
    call = make_call(claim, decision_id=decision.id)
    await store.runs.start_call(call, claim.fence, events=[NewEvent(EventType.TOOL_STARTED, {})], now_us=now_us)


# -- its copies
def _multiply_sqlite(url: str, copies: int) -> None:
    with sqlite3.connect(parse_url(url).database or "") as connection:
        # Nobody has it open, and a half-filled one is thrown away.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        counted = f"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {copies})"
        for statement in _statements(f"({counted} SELECT printf('%08x', i) AS n FROM c)"):
            connection.execute(statement)
        connection.commit()
        connection.execute("PRAGMA journal_mode = WAL")


def _multiply_postgres(url: str, copies: int) -> None:
    plain = parse_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        # What is copied refers to what is copied with it: not to be checked row by row. And an index of all rows is
        # sorted in a third of the time in which it grows row by row.
        for setting in (
            "session_replication_role = replica",
            "synchronous_commit = off",
            "maintenance_work_mem = '256MB'",
        ):
            connection.execute(f"SET {setting}".encode())
        is_large = copies >= LARGE
        if is_large:
            connection.execute(_KEEP_INDEXES.replace(b"%", b"false"))
        for statement in _statements(f"(SELECT lpad(to_hex(i), 8, '0') AS n FROM generate_series(1, {copies}) AS i)"):
            connection.execute(statement.encode())
        if is_large:
            connection.execute(_KEEP_INDEXES.replace(b"%", b"true"))
            connection.execute("REINDEX SCHEMA public")
        connection.execute("VACUUM (ANALYZE)")


def _statements(numbers: str) -> Iterator[str]:
    """Yield what multiplies every table by the rows of ``numbers``."""
    for table in metadata.sorted_tables:
        if table.name in _SHARED:
            continue
        names = [column.name for column in table.columns if column.name != "ordinal"]
        copied = ", ".join(_copied(table, name) for name in names)
        # The names are our own tables' and columns'.
        yield f"CREATE TEMP TABLE old_{table.name} AS SELECT * FROM {table.name}"
        yield (
            f"INSERT INTO {table.name} ({', '.join(names)}) "
            f"SELECT {copied} FROM {numbers} AS copy CROSS JOIN old_{table.name} AS old"
        )
        yield f"DROP TABLE old_{table.name}"


def _copied(table: Table, name: str) -> str:
    return f"replace(old.{name}, '{MARK}', copy.n)" if isinstance(table.c[name].type, Text) else f"old.{name}"
