"""Redis goes away, comes back empty, hangs or is full: rows hold all, only hints come late (faults 5-8, 18, 19)."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import redis as redis_client

from soong.shared.core.jsontext import JsonObject
from tests.system.deployment import Deployment
from tests.system.faults.scene import (
    effect_step,
    fill,
    prove,
    small_disk,
    start_workers,
    until_begun,
    until_done,
    waves,
)
from tests.system.faults.servers import MortalRedis, mortal_redis

AOF = ("--appendonly", "yes", "--appendfsync", "everysec")
OUTAGE_S = 1.5
SINGLE: JsonObject = {"title": "told nobody", "steps": [effect_step("a", 0.01)]}


@pytest.fixture
async def service(redis: MortalRedis, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis.url, tmp_path) as deployment:
        yield deployment


@pytest.mark.spec("DAG-07.c")
@pytest.mark.parametrize("redis", [AOF], indirect=True)
async def test_a_killed_redis_that_comes_back_with_its_log_or_empty_costs_nothing(
    service: Deployment, redis: MortalRedis
) -> None:
    await start_workers(service, 2, slots=2)
    running = await service.submit(waves(4, 6, 0.5))
    await until_begun(service, 3)

    await asyncio.to_thread(redis.kill)
    # Nobody can be told of it: its steps are found in the rows once messages can be sent again.
    silent = await service.submit(SINGLE)
    await asyncio.sleep(OUTAGE_S)
    await asyncio.to_thread(redis.start)
    await until_done(service, silent, 1, within_s=10)
    await asyncio.to_thread(redis.kill)
    redis.forget()
    more_silent = await service.submit(SINGLE)
    await asyncio.to_thread(redis.start)
    await until_done(service, more_silent, 1, within_s=10)

    await prove(service, running, silent, more_silent)


async def test_a_frozen_redis_stops_nothing_that_runs(service: Deployment, redis: MortalRedis) -> None:
    await start_workers(service, 1, slots=2)
    task = await service.submit(waves(2, 4, 0.3))
    await until_begun(service, 1)

    redis.freeze()
    await service.finished(task)
    await service.submit(SINGLE)
    redis.thaw()

    await prove(service, *await service.store.tasks.list_tasks())


async def test_an_outage_is_waited_for_without_a_busy_loop(service: Deployment, redis: MortalRedis) -> None:
    await start_workers(service, 1, slots=2)
    task = await service.submit(waves(2, 6, 0.4))
    await until_begun(service, 1)
    worker = psutil.Process(service.workers[0].pid)

    redis.kill()
    before = _cpu_s(worker)
    await service.finished(task)  # a chain of 2.4 s: every hop without a message
    await asyncio.sleep(1)
    spent_s = _cpu_s(worker) - before

    late = await service.submit(SINGLE)
    await asyncio.to_thread(redis.start)
    await prove(service, task, late)
    assert spent_s < 1.5


async def test_a_redis_out_of_memory_takes_no_messages_and_loses_no_work(
    service: Deployment, redis: MortalRedis
) -> None:
    await start_workers(service, 1, slots=2)
    with redis_client.Redis(port=redis.port) as client:
        client.config_set("maxmemory", "512kb")  # less than it takes empty
        with pytest.raises(redis_client.exceptions.OutOfMemoryError):
            client.rpush("soong:soong.default", "as a dispatcher would")

        # Calls are publications, which it still takes: a worker may begin, or wait for the memory.
        tasks = [await service.submit(waves(2, 3, 0.05)) for _ in range(2)]
        await asyncio.sleep(1)
        client.config_set("maxmemory", "0")

    await prove(service, *tasks)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
async def test_a_redis_whose_disk_is_full_holds_work_back_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, mortal_redis(*AOF, folder=disk) as redis:
        async with Deployment(f"sqlite:///{tmp_path / 'soong.db'}", redis.url, tmp_path) as service:
            await start_workers(service, 1, slots=2)
            running = await service.submit(waves(2, 4, 0.5))
            await until_begun(service, 1)

            ballast = fill(disk)
            late = await service.submit(SINGLE)
            await until_done(service, running, 6)
            ballast.unlink()

            await prove(service, running, late)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
