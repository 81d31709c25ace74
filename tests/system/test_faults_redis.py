"""Faults of the servers, the network and the queue: rows hold all, only hints come late (faults 5-11, 17-19)."""

import asyncio
import base64
import gzip
import json
import os
import pickle
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis as redis_client

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.wire.notifier import DISPATCH_TASK, queue_key
from tests.servers import RedisServer
from tests.system.auditor import audit
from tests.system.deployment import LEASE_S, ON_SQLITE, Deployment
from tests.system.faults import threads
from tests.system.faults.proxy import Proxy
from tests.system.faults.scene import (
    PLUGIN,
    effect_step,
    effects_file,
    fill,
    prove,
    small_disk,
    start_workers,
    until_begun,
    until_done,
    waves,
)
from tests.system.faults.servers import MortalPostgres, MortalRedis, mortal_redis

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
OUTAGE_S = 1.5
SINGLE: JsonObject = {"title": "told nobody", "steps": [effect_step("a", 0.01)]}


@pytest.fixture
async def beside_redis(redis: MortalRedis, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis.url, tmp_path) as deployment:
        yield deployment


@pytest.mark.spec("DAG-07.c")
@pytest.mark.parametrize("redis", [AOF], indirect=True)
async def test_a_killed_redis_that_comes_back_with_its_log_or_empty_costs_nothing(
    beside_redis: Deployment, redis: MortalRedis
) -> None:
    await start_workers(beside_redis, 2, slots=2)
    running = await beside_redis.submit(waves(4, 6, 0.5))
    await until_begun(beside_redis, 3)

    await asyncio.to_thread(redis.kill)
    # Nobody can be told of it: its steps are found in the rows once messages can be sent again.
    silent = await beside_redis.submit(SINGLE)
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(redis.start)
    await until_done(beside_redis, silent, 1, within_s=10)
    await asyncio.to_thread(redis.kill)
    redis.forget()
    more_silent = await beside_redis.submit(SINGLE)
    await asyncio.to_thread(redis.start)
    await until_done(beside_redis, more_silent, 1, within_s=10)

    await prove(beside_redis, running, silent, more_silent)


async def test_a_frozen_redis_stops_nothing_that_runs(beside_redis: Deployment, redis: MortalRedis) -> None:
    await start_workers(beside_redis, 1, slots=2)
    task = await beside_redis.submit(waves(2, 4, 0.3))
    await until_begun(beside_redis, 1)

    redis.freeze()
    await beside_redis.finished(task)
    await beside_redis.submit(SINGLE)
    redis.thaw()

    await prove(beside_redis, *await beside_redis.store.tasks.list_tasks())


async def test_an_outage_is_waited_for_without_a_busy_loop(beside_redis: Deployment, redis: MortalRedis) -> None:
    await start_workers(beside_redis, 1, slots=2)
    task = await beside_redis.submit(waves(2, 6, 0.4))
    await until_begun(beside_redis, 1)
    worker = psutil.Process(beside_redis.workers[0].pid)

    redis.kill()
    before = _cpu_s(worker)
    await beside_redis.finished(task)  # a chain of 2.4 s: every hop without a message
    await asyncio.sleep(1)
    spent_s = _cpu_s(worker) - before

    late = await beside_redis.submit(SINGLE)
    await asyncio.to_thread(redis.start)
    await prove(beside_redis, task, late)
    assert spent_s < 1.5


async def test_a_redis_out_of_memory_takes_no_messages_and_loses_no_work(
    beside_redis: Deployment, redis: MortalRedis
) -> None:
    await start_workers(beside_redis, 1, slots=2)
    with redis_client.Redis(port=redis.port) as client:
        client.config_set("maxmemory", "512kb")  # less than it takes empty
        with pytest.raises(redis_client.exceptions.OutOfMemoryError):
            client.rpush("soong:soong.default", "as a dispatcher would")

        # Calls are publications, which it still takes: a worker may begin, or wait for the memory.
        tasks = [await beside_redis.submit(waves(2, 3, 0.05)) for _ in range(2)]
        await asyncio.sleep(1)
        client.config_set("maxmemory", "0")

    await prove(beside_redis, *tasks)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
