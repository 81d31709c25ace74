"""Requests to one provider wait together: in one process, and over Redis in all of a deployment."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from soong.shared.agents.run_models import LocalPacer, Pacer, Pacing, RateLimits, provider_key
from soong.shared.storage.redis.client import RedisClients
from soong.shared.storage.redis.pacing import PREFIX, RedisPacer
from soong.worker.parking import LentSlots
from tests.waiting import others_run

pytestmark = pytest.mark.spec("DIS-09", "DIS-12.d")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    clients = RedisClients.of(redis_url)
    yield clients.commands
    await clients.close()


@pytest.fixture(params=["local", "redis"])
def pacer(request: pytest.FixtureRequest, redis: "Redis") -> Pacer:
    return LocalPacer() if request.param == "local" else RedisPacer(redis)


async def test_a_pause_is_there_until_it_ends_and_a_shorter_one_changes_nothing(pacer: Pacer) -> None:
    assert await pacer.pause_left_s("k") == 0
    await pacer.pause("k", 30)
    await pacer.pause("k", 1)

    assert 29 < await pacer.pause_left_s("k") <= 30
    assert await pacer.pause_left_s("other") == 0


async def test_a_minute_has_room_for_so_many(pacer: Pacer) -> None:
    waits = [await pacer.take("k", 2, 5) for _ in range(3)]

    assert waits[:2] == [0, 0]
    assert 59 < waits[2] <= 60
    assert await pacer.take("k", 1, 5) == 0  # what was refused was not counted
    assert await pacer.take("big", 99, 5) == 0  # more than a minute has room for is sent alone


@pytest.mark.spec("DIS-11.c")
async def test_processes_share_a_pause_and_a_minute(redis: "Redis", redis_url: str) -> None:
    other_clients = RedisClients.of(redis_url)
    one, other = RedisPacer(redis), RedisPacer(other_clients.commands)
    await one.pause("k", 20)
    taken = [await pacer.take("k:rpm", 1, 3) for pacer in (one, other, one, other)]

    assert 19 < await other.pause_left_s("k") <= 20
    assert [wait > 0 for wait in taken] == [False, False, False, True]
    assert 0 < await redis.pttl(f"{PREFIX}k:rpm") <= 60_000
    await other_clients.close()


async def test_a_minute_without_an_end_gets_one(redis: "Redis") -> None:
    await redis.set(f"{PREFIX}k", "7")  # its process died before it could say when it ends

    assert await RedisPacer(redis).take("k", 1, 5) == 60
    assert 0 < await redis.pttl(f"{PREFIX}k") <= 60_000


async def test_without_redis_a_process_goes_by_what_it_knows() -> None:
    clients = RedisClients.of("redis://127.0.0.1:1/0")
    pacer = RedisPacer(clients.commands)
    await pacer.pause("k", 10)

    assert 9 < await pacer.pause_left_s("k") <= 10
    assert [await pacer.take("r", 1, 1) > 0 for _ in range(2)] == [False, True]
    await clients.close()


async def test_a_request_waits_for_the_pause_and_then_for_its_minute() -> None:
    now = 0.0
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pacer = LocalPacer(lambda: now)
    pacing = Pacing(pacer, "k", RateLimits(requests=1, tokens=100), sleep)
    await pacing.before(60)
    await pacing.limited(5)
    await pacing.before(60)

    assert slept == [5, 55]


async def test_a_pause_is_of_one_model_and_a_minute_of_all_models_of_the_key(pacer: Pacer) -> None:
    one, other = (Pacing(pacer, "k", RateLimits(requests=1), name=name) for name in ("a", "b"))
    await one.limited(30)

    await asyncio.wait_for(other.before(0), 5)

    assert await pacer.pause_left_s(other.pause_key) == 0
    assert await pacer.take("k:rpm", 1, 1) > 0


async def test_a_pause_that_a_person_lifts_ends_in_every_process(redis: "Redis", redis_url: str) -> None:
    clients = RedisClients.of(redis_url)
    pacings = [Pacing(RedisPacer(one), "k", name="openai:gpt-5") for one in (redis, clients.commands)]
    lent = LentSlots()
    waiting = [asyncio.create_task(replace(one, sleep=lent.sleep).before(0)) for one in pacings]
    await pacings[0].limited(300)
    waiting += [asyncio.create_task(one.before(0)) for one in pacings]
    async with asyncio.timeout(5):
        assert list(await RedisPacer(redis).paused()) == ["openai:gpt-5"]

        assert await RedisPacer(redis).lift("another") == []
        assert await RedisPacer(redis).lift("openai:gpt-5") == ["openai:gpt-5"]

        await asyncio.gather(*waiting)
    assert [await one.pacer.pause_left_s(one.pause_key) for one in pacings] == [0, 0]
    await clients.close()


class Places:
    """One slot, which is free."""

    capacity = 1

    def places(self) -> int:
        return 1

    async def settled_places(self) -> int:
        return 1

    def fill(self) -> None: ...


async def test_a_run_whose_pause_is_lifted_has_its_slot_again_and_one_that_is_cancelled_ends_at_once() -> None:
    pacer, lent = LocalPacer(), LentSlots(after_s=0.0, slots=Places())
    pacing = Pacing(pacer, "k", name="m", sleep=lent.sleep)
    await pacing.limited(300)
    waiting = asyncio.create_task(pacing.before(0))
    cancelled = asyncio.create_task(pacing.before(0))
    async with asyncio.timeout(5):
        await others_run()  # both have begun
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

        pacer.forget(pacing.pause_key)
        await waiting

    assert lent.count == 0


async def test_many_that_wait_all_get_their_turn() -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        until = now + seconds
        await others_run()
        now = max(now, until)

    pacer = LocalPacer(lambda: now)
    pacing = Pacing(pacer, "k", RateLimits(requests=3), sleep)

    await asyncio.wait_for(asyncio.gather(*(pacing.before(0) for _ in range(20))), 20)

    assert now >= 6 * 60 - 60


def test_a_key_tells_accounts_apart_and_shows_no_secret() -> None:
    def model(url: str = "http://a", secret: str = "sk-1") -> SimpleNamespace:
        return SimpleNamespace(system="openai", base_url=url, client=SimpleNamespace(api_key=secret))

    assert provider_key(model()) == provider_key(model())
    assert len({provider_key(one) for one in (model(), model(url="http://b"), model(secret="sk-2"))}) == 3
    assert "sk-1" not in provider_key(model())
