"""One look at several sessions, while what is owned changes."""

from collections.abc import Sequence

from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.dispatcher import Dispatcher
from soong.orchestrator.owner.expander import Expander
from soong.orchestrator.owner.scheduler import Scheduler
from soong.orchestrator.owner.service import Orchestrator, Parts
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import Ownership
from soong.shared.engine.tasks.step import SessionWork
from tests.model.builders import make_owner, make_session
from tests.model.clock import FakeClock
from tests.model.memory import MemoryBus, MemoryStore
from tests.one_loop import NoFolders, NoQuestions


class CountedBroker:
    """Counts how often it was asked for its length."""

    def queued(self, pool: str) -> int:
        return 0

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None: ...

    def close(self) -> None: ...


class TakenStore(MemoryStore):
    """Declares the owner gone as soon as it looks at its first session, and another owner takes all."""

    looked_at: list[str]
    orchestrator: Orchestrator

    async def session_work(self, ownership: Ownership) -> SessionWork:
        self.looked_at.append(ownership.session_id)
        if len(self.looked_at) == 1:
            await self.release_owner(ownership.owner_id)
            await self.orchestrator._beat_once()
        return await super().session_work(ownership)


def make_orchestrator(store: TakenStore) -> Orchestrator:
    clock, board = FakeClock(), MemoryBus()
    parts = Parts(
        store=store,
        notifier=board,
        subscriber=board,
        clock=clock,
        scheduler=Scheduler(store, store, Expander(store, store, clock), clock),
        commands=Commands(store, store, store, board, clock),
        dispatcher=Dispatcher(store, store, CountedBroker()),
        broker=NoQuestions(),
        recorder=NoFolders(),
    )
    return Orchestrator(parts, Settings())


async def test_sessions_that_were_lost_in_the_middle_of_a_look_are_not_looked_at() -> None:
    store = TakenStore()
    store.looked_at = []
    store.orchestrator = make_orchestrator(store)
    await store.orchestrator._register()
    for session_id in ("sess_1", "sess_2"):
        await store.sessions.open_session(make_session(session_id))
    await store.sessions.register_owner(make_owner("own_other"))

    await store.orchestrator.reconcile(["sess_1", "sess_2"])

    assert store.looked_at == ["sess_1"]
    assert not store.orchestrator._owned