async def test_a_redis_whose_disk_is_full_holds_work_back_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, mortal_redis(*AOF, folder=disk) as redis:
        async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis.url, tmp_path) as beside_redis:
            await start_workers(beside_redis, 1, slots=2)
            running = await beside_redis.submit(waves(2, 4, 0.5))
            await until_begun(beside_redis, 1)

            ballast = fill(disk)
            late = await beside_redis.submit(SINGLE)
            await until_done(beside_redis, running, 6)
            ballast.unlink()

            await prove(beside_redis, running, late)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soong.db"


@pytest.fixture
async def on_file(redis_live: RedisServer, path: Path) -> AsyncIterator[Deployment]:
    # A lease that a loaded machine does not let expire while the file is away for the time of one beat.
    patient = {"lease_s": 6.0}
    async with Deployment(f"sqlite:///{path}", redis_live.socket_url, path.parent, patient) as deployment:
        yield deployment


async def test_a_file_that_is_gone_for_good_is_said_and_nothing_is_made_in_its_place(
    on_file: Deployment, path: Path
) -> None:
    await start_workers(on_file, 1, slots=2)
    await on_file.submit(waves(2, 1, 30.0))
    await until_begun(on_file, 2)

    aside = await asyncio.to_thread(path.rename, path.with_name("aside"))

    await on_file.until(lambda: "incarnation_lost" in on_file.logs() and f"{path} was removed" in on_file.logs())
    on_file.workers[0].terminate()
    assert await asyncio.to_thread(on_file.workers[0].wait, 30) == 0
    await asyncio.to_thread(os.link, aside, path)  # fails if something was made in its place
    await asyncio.to_thread(aside.unlink)
    assert audit(on_file.database_url, effects=effects_file(on_file)).broken == []


QUEUE = queue_key("default")
NO_ARGUMENTS: tuple[list[Any], dict[str, Any], dict[str, Any]] = (["d"], {}, {})


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def message(
    body: bytes | None = None, *, content_type: str = "application/json", task: str = DISPATCH_TASK, **headers: Any
) -> bytes:
    """Return a message as kombu would put it on the queue."""
    own = json.dumps(NO_ARGUMENTS).encode() if body is None else body
    return json.dumps(
        {
            "body": base64.b64encode(own).decode(),
            "content-encoding": headers.pop("encoding", "utf-8"),
            "content-type": content_type,
            "headers": {"lang": "py", "task": task, "id": "forged", "root_id": "forged", "retries": 0, **headers},
            "properties": {
                "delivery_info": {"exchange": "", "routing_key": "soong.default"},
                "delivery_tag": "forged",
                "body_encoding": "base64",
            },
        }
    ).encode()


def foreign(marker: Path) -> dict[str, bytes]:
    """Return messages that no part of ours sends."""
    huge = json.dumps([["x" * 50_000_000], {}, {}]).encode()
    bomb = gzip.compress(b"[" + b"0," * 20_000_000 + b"0]")
    return {
        "pickle": message(pickle.dumps(Bomb(marker)), content_type="application/x-python-serialize", encoding="binary"),
        "yaml": message(b"!!python/object/apply:os.getcwd []", content_type="application/x-yaml"),
        "gzip bomb": message(bomb, content_type="application/json", compression="application/x-gzip"),
        "not JSON in a message": message(b"\xff{"),
        "no JSON at all": b"\x80\x04\x95rubbish",
        "JSON that is no message": b"[1, 2]",
        "an empty one": b"",
        "an unknown task": message(task="os.system"),
        "another task of Celery": message(task="celery.backend_cleanup"),
        "wrong arguments": message(json.dumps([[1, 2, 3], {"a": 1}, {}]).encode()),
        "arguments of another kind": message(json.dumps([[{"deep": [None] * 10}], {}, {}]).encode()),
        "no arguments": message(b"null"),
        "fifty megabytes": message(huge),
        "negative retries": message(retries=-1),
        "in the year 9999": message(eta="9999-12-31T23:59:59+00:00"),
        "no time at all": message(eta="tomorrow", expires="never"),
        "a callback": message(json.dumps([["d"], {}, {"callbacks": [{"task": "os.system", "args": ["id"]}]}]).encode()),
    }


