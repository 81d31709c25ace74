"""Real runs that wait for consent in real slots: when they park, what is kept of them, and how they go on (PER-13)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from soong.shared.engine.runs.events import NodeKind
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Lease
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.permissions.request import Choice
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.sql.store import open_store
from tests.contract.databases import sqlite_copy
from tests.integration.parking import Site, ask, asking, echo, open_site
from tests.model.memory import MemoryStore
from tests.waiting import until

OpenSite: TypeAlias = Callable[..., AbstractAsyncContextManager[Site]]

BLOCKED, COMPLETED, READY, RUNNING = StepStatus.BLOCKED, StepStatus.COMPLETED, StepStatus.READY, StepStatus.RUNNING


class RedisBoard(RedisNotifier, RedisSubscriber):
    """Both ports over one Redis."""

    def __init__(self, clients: RedisClients) -> None:
        RedisNotifier.__init__(self, clients.commands)
        RedisSubscriber.__init__(self, clients.blocking)


@pytest.fixture
def open_here(sqlite_template: Path, redis_url: str, tmp_path: Path) -> OpenSite:
    """Open a site over the parts of an embedded deployment."""
    url = sqlite_copy(sqlite_template, tmp_path)

    @asynccontextmanager
    async def opened(**settings: object) -> AsyncIterator[Site]:
        clients = RedisClients.of(redis_url, name="parking")
        async with open_site(await open_store(url), RedisBoard(clients), tmp_path, **settings) as site:
            yield site
        await clients.close()

    return opened


@pytest.mark.spec("PER-13.b", "DAG-04")
async def test_the_slot_of_a_run_that_waits_goes_to_others_and_nothing_of_it_is_lost(open_here: OpenSite) -> None:
    """Slots are not held by pure waits (makecindy/cindy#944, coalesce-labs/catalyst#1301)."""
    async with open_here() as site:
        await site.submit(asking(priority=1), echo("other"))
        await site.start_worker()
        steps = await site.until_stands(asks=BLOCKED, other=COMPLETED)
        (request,) = await site.pending()

        await site.answer(request)
        again = await site.until_stands(asks=COMPLETED)

        told = await site.story()
        assert (told["run_parked"], told["run_resumed"], told["permission_requested"]) == (1, 1, 1)
        assert told["aborted_tools"] == told["permission_withdrawn"] == told["step_released"] == 0
        assert (again["asks"].fence, again["asks"].attempt) == (steps["asks"].fence + 1, 1)
        kinds = [node.kind for node in await site.store.runs.nodes(again["asks"].run_id)]
        assert kinds.count(NodeKind.ASSISTANT) == 2
        assert kinds.count(NodeKind.TOOL_RESULT) == 1


@pytest.mark.spec("PER-13")
async def test_calls_that_ask_at_the_same_time_are_parked_together_and_taken_up_one_by_one(open_here: OpenSite) -> None:
    """No caller keeps a child's history for it (pydantic/pydantic-ai#4302, #3274, #3527)."""
    async with open_here() as site:
        await site.submit(asking("asks", ask("a.pem"), ask("b.pem")))
        await site.start_worker()
        first, second = await site.pending(2)
        await site.until_stands(asks=BLOCKED)

        await site.answer(first)
        await until(lambda: _has_parked(site, 2))
        assert [one.id for one in await site.pending()] == [second.id]
        await site.answer(second, choice=Choice.DENY)
        await site.until_stands(asks=COMPLETED)

        told = await site.story()
        assert (told["permission_requested"], told["tool_completed"], told["tool_denied"]) == (2, 1, 1)


async def _has_parked(site: Site, times: int) -> bool:
    return (await site.story())["run_parked"] == times


@pytest.mark.spec("PER-13")
async def test_beyond_the_limit_a_run_keeps_its_slot_until_there_is_room(open_here: OpenSite) -> None:
    async with open_here(max_parked=1) as site:
        await site.submit(asking("one"), asking("two"))
        await site.start_worker(2)
        first, second = await site.pending(2)
        await until(lambda: _statuses(site, {"one": BLOCKED, "two": RUNNING}, {"one": RUNNING, "two": BLOCKED}))
        parked, kept = (first, second) if await _is_blocked(site, first.identity.step_key) else (second, first)

        await site.answer(parked)
        await until(lambda: _is_blocked(site, kept.identity.step_key))
        await site.answer(kept)

        await site.until_stands(one=COMPLETED, two=COMPLETED)


async def _statuses(site: Site, *either: dict[str, StepStatus]) -> bool:
    return {name: step.status for name, step in (await site.steps()).items()} in either


async def _is_blocked(site: Site, step_key: str) -> bool:
    return (await site.store.tasks.step(step_key)).status is BLOCKED


@pytest.mark.spec("PER-13", "DAG-06")
async def test_a_cancelled_run_that_waits_ends_whether_it_has_parked_or_not(open_here: OpenSite) -> None:
    async with open_here() as site:
        await site.submit(asking("parked"), asking("waits"))
        await site.start_worker(2)
        await site.until_stands(parked=BLOCKED)
        now_us = site.clock.now_us()

        for worker in await site.store.tasks.cancel_task(site.own, site.task_id, reason="enough", now_us=now_us):
            await site.board.notify_worker(worker)

        await site.until_stands(parked=StepStatus.CANCELLED, waits=StepStatus.CANCELLED)
        assert await site.store.consent.pending(site.own.session_id) == []


# -- both at once
class SlowToPark(MemoryStore):
    """A store whose parking is done, and waits until a test says go."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def park(
        self, worker_id: str, held: Lease, request_ids: Sequence[str], *, max_parked: int, now_us: int
    ) -> bool:
        outcome = await super().park(worker_id, held, request_ids, max_parked=max_parked, now_us=now_us)
        self.has_begun.set()
        await self.may_go_on.wait()
        return outcome


@pytest.mark.spec("PER-13", "DAG-03")
async def test_an_answer_between_parking_and_stopping_is_used_once_by_the_next_life(tmp_path: Path) -> None:
    """The former life learns too late that it is parked: what it still tries is refused, and nothing runs twice."""
    store = SlowToPark()
    async with open_site(store, MemoryBus(), tmp_path) as site:
        await site.submit(asking())
        await site.start_worker()
        (request,) = await site.pending()
        await store.has_begun.wait()
        await site.answer(request)
        await site.pending(0)

        await site.start_worker()
        await site.until_stands(asks=COMPLETED)
        store.may_go_on.set()

        told = await site.story()
        assert (told["run_parked"], told["run_resumed"], told["tool_completed"]) == (1, 1, 1)
        assert len(store.rows.consumed) == 1


async def test_a_worker_that_an_owner_calls_claims_without_a_message(open_here: OpenSite) -> None:
    async with open_here() as site:
        await site.submit(echo("a"), echo("b"))
        worker = await site.start_worker(2, is_dispatched=False)
        called = worker._incarnation.worker_id

        async def is_done() -> bool:
            await site.board.call_worker(called)  # it may not listen yet: an owner would send a message then
            return all(step.status is COMPLETED for step in (await site.steps()).values())

        await until(is_done)


async def test_a_worker_that_drains_claims_nothing_for_a_call(open_here: OpenSite) -> None:
    async with open_here() as site:
        await site.submit(echo("a"))
        worker = await site.start_worker(2, is_dispatched=False)
        called = worker._incarnation.worker_id
        await worker.drain(None)

        for _ in range(5):
            await site.board.call_worker(called)
            await asyncio.sleep(0.01)

        assert (await site.steps())["a"].status is READY


async def test_a_worker_whose_celery_still_starts_hears_no_call(open_here: OpenSite) -> None:
    """It would run steps before it takes signals, and a recycling would kill it."""
    ready: list[bool] = []
    async with open_here() as site:
        await site.submit(echo("a"))
        worker = await site.start_worker(2, is_dispatched=False, is_ready=lambda: bool(ready))
        called = worker._incarnation.worker_id

        for _ in range(5):
            await site.board.call_worker(called)
            await asyncio.sleep(0.01)
        assert (await site.steps())["a"].status is READY
        ready.append(True)

        async def is_done() -> bool:
            await site.board.call_worker(called)
            return (await site.steps())["a"].status is COMPLETED

        await until(is_done)
