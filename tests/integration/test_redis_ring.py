"""Hints over a real Redis: heard once, heard over a restart, and never in the way of whoever rings."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import redis
from redis import Redis

from soong.orchestrator.owner.bootstrap import build
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.wire.notifier import REQUESTS, Subscription, queue_key, run_channel
from soong.shared.storage.redis.client import MAX_WAITING, DirectConnection, RedisClients, RedisNotifier
from soong.shared.storage.redis.subscriptions import RedisSubscriber
from tests.model.builders import make_session, make_step, make_task, open_worker
from tests.servers import RedisServer
from tests.waiting import dropped, others_run, until

LIMIT_S = 15.0


@pytest.fixture(params=["unix", "tcp"])
async def clients(request: pytest.FixtureRequest, redis_live: RedisServer) -> AsyncIterator[RedisClients]:
    clients = RedisClients.of(redis_live.socket_url if request.param == "unix" else redis_live.tcp_url)
    yield clients
    await clients.close()


@pytest.fixture
async def notifier(clients: RedisClients) -> AsyncIterator[RedisNotifier]:
    notifier = RedisNotifier(clients.commands)
    yield notifier
    await notifier.close()


@pytest.fixture
def subscriber(clients: RedisClients) -> RedisSubscriber:
    return RedisSubscriber(clients.blocking)


async def heard(subscription: Subscription, *wanted: str) -> Sequence[str]:
    """Wait until all of ``wanted`` has been heard; return everything heard until then."""
    everything: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while not set(wanted) <= set(everything):
            everything += await subscription.wait(1.0)
    return everything


async def test_a_connection_that_was_cut_while_it_lay_idle_is_replaced(
    notifier: RedisNotifier, subscriber: RedisSubscriber, redis_live: RedisServer
) -> None:
    await (await subscriber.subscribe_session("sess_1")).close()
    with redis.Redis.from_url(redis_live.socket_url) as watcher:
        watcher.client_kill_filter(_type="pubsub")
        watcher.client_kill_filter(_type="normal", skipme=True)

    session = await subscriber.subscribe_session("sess_2")
    await notifier.notify_session("sess_2")

    assert await heard(session, "sess_2") == ["sess_2"]
    await session.close()


async def test_an_old_stream_is_not_read_again_by_a_new_subscription(
    notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    await notifier.permission_raised("req_1", "sess_old")
    await notifier.close()

    subscription = await subscriber.subscribe_permissions()
    await notifier.permission_raised("req_2", "sess_new")

    assert await heard(subscription, "sess_new") == ["sess_new"]
    await subscription.close()


async def test_equal_hints_that_wait_are_sent_once(clients: RedisClients, notifier: RedisNotifier) -> None:
    for _ in range(1_000):
        await notifier.permission_raised("req_1", "sess_1")
    await notifier.close()

    assert await clients.commands.xlen(REQUESTS) == 1


async def test_hints_to_followers_gather_and_go_with_the_next_that_work_waits_for(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "HINTS_S", 3600.0)
    notifier._sent_s = asyncio.get_running_loop().time()
    follower, owner = await subscriber.subscribe_run("run_1"), await subscriber.subscribe_owner()

    await notifier.notify_runs(["run_1", "run_2"])
    early = await follower.wait(0.05)
    await notifier.notify_owners(["sess_1"])

    assert list(early) == []
    assert await heard(owner, "sess_1") == ["sess_1"]
    assert await heard(follower, "run_1") == ["run_1"]
    await follower.close()
    await owner.close()


async def test_a_run_that_nobody_follows_is_left_out_for_a_while_and_then_heard_again(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await subscriber.subscribe_run("run_1")
    await notifier.notify_runs(["run_1", "run_2"])
    assert await heard(first, "run_1") == ["run_1"]
    second = await subscriber.subscribe_run("run_2")

    await notifier.notify_runs(["run_1", "run_2"])
    assert await heard(first, "run_1") == ["run_1"]
    assert await second.wait(0) == ()
    notifier._unfollowed[run_channel("run_2")] = asyncio.get_running_loop().time()
    await notifier.notify_runs(["run_2"])

    assert await heard(second, "run_2") == ["run_2"]
    await first.close()
    await second.close()


async def test_an_unreadable_hint_is_passed_over(
    clients: RedisClients, notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    owner, questions = await subscriber.subscribe_owner(), await subscriber.subscribe_permissions()

    for payload in ("not json", b"\xff", "[]", '{"v":1}', '{"v":9,"sessions":["sess_1"],"more":true}'):
        await clients.commands.publish("soong:wake:owners", payload)
    await clients.commands.xadd(REQUESTS, {"v": "1", "other": "x"})
    await notifier.permission_raised("req_1", "sess_1")

    assert await heard(owner, "sess_1") == ["sess_1"]
    assert await heard(questions, "sess_1") == ["sess_1"]
    await owner.close()
    await questions.close()


@pytest.mark.parametrize("clients", ["tcp"], indirect=True)  # both kinds have one base, whose limit it is
async def test_a_blocking_read_outlives_the_time_limit_of_commands(
    notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    subscription = await subscriber.subscribe_permissions()

    assert await subscription.wait(6.0) == ()  # redis-py's own limit of 5 s would have ended it
    await notifier.permission_raised("req_1", "sess_1")

    assert await heard(subscription, "sess_1") == ["sess_1"]  # no empty id: the subscription was never away
    await subscription.close()


async def test_a_subscription_whose_connection_is_cut_comes_back_and_says_so(
    redis_live: RedisServer, notifier: RedisNotifier, subscriber: RedisSubscriber
) -> None:
    owner, questions, session = (
        await subscriber.subscribe_owner(),
        await subscriber.subscribe_permissions(),
        await subscriber.subscribe_session("sess_1"),
    )

    with redis.Redis.from_url(redis_live.socket_url) as admin:
        for kind in ("normal", "pubsub"):
            admin.client_kill_filter(_type=kind, skipme=True)

    await heard(owner, "")
    await heard(session, "sess_1")
    await heard(questions, "")
    await notifier.permission_raised("req_1", "sess_1")
    assert await heard(questions, "sess_1") == ["sess_1"]
    for subscription in (owner, questions, session):
        await subscription.close()


async def test_ringing_without_redis_neither_waits_nor_fails() -> None:
    clients = RedisClients.of("redis://127.0.0.1:1/0")
    notifier = RedisNotifier(clients.commands)
    started = asyncio.get_running_loop().time()

    for number in range(MAX_WAITING + 5):
        await notifier.permission_raised(f"req_{number}", "sess_1")

    assert asyncio.get_running_loop().time() - started < 5.0
    assert notifier.dropped == 5
    await notifier.close()
    await clients.close()


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379", "redis://localhost:port/0"])
def test_a_wrong_url_is_refused_with_the_right_forms(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="redis://host"):
        RedisClients.of(url)


async def test_a_subscription_that_nobody_waits_for_any_more_leaves_nothing_behind() -> None:
    clients = RedisClients.of("redis://127.0.0.1:1/0")
    before = asyncio.all_tasks()
    opening = asyncio.ensure_future(RedisSubscriber(clients.blocking).subscribe_owner())
    await others_run(20)

    await dropped(opening)

    assert opening.cancelled()
    assert asyncio.all_tasks() == before
    await clients.close()


Ask: TypeAlias = Callable[[], Awaitable[object]]


@pytest.fixture(params=["client", "direct connection"])
async def ask(request: pytest.FixtureRequest, clients: RedisClients) -> AsyncIterator[Ask]:
    """Send a command over a connection that is there."""
    connection = DirectConnection(clients.commands)
    asking: Ask = clients.commands.ping if request.param == "client" else lambda: connection.execute([("PING",)])
    await asking()
    yield asking
    await connection.close()


async def test_a_command_that_is_cancelled_ends_so_at_whichever_step_of_it(ask: Ask) -> None:
    """``asyncio.wait_for`` of Python 3.11 loses a cancellation that comes as what it waits for ends."""

    async def ask_and_work() -> None:
        await ask()
        await asyncio.Event().wait()

    for steps in range(40):
        working = asyncio.create_task(ask_and_work())
        await others_run(steps)
        working.cancel()
        await asyncio.wait({working}, timeout=1.0)
        assert working.cancelled(), f"cancelled at step {steps}, it works on, or failed"


async def test_a_command_has_a_time_limit(ask: Ask, clients: RedisClients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "COMMAND_LIMIT_S", 0.1)
    await clients.blocking.client_pause(500)

    with pytest.raises(TimeoutError):
        await ask()


@pytest.mark.spec("OPS-06")
@pytest.mark.parametrize("how", ["stop", "abandon"])
async def test_an_orchestrator_that_has_dispatched_leaves_no_connection(
    tmp_path: Path, redis_url: str, how: str
) -> None:
    settings = load_settings(agent_home=tmp_path, database_url=f"sqlite:///{tmp_path}/s.db", redis_url=redis_url)
    with Redis.from_url(redis_url, client_name="watcher", decode_responses=True) as watcher:
        before = {one["id"] for one in watcher.client_list()}  # of others on this server, our own among them

        def connections() -> int:
            return len([one for one in watcher.client_list() if one["id"] not in before])

        orchestrator = await build(settings)
        store = orchestrator.parts.store
        await open_worker(store)
        await orchestrator.start()
        session = make_session()
        await store.sessions.open_session(session)
        await store.tasks.create_task(make_task(session.id, make_step("a", kind=StepKind.PYTHON)))
        await orchestrator.reconcile([])
        await until(lambda: watcher.llen(queue_key("default")) > 0)
        assert connections() > 0

        await (orchestrator.stop() if how == "stop" else orchestrator.abandon())

        await until(lambda: connections() == 0)
