"""What is watched is read once for all: each gets what was read after it asked, and every change; nobody waits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from soong.orchestrator.operations.events import pass_on_answers
from soong.orchestrator.operations.feeds import Feeds, Following, SubscriptionPool
from soong.shared.core import timing
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.engine.wire.notifier import AnswerDelta, Subscription
from tests.waiting import others_run, until

LIMIT_S = 10


@dataclass
class Rows(MemoryBus):
    """What is read, and the hint that it may have changed. Implements ``Subscriber`` and ``Subscription``."""

    value: str = "old"
    reads: int = 0
    is_gone: bool = False
    opened: int = 0
    closed: int = 0
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    rung: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.goes_on.set()

    async def load(self) -> str:
        self.reads += 1
        seen = self.value
        await self.goes_on.wait()
        if self.is_gone:
            raise ConnectionError("gone")
        return seen

    async def subscribe_session(self, session_id: str) -> Subscription:
        self.opened += 1
        return self

    async def wait(self, timeout_s: float) -> Sequence[str]:
        await self.rung.wait()
        self.rung.clear()
        return ("heard",)

    async def close(self) -> None:
        self.closed += 1


@dataclass
class Watching:
    """Feeds over rows."""

    rows: Rows = field(default_factory=Rows)
    feeds: Feeds = field(default_factory=Feeds)

    def __post_init__(self) -> None:
        self.pool = SubscriptionPool(self.rows)

    def follow(self) -> "asyncio.Task[list[str]]":
        """Take values until one is ``new``."""

        async def values() -> list[str]:
            with self.feeds.follow("all", self.rows.load, lambda: self.pool.session("s"), is_quick=True) as following:
                seen = [await following.next()]
                while seen[-1] != "new":
                    seen.append(await following.next())
                return seen

        return asyncio.create_task(values())

    async def change(self) -> None:
        await until(lambda: self.rows.opened == 1)
        self.rows.value = "new"
        self.rows.rung.set()


@pytest.fixture
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    monkeypatch.setattr(timing, "POLL_ROWS_S", 3600.0)  # nothing but a hint brings a change
    watching = Watching()
    async with asyncio.timeout(LIMIT_S):
        yield watching
    await watching.feeds.close()
    await watching.pool.close()


async def test_a_reading_that_is_under_way_is_not_joined(watching: Watching) -> None:
    watching.rows.goes_on.clear()
    early = watching.follow()
    await until(lambda: watching.rows.reads == 1)
    watching.rows.value = "new"
    late = watching.follow()
    watching.rows.goes_on.set()

    assert await late == ["new"], "not what was read before it asked"
    assert (await early)[-1] == "new"


async def test_a_failure_reaches_everybody_and_the_reading_continues(watching: Watching) -> None:
    watching.rows.is_gone = True
    with watching.feeds.follow("all", watching.rows.load, lambda: watching.pool.session("s")) as stays:
        failed = await asyncio.gather(*(watching.follow() for _ in range(3)), return_exceptions=True)
        with pytest.raises(ConnectionError):
            await stays.next()
        watching.rows.is_gone = False
        watching.rows.value = "new"

        assert await watching.follow() == ["new"]
        assert await stays.next() == "new"
    assert [type(one) for one in failed] == [ConnectionError] * 3


async def test_one_who_leaves_takes_nothing_from_the_others(watching: Watching) -> None:
    leaves, stays = watching.follow(), watching.follow()
    await others_run()
    leaves.cancel()
    await watching.change()

    assert await stays == ["old", "new"]
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_a_wait_that_is_given_up_loses_no_value_and_a_stop_wakes_everybody(watching: Watching) -> None:
    with watching.feeds.follow("all", watching.rows.load, lambda: watching.pool.session("s")) as following:
        await gives_up(following)
        first = await following.next()
        await gives_up(following)
        watching.feeds.wake()

        assert (first, await following.next()) == ("old", "old")


async def gives_up(following: Following[str]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await following.next()


PAYLOAD = AnswerDelta(1, 0, "hello").payload()


class OneAnswer:
    """Hears one piece of an answer, and says whether it was closed."""

    is_closed = False

    async def wait(self, timeout_s: float) -> Sequence[str]:
        await asyncio.sleep(0)
        return (PAYLOAD,)

    async def close(self) -> None:
        self.is_closed = True


class AnsweringBus(MemoryBus):
    """Gives everybody who listens to answers the same subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.subscription = OneAnswer()

    async def subscribe_answer(self, run_id: str) -> Subscription:
        return self.subscription


@pytest.mark.spec("EXE-09")
async def test_a_listener_whose_reader_fails_closes_its_subscription() -> None:
    bus = AnsweringBus()

    def take(_delta: AnswerDelta) -> None:
        raise ValueError("not today")

    await pass_on_answers(SubscriptionPool(bus).answer("run_1"), "run_1", take)

    await until(lambda: bus.subscription.is_closed)
