"""The same path over a real Redis, and over one that goes away (CARD-3)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from soong.shared.permissions.request import Choice
from soong.shared.storage.redis.client import RedisClients
from soong.shared.storage.redis.notifier import RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from tests.integration.consent import Callback, ConsentHarness, make_call, open_bench, verdicts


@pytest.fixture(params=["answering", "away"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[ConsentHarness]:
    url = request.getfixturevalue("redis_url") if request.param == "answering" else "redis://127.0.0.1:1/0"
    clients = RedisClients.of(url)
    notifier = RedisNotifier(clients.commands)
    async with open_bench(notifier=notifier, subscriber=RedisSubscriber(clients.blocking)) as bench:
        # What the owner's sweep does when hints do not come through.
        sweep = asyncio.get_running_loop().create_task(_sweep(bench))
        yield bench
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
    await notifier.close()
    await clients.close()


async def _sweep(bench: ConsentHarness) -> None:
    while True:
        await asyncio.sleep(bench.settings.sweep_s)
        await bench.broker.review([bench.session_id])


@pytest.mark.spec("CARD-3.a", "PER-07")
async def test_two_workers_one_scope_one_question_with_redis_and_without(bench: ConsentHarness) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION])
    bench.attach(callback)
    claims = await bench.claim(2)

    answers = await verdicts(*(bench.gate(claim, worker).decide(make_call(claim)) for claim, worker in claims))

    assert all(answer.is_allowed for answer in answers)
    assert len(callback.shown) == 1
    assert callback.shown[0].identity in {claim.identity for claim, _ in claims}


async def test_a_terminal_answers_with_redis_and_without(bench: ConsentHarness) -> None:
    person = Callback([Choice.ALLOW_ONCE])
    bench.attach(person)
    claims = await bench.claim(2)

    answers = await verdicts(*(bench.gate(claim, worker).decide(make_call(claim)) for claim, worker in claims))

    assert all(answer.is_allowed for answer in answers)
    assert len(person.shown) == 2
