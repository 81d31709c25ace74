"""One run's log, replayed from any number and then live: no gap, no doubles, whatever happens at the switch."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest

from soong.orchestrator.client.client import Client
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.events import follow_log
from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.core import timing
from soong.shared.core.errors import NotFoundError, UnavailableError
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.step import Claim
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.engine.wire.notifier import LocalSubscription, Subscriber, Subscription
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness, completed, open_scene
from tests.model.clock import FakeClock
from tests.model.memory import MemoryStore
from tests.servers import RedisServer, redis_server
from tests.unit.tools.parts import Artifacts
from tests.waiting import until

pytestmark = pytest.mark.spec("EVT-02")

LIMIT_S = 20.0


@dataclass
class Running:
    """A claimed run and the worker's way to write to it."""

    scene: ContractHarness
    claim: Claim
    log: RunCallLog
    written: int = 0

    @property
    def run_id(self) -> str:
        return self.claim.identity.run_id

    async def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.written += 1
            await self.log.note("tool_progress", {"number": self.written})
            await self.log.flush()

    async def end(self) -> None:
        await self.scene.advance([completed(self.claim)])


def log_of(scene: ContractHarness, claim: Claim, notifier: RedisNotifier | None = None) -> RunCallLog:
    return RunCallLog(scene.store.runs, Artifacts(), FakeClock(), claim.identity.run_id, claim.fence, notifier=notifier)


@pytest.fixture
async def clients(redis_live: RedisServer) -> AsyncIterator[RedisClients]:
    clients = RedisClients.of(redis_live.socket_url)
    yield clients
    await clients.close()


@pytest.fixture
async def running(clients: RedisClients) -> AsyncIterator[Running]:
    notifier = RedisNotifier(clients.commands)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    yield Running(scene, claim, log_of(scene, claim, notifier))
    await notifier.close()


async def collected(store: Store, subscriber: Subscriber, run_id: str, seen: list[Event], *, from_seq: int = 1) -> None:
    client = Client(store, MemoryBus(), subscriber, FakeClock(), load_settings())
    service = ServiceParts(client, None, None)  # type: ignore[arg-type]  # what nobody asks for here
    try:
        async with asyncio.timeout(LIMIT_S):
            async for event in follow_log(service, run_id, from_seq=from_seq):
                seen.append(event)  # noqa: PERF401  # a test looks at the list meanwhile
    finally:
        await service.feeds.close()
        await service.subscriptions.close()


def check_whole(seen: Sequence[Event], *, from_seq: int = 1) -> None:
    assert [event.seq for event in seen] == list(range(from_seq, from_seq + len(seen)))
    assert str(seen[-1].type) == "run_completed"


async def until_seen(seen: Sequence[Event], count: int) -> None:
    await until(lambda: len(seen) >= count, LIMIT_S)


@pytest.mark.spec("EVT-02.c", "EVT-02.d")
async def test_a_run_is_replayed_from_any_number_and_then_followed_live(
    running: Running, clients: RedisClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.write(5)
    seen: list[Event] = []
    monkeypatch.setattr(timing, "POLL_ROWS_S", 3600.0)  # nothing but a hint brings what is written later
    subscriber = RedisSubscriber(clients.blocking)
    following = asyncio.create_task(collected(running.scene.store, subscriber, running.run_id, seen, from_seq=4))
    last = (await running.scene.store.runs.run(running.run_id)).last_seq
    await until_seen(seen, last - 3)
    assert [event.seq for event in seen] == list(range(4, last + 1))
    await asyncio.sleep(timing.UNFOLLOWED_S + 0.2)  # nobody followed the first events, so hints stay away for a moment

    while len(seen) < last - 3 + 20:
        before = len(seen)
        await running.write()
        await asyncio.wait_for(until_seen(seen, before + 1), LIMIT_S)
    following.cancel()

    assert [event.seq for event in seen] == list(range(4, 4 + len(seen)))


@dataclass
class Meddling:
    """The run's rows, into which something is written whenever they are read: also between replay and live."""

    running: Running
    left: int
    inner: Store = field(init=False)

    def __post_init__(self) -> None:
        self.inner = self.running.scene.store

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        page = await self.inner.runs.events(run_id, after_seq=after_seq, limit=min(limit, 2))
        await self.meddle()
        return page

    async def run(self, run_id: str) -> object:
        found = await self.inner.runs.run(run_id)
        await self.meddle()
        return found

    @property
    def runs(self) -> "Meddling":
        return self

    async def subscribe_run(self, _run_id: str) -> Subscription:
        await self.meddle()
        subscription = LocalSubscription()
        await self.meddle()
        return subscription

    async def meddle(self) -> None:
        if self.left:
            self.left -= 1
            await self.running.write()
        elif not (await self.inner.runs.run(self.running.run_id)).status.is_terminal:
            await self.running.end()


@pytest.mark.parametrize("left", range(8))
async def test_what_is_written_at_any_moment_of_the_switch_is_seen_once(
    running: Running, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "POLL_ROWS_S", 0.001)
    await running.write(3)
    rows, seen = Meddling(running, left), list[Event]()

    await collected(rows, rows, running.run_id, seen)  # type: ignore[arg-type]  # what it lacks it takes from the store

    check_whole(seen)
    assert [event.data["number"] for event in seen if event.type == "tool_progress"] == list(
        range(1, running.written + 1)
    )


async def test_a_run_is_followed_while_redis_is_away_and_when_it_is_back(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "POLL_ROWS_S", 0.05)
    with ExitStack() as servers:
        redis = servers.enter_context(redis_server())
        clients = RedisClients.of(redis.tcp_url)
        live = replace(running, log=log_of(running.scene, running.claim, RedisNotifier(clients.commands)))
        seen: list[Event] = []
        subscriber = RedisSubscriber(clients.blocking)
        following = asyncio.create_task(collected(live.scene.store, subscriber, live.run_id, seen))
        await live.write(2)
        await asyncio.to_thread(servers.pop_all().close)
        await live.write(3)
        await until_seen(seen, (await live.scene.store.runs.run(live.run_id)).last_seq)
        servers.enter_context(redis_server("--port", str(redis.port)))
        await live.write(2)
        await live.end()
        await following
        await clients.close()

    check_whole(seen)


class Stumbling(MemoryStore):
    """A store that is away every other time its events are read."""

    count = 0

    async def events(self, run_id: str, *, after_seq: int = 0, limit: int = 1000) -> Sequence[Event]:
        self.count += 1
        if self.count % 2:
            raise UnavailableError("the database does not answer")
        return await super().events(run_id, after_seq=after_seq, limit=limit)


async def test_a_database_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "POLL_ROWS_S", 0.01)
    scene = await open_scene(Stumbling())
    claim = await scene.start("a")
    running = Running(scene, claim, log_of(scene, claim))
    seen: list[Event] = []
    following = asyncio.create_task(collected(scene.store, MemoryBus(), running.run_id, seen))

    await running.write(4)
    await until_seen(seen, 5)
    await running.end()
    await following

    check_whole(seen)


async def test_an_unknown_run_is_named(running: Running) -> None:
    with pytest.raises(NotFoundError, match="run 'run_none'"):
        await collected(running.scene.store, MemoryBus(), "run_none", [])
