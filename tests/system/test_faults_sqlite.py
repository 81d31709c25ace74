"""What becomes of a service whose SQLite file is taken away or cannot be written (fault 17)."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.system.auditor import audit
from tests.system.deployment import Deployment
from tests.system.faults.scene import effects_file, small_disk, start_workers, until_begun, waves


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soong.db"


@pytest.fixture
async def service(redis_live: RedisServer, path: Path) -> AsyncIterator[Deployment]:
    # A lease that a loaded machine does not let expire while the file is away for the time of one beat.
    patient = {"lease_s": 6.0}
    async with Deployment(f"sqlite:///{path}", redis_live.socket_url, path.parent, patient) as deployment:
        yield deployment


async def test_a_file_that_is_gone_for_good_is_said_and_nothing_is_made_in_its_place(
    service: Deployment, path: Path
) -> None:
    await start_workers(service, 1, slots=2)
    await service.submit(waves(2, 1, 30.0))
    await until_begun(service, 2)

    take_away(path)

    async def has_stopped_what_it_ran() -> bool:
        return "incarnation_lost" in service.logs() and f"{path} was removed" in service.logs()

    await service.until(has_stopped_what_it_ran)
    service.workers[0].terminate()
    assert await asyncio.to_thread(service.workers[0].wait, 30) == 0
    assert not is_there(path)
    put_back(path)
    assert audit(service.database_url, effects=effects_file(service)).broken == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk")
async def test_a_worker_on_a_file_that_cannot_be_written_says_so_and_ends(
    redis_live: RedisServer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        url = f"sqlite:///{disk / 'soong.db'}"
        service = Deployment(url, redis_live.socket_url, tmp_path, has_own_owner=False)
        async with service:
            pass  # which makes the tables
        make_readonly(disk)

        process = service._spawn(1, {})

        assert await asyncio.to_thread(process.wait, 30) == 2
        assert "Read-only file system" in service.logs()
        assert "Traceback" not in service.logs()


def take_away(path: Path) -> None:
    path.rename(path.with_name("aside"))


def put_back(path: Path) -> None:
    path.with_name("aside").rename(path)


def is_there(path: Path) -> bool:
    return path.exists()


def make_readonly(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
