"""Hints of a worker that was taken over: whatever it publishes or adds, everybody hears what comes next."""

import tracemalloc
from collections.abc import AsyncIterator
from typing import Final

import pytest
import redis

from soong.shared.engine.wire.notifier import MAX_LENGTH, OWNERS_CHANNEL, REQUESTS, session_channel, worker_channel
from soong.shared.storage.redis.client import RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import MAX_PAYLOAD_CHARS, RedisSubscriber
from tests.integration.test_redis_ring import heard, notifier, subscriber
from tests.servers import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.spec("PER-12", "OPS-12")

__all__ = ["notifier", "subscriber"]

LAST_ID: Final = f"{2**64 - 1}-{2**64 - 1}"
PAYLOADS: Final = {
    "deep lists": "[" * 100_000,
    "deep objects": '{"sessions":' * 50_000,
    "deep in what is read": '{"v":1,"sessions":["sess_1",' + "[" * 100_000,
    "a number without end": '{"sessions":[' + "9" * 5_000 + "]}",
    "lists for ids": '{"sessions":[' + "[]," * 100_000 + "[]]}",
    "too long to be read": '{"sessions":[' + "[]," * MAX_PAYLOAD_CHARS + "[]]}",
    "no text": b"\xff\xfe\x00",
}


@pytest.fixture
async def clients(redis_live: RedisServer) -> AsyncIterator[RedisClients]:
    made = RedisClients.of(redis_live.socket_url)
    await made.commands.delete(REQUESTS)
    yield made
    await made.commands.delete(REQUESTS)
    await made.close()


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
async def test_no_message_makes_an_owner_a_worker_or_a_client_deaf(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, payload: str | bytes
) -> None:
    owner, worker = await subscriber.subscribe_owner(), await subscriber.subscribe_worker("wrk_1")
    client = await subscriber.subscribe_session("sess_1")

    for channel in (OWNERS_CHANNEL, worker_channel("wrk_1"), session_channel("sess_1")):
        assert await clients.commands.publish(channel, payload) >= 1
    await notifier.notify_owners(["sess_1"])
    await notifier.call_worker("wrk_1")
    await heard(client, "sess_1")  # of the message: it means that the session changed, whatever it is
    await notifier.notify_session("sess_1")

    await heard(owner, "sess_1")
    await heard(worker, "")
    await heard(client, "sess_1")
    for subscription in (owner, worker, client):
        await subscription.close()


async def test_an_owner_hears_of_no_session_whose_id_no_database_takes(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    owner = await subscriber.subscribe_owner()

    for id_ in ('"\\ud800"', '"\\u0000"', '"x\\ny"', f'"{"x" * 5_000}"', "7", "null", "{}"):
        await clients.commands.publish(OWNERS_CHANNEL, f'{{"sessions": [{id_}]}}')
    await notifier.notify_owners(["sess_1"])

    assert set(await heard(owner, "sess_1")) <= {"", "sess_1"}
    await owner.close()


@pytest.mark.parametrize("listens_first", [True, False])
async def test_a_question_that_took_the_last_id_of_the_stream_leaves_room_for_others(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, listens_first: bool
) -> None:
    early = await subscriber.subscribe_permissions() if listens_first else None
    await clients.commands.xadd(REQUESTS, {"request": "req_bad"}, id=LAST_ID)
    subscription = early or await subscriber.subscribe_permissions()

    await notifier.permission_raised("req_1", "sess_1")

    await heard(subscription, "sess_1")
    await subscription.close()


async def test_a_stream_that_is_filled_with_what_names_no_question_is_cut(
    clients: RedisClients, subscriber: RedisSubscriber, redis_live: RedisServer
) -> None:
    subscription = await subscriber.subscribe_permissions()
    with redis.Redis.from_url(redis_live.socket_url) as bad:
        flood = bad.pipeline(transaction=False)
        for _ in range(3 * MAX_LENGTH):
            flood.xadd(REQUESTS, {"x": "y"})
        flood.execute()

        async def is_cut() -> bool:
            return int(await clients.commands.xlen(REQUESTS)) <= MAX_LENGTH + 500

        await until(is_cut)
    await subscription.close()


async def test_a_few_large_entries_do_not_stay_in_the_memory_of_redis(
    clients: RedisClients, subscriber: RedisSubscriber
) -> None:
    subscription = await subscriber.subscribe_permissions()

    for _ in range(5):
        await clients.commands.xadd(REQUESTS, {"request": "req_bad", "x": "y" * 2 * MAX_PAYLOAD_CHARS})

    async def is_empty() -> bool:
        return int(await clients.commands.xlen(REQUESTS)) == 0

    await until(is_empty)
    await subscription.close()


async def test_what_was_left_in_large_entries_is_removed_and_not_read(
    clients: RedisClients, subscriber: RedisSubscriber
) -> None:
    for _ in range(3):
        await clients.commands.xadd(REQUESTS, {"request": "req_bad", "x": "y" * 8 * MAX_PAYLOAD_CHARS})

    tracemalloc.start()
    try:
        subscription = await subscriber.subscribe_permissions()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < MAX_PAYLOAD_CHARS
    assert await clients.commands.xlen(REQUESTS) == 0
    await subscription.close()
