"""What networks do between a worker and its servers: resets, delays, trickles, holes (faults 9-11)."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.system.deployment import LEASE_S, Deployment
from tests.system.faults import threads
from tests.system.faults.proxy import Proxy
from tests.system.faults.scene import PLUGIN, prove, start_workers, until_begun, waves
from tests.system.faults.servers import MortalPostgres, MortalRedis

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
