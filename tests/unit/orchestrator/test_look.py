"""One look at several sessions, while what is owned changes."""

from collections.abc import Sequence
from typing import Any

import pytest

from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.parts import Parts
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.service import Orchestrator
from soong.orchestrator.owner.workers import Dispatcher
from soong.shared.core.settings import Settings
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.sessions.session import ApprovalMode, Session, Worker
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import Advance, StepEnd
from soong.shared.permissions.audit_log import AuditKind
from tests.contract.scene import completed
from tests.model.builders import make_session, make_task, make_worker
from tests.model.clock import START_US, FakeClock
from tests.model.memory import MemoryBus, MemoryStore
from tests.one_loop import NoAsks, NoFolders, NoQuestions
from tests.waiting import until


class CountedBroker:
    """Counts the messages that it was given."""

    def __init__(self) -> None:
        self.sent = 0

    def queued(self, pool: str) -> int:
        return 0

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        self.sent += len(dispatch_ids)

    def close(self) -> None: ...


def make_orchestrator(store: MemoryStore, board: MemoryBus, broker: CountedBroker | None = None) -> Orchestrator:
    clock = FakeClock()
    parts = Parts(
        store=store,
        notifier=board,
        subscriber=board,
        clock=clock,
        scheduler=Scheduler(store, store, Expander(store, store, clock), clock),
        commands=Commands(store, store, store, board, clock),
        dispatcher=Dispatcher(store, store, broker or CountedBroker(), board),
        broker=NoQuestions(),
        recorder=NoFolders(),
        agents=NoAsks(),
    )
    return Orchestrator(parts, Settings())


async def test_a_task_that_runs_behind_a_hundred_newer_ones_is_work() -> None:
    store = MemoryStore()
    orchestrator = make_orchestrator(store, MemoryBus())
    await orchestrator._register()
    await store.sessions.open_session(make_session("sess_1"))
    running = make_task("sess_1", "a")
    await store.tasks.create_task(running)
    assert await orchestrator.is_working()
    own = orchestrator._owned["sess_1"]
    for _ in range(100):
        newer = make_task("sess_1", "a")
        await store.tasks.create_task(newer)
        await store.tasks.cancel_task(own, newer.id, reason="enough", now_us=START_US)

    assert await orchestrator.is_working()

    await store.tasks.cancel_task(own, running.id, reason="enough", now_us=START_US)
    assert not await orchestrator.is_working()


class BusyStore(MemoryStore):
    """Has its first adoption pass over every session, as PostgreSQL does while a claim holds their rows."""

    adoptions: int

    async def adopt_sessions(self, owner_id: str) -> Sequence[Session]:
        self.adoptions += 1
        return () if self.adoptions == 1 else await super().adopt_sessions(owner_id)


async def test_a_session_that_the_called_worker_holds_is_adopted_a_moment_later() -> None:
    store, board = BusyStore(), MemoryBus()
    store.adoptions = 0
    await store.sessions.register_worker(make_worker("wrk_1"))
    orchestrator = make_orchestrator(store, board)
    await orchestrator._register()
    await orchestrator.parts.dispatcher.dispatch()
    await store.sessions.open_session(make_session("sess_1"))
    ear = await board.subscribe_worker("wrk_1")

    await orchestrator.reconcile(["sess_1"])

    assert await ear.wait(1) == ("",)
    assert not orchestrator._owned
    await until(lambda: orchestrator._owned, 10)


class CountedStore(MemoryStore):
    """Counts the looks for free slots."""

    looks_at_workers: int = 0

    async def workers(self, *, include_gone: bool = False) -> Sequence[Worker]:
        self.looks_at_workers += 1
        return await super().workers(include_gone=include_gone)


async def called(
    store: MemoryStore, board: MemoryBus, broker: CountedBroker | None = None, **session: Any
) -> Orchestrator:
    """Return an owner that has just called a worker for the step of a new session."""
    await store.sessions.register_worker(make_worker("wrk_1"))
    orchestrator = make_orchestrator(store, board, broker)
    await orchestrator._register()
    await orchestrator.parts.dispatcher.dispatch()
    opened = make_session("sess_1", **session)
    await store.tasks.submit(opened, make_task("sess_1", "a"))
    await orchestrator.reconcile(["sess_1"])
    return orchestrator


async def test_a_task_is_ended_and_its_client_notified_by_one_look_that_fills_no_slots() -> None:
    store, board = CountedStore(), MemoryBus()
    orchestrator = await called(store, board, approval_mode=ApprovalMode.DENY, closes_with_task=True)
    (claim,) = (await advance(store, claim=1)).claims
    end = await advance(store, completed(claim))
    waiting, looks = await board.subscribe_session("sess_1"), store.looks_at_workers

    await orchestrator.reconcile(end.owner_sessions)

    session = await store.sessions.session("sess_1")
    assert (session.owner_id, session.owner_epoch, session.is_closed) == (orchestrator.owner_id, 1, True)
    assert (await store.tasks.task(claim.identity.task_id)).status is TaskStatus.COMPLETED
    assert await waiting.wait(1) == ("sess_1",)
    assert (dict(orchestrator._owned), store.looks_at_workers) == ({}, looks)


@pytest.mark.spec("PER-12")
async def test_an_owner_that_stops_takes_what_workers_reported() -> None:
    store = MemoryStore()
    orchestrator = await called(store, MemoryBus(), approval_mode=ApprovalMode.DENY, closes_with_task=True)
    (claim,) = (await advance(store, claim=1)).claims
    event = NewEvent(EventType.SECURITY, {"what": "unknown_key"})
    await store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=START_US)
    await advance(store, completed(claim))

    await orchestrator.stop()

    (entry,) = await store.audit.audit_entries(kinds=[AuditKind.SECURITY])
    assert entry.session_id == "sess_1"


async def advance(store: MemoryStore, *ends: StepEnd, claim: int = 0) -> Advance:
    return await store.claims.advance(
        "wrk_1", ends, claim=claim, pools=("default",), capabilities=(), live_workers=1, now_us=START_US
    )
