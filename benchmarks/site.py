"""A store with one owner and one worker that use it as real ones do, without processes, messages and step bodies."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import psycopg

from benchmarks.counters import Counters, PostgresCounters, SqliteCounters, watching
from benchmarks.past import call_tool, end_of
from soong.orchestrator.approvals.broker import MAX_READ
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.workers import Dispatcher
from soong.shared.core.identity import new_id
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.step import Claim, NewStep
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.model.builders import make_owner, make_session, make_step, make_task, make_worker

SLOTS: Final = 16
CLOCK: Final = SystemClock()


class _NoBroker:
    """A queue that takes nothing: what is looked for is what its asking costs the store."""

    def queued(self, pool: str) -> int:
        del pool
        return SLOTS

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        raise AssertionError(f"{len(dispatch_ids)} messages for {pool}: its queue was full")

    def close(self) -> None: ...


@dataclass(slots=True)
class Site:
    """One store with its counters. ``held`` are the claims of its worker, ``task_id`` the task that was made last."""

    name: str
    store: SqlStore
    counters: Counters
    ownership: Ownership
    worker_id: str
    scheduler: Scheduler
    dispatcher: Dispatcher
    task_id: str = ""
    held: list[Claim] = field(default_factory=list)

    async def vacuum(self) -> int:
        """Clear what changes have left behind, which PostgreSQL does by itself after a while; SQLite keeps none."""
        if isinstance(self.counters, PostgresCounters):
            with psycopg.connect(self.counters.url, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
        return 1

    # -- a client
    async def submit(self, steps: Sequence[NewStep]) -> int:
        """Write a task; return how many steps that were."""
        task = make_task(self.ownership.session_id, *steps)
        await self.store.tasks.create_task(task)
        self.task_id = task.id
        return len(steps)

    # -- the worker
    async def work(self, most: int, *, at_once: int = SLOTS) -> int:
        """End and claim steps, ``at_once`` at a time, until ``most`` have ended or nothing is left; return how many."""
        ended = 0
        if not self.held:
            await self._advance([], at_once)
        while self.held and ended < most:
            done, self.held = self.held, []
            await self._advance(done, at_once)
            ended += len(done)
        return ended

    async def call_tools(self, number: int) -> int:
        """Record so many calls of the step held first."""
        for _ in range(number):
            await call_tool(self.store, self.held[0], new_id("call"))
        return number

    async def keep_up(self, number: int) -> int:
        """Do what a worker does by the clock: beat, and look for interrupts and for claims that it did not hear of."""
        heart = self.store.heartbeat_writer()
        for _ in range(number):
            heart.beat(self.worker_id)
            await self.store.claims.interrupts(self.worker_id)
            await self.store.claims.leases(self.worker_id)
        heart.close()
        return number

    async def _advance(self, done: Sequence[Claim], claim: int) -> None:
        taken = await self.store.claims.advance(
            self.worker_id,
            [end_of(each) for each in done],
            claim=claim,
            pools=("default",),
            capabilities=(),
            live_workers=1,
            now_us=CLOCK.now_us(),
        )
        self.held.extend(taken.claims)

    # -- the owner
    async def look(self, number: int) -> int:
        """Look at everything so many times, as an orchestrator does at each sweep."""
        owner_id, session_id = self.ownership.owner_id, self.ownership.session_id
        for _ in range(number):
            await self.store.sessions.owners()
            await self.store.sessions.workers()
            await self.store.sessions.adopt_sessions(owner_id)
            await self.store.sessions.busy_sessions(owner_id)
            await self.store.sessions.take_commands(self.ownership)
            await self.scheduler.reconcile(self.ownership)
            await self.store.tasks.open_tasks(self.ownership)
            await self.store.consent.open_questions(session_id, limit=MAX_READ)
            await self.dispatcher.dispatch()
        return number


@asynccontextmanager
async def opened(name: str, url: str) -> AsyncIterator[Site]:
    """Open the store at ``url`` with a session, its owner and a worker."""
    parsed = parse_url(url)
    with watching(parsed.database or "") as watch:
        store = await open_store(url, migrate=True)
        owner, worker = make_owner(), make_worker(slots=SLOTS)
        session = make_session(owner_id=owner.id)
        await store.sessions.register_owner(owner)
        await store.sessions.register_worker(worker)
        await store.sessions.open_session(session)
        plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        counters: Counters = SqliteCounters(watch) if is_sqlite else PostgresCounters(plain, watch)
        scheduler = Scheduler(store.tasks, store.runs, Expander(store.tasks, store.runs, CLOCK), CLOCK)
        dispatcher = Dispatcher(store.claims, store.sessions, _NoBroker())
        try:
            yield Site(name, store, counters, session.ownership, worker.id, scheduler, dispatcher)
        finally:
            dispatcher.close()
            await store.close()


def chain(length: int) -> list[NewStep]:
    return [make_step(f"s{n}", depends_on=[f"s{n - 1}"] if n else []) for n in range(length)]


def fan(width: int) -> list[NewStep]:
    """Return one root, ``width`` steps after it, and their join."""
    leaves = [f"s{number}" for number in range(width)]
    after = [make_step(leaf, depends_on=["root"]) for leaf in leaves]
    return [make_step("root"), *after, make_step("join", depends_on=leaves)]