@ON_SQLITE
async def test_a_worker_bears_whatever_lies_on_its_queue(
    service: Deployment, redis_live: RedisServer, tmp_path: Path
) -> None:
    marker = tmp_path / "unpickled"
    with redis_client.Redis(unix_socket_path=str(redis_live.socket_path)) as queue:
        await start_workers(service, 1, slots=4)
        worker = service.workers[0]

        for name, body in foreign(marker).items():
            queue.lpush(QUEUE, body)
            await service.until(lambda: queue.llen(QUEUE) == 0, within_s=20)
            assert worker.poll() is None, name

    await prove(service, await service.submit(waves(4, 3, 0.01)))
    assert not marker.exists()
    assert len(service.workers) == 1


@ON_SQLITE
async def test_doubled_and_lost_messages_change_nothing(service: Deployment, redis_live: RedisServer) -> None:
    with redis_client.Redis(unix_socket_path=str(redis_live.socket_path)) as queue:
        await start_workers(service, 2, slots=4)
        lost = await service.submit(waves(4, 4, 0.02))
        queue.delete(QUEUE)
        for _ in range(40):
            queue.lpush(QUEUE, message())
        doubled = await service.submit(waves(4, 4, 0.02))

        await prove(service, lost, doubled)


Network = tuple[Deployment, Proxy, Proxy]
RESETS = 10
MIB = 2**20


@pytest.fixture
async def network(redis: MortalRedis, postgres: MortalPostgres, tmp_path: Path) -> AsyncIterator[Network]:
    """A deployment and the ways of its one worker to Redis and to PostgreSQL."""
    async with (
        Proxy("127.0.0.1", redis.port) as to_redis,
        Proxy("127.0.0.1", postgres.port) as to_postgres,
        Deployment(postgres.url, redis.url, tmp_path) as service,
    ):
        await start_workers(
            service,
            1,
            slots=4,
            SOONG_FUNCTIONS=f"{PLUGIN},{threads.MODULE}",
            SOONG_REDIS_URL=f"redis://127.0.0.1:{to_redis.port}/0",
            SOONG_DATABASE_URL=postgres.url_at(to_postgres.port),
        )
        yield service, to_redis, to_postgres


async def test_resets_of_every_connection_double_nothing_and_leak_nothing(network: Network) -> None:
    service, to_redis, to_postgres = network
    worker = psutil.Process(service.workers[0].pid)
    before = await threads.listed(service)
    task = await service.submit(waves(4, 12, 0.3))
    await until_begun(service, 4)
    rss_before = worker.memory_info().rss

    cut = 0
    for _ in range(RESETS):
        await asyncio.sleep(0.25)
        cut += to_redis.reset() + to_postgres.reset()

    await prove(service, task, before)
    assert cut >= RESETS
    assert worker.memory_info().rss - rss_before < 20 * MIB
    after = await threads.listed(service)
    assert await threads.outside_pools(service, after) == await threads.outside_pools(service, before)


async def test_a_slow_network_loses_no_lease(network: Network) -> None:
    service, to_redis, to_postgres = network
    task = await service.submit(waves(4, 3, 0.2))
    await until_begun(service, 1)
    for way in (to_redis, to_postgres):
        way.toxics.latency_s = way.toxics.jitter_s = 0.01 * LEASE_S
    to_redis.toxics.slice_bytes, to_redis.toxics.bytes_s = 100, 50_000

    await prove(service, task, within_s=60)

    assert {step.lost_leases for step in (await service.steps(task)).values()} == {0}


async def test_a_worker_cut_off_from_redis_goes_on_with_what_it_holds(network: Network) -> None:
    service, to_redis, _ = network
    task = await service.submit(waves(2, 10, 0.3))
    await until_begun(service, 1)
    began_at = time.monotonic()

    to_redis.toxics.is_hole = True
    await prove(service, task)

    # Every hop of the chain without a message, and longer than a lease: it lives by the database alone.
    assert time.monotonic() - began_at > LEASE_S
    assert {step.fence for step in (await service.steps(task)).values()} == {1}
    to_redis.toxics.is_hole = False
    await prove(service, task, await service.submit(waves(1, 1, 0.0)))
