"""A claim that was applied while its answer was lost: the worker holds steps of which it does not know."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import UnavailableError
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Advance, Claim, StepEnd
from soong.worker.claim_loop import ClaimLoop
from soong.worker.heartbeat import Incarnation
from tests.model.builders import make_session, make_task
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore


class DeafStore(MemoryStore):
    """Applies the first claim and reports an error."""

    is_deaf = True

    async def advance(self, worker_id: str, ends: Sequence[StepEnd], **wish: Any) -> Advance:
        advance = await super().advance(worker_id, ends, **wish)
        if advance.claims and self.is_deaf:
            self.is_deaf = False
            raise UnavailableError("the answer was lost")
        return advance


async def opened(*step_ids: str) -> tuple[DeafStore, ClaimLoop, str, asyncio.Task[None]]:
    store, clock = DeafStore(), SystemClock()
    incarnation = Incarnation(store, clock, "w@h", 1, ("default",), ())
    grown: list[Claim] = []
    claim_loop = ClaimLoop(store, MemoryBus(), clock, incarnation.capacity, lambda: 0, grown.append)
    session = make_session()
    await store.sessions.open_session(session)
    await store.tasks.create_task(make_task(session.id, *step_ids))
    worker_id = await incarnation.register()
    return store, claim_loop, worker_id, asyncio.get_running_loop().create_task(claim_loop.run())


@pytest.mark.spec("DAG-03")
async def test_a_claim_that_was_not_heard_is_given_back() -> None:
    store, claim_loop, worker_id, pumping = await opened("a", "b")
    async with asyncio.timeout(10):
        heard = await claim_loop.next_step(None)
    assert heard is not None
    both = await store.claims.leases(worker_id)

    await claim_loop.return_unheard()

    leases = await store.claims.leases(worker_id)
    assert len(both) == 2
    assert [lease.step_key for lease in leases] == [heard.step_key]
    unheard = next(lease for lease in both if lease.step_key != heard.step_key)
    assert (await store.tasks.step(unheard.step_key)).status is StepStatus.READY
    pumping.cancel()


async def test_what_a_slot_works_on_is_never_given_back() -> None:
    store, claim_loop, worker_id, pumping = await opened("a")
    store.is_deaf = False
    async with asyncio.timeout(10):
        claim = await claim_loop.next_step(None)

    await claim_loop.return_unheard()

    assert claim is not None
    assert [lease.step_key for lease in await store.claims.leases(worker_id)] == [claim.step_key]
    pumping.cancel()
