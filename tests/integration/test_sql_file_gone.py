"""The SQLite file is taken away under a process that has it open: it is said, and nothing is written into the void."""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from soong.shared.core.errors import InvalidConfigError, UnavailableError
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.model.builders import make_owner, make_session, make_worker
from tests.system.faults.scene import small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "soong.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqlStore]:
    store = await open_store(f"sqlite:///{path}", migrate=True)
    await store.sessions.register_owner(make_owner())
    yield store
    await store.close()


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path, to: Path) -> None:
    path.replace(to)


def is_there(path: Path) -> bool:
    return path.exists()


def make_readonly(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


async def test_without_its_file_nothing_is_read_or_written_and_no_empty_one_appears(
    store: SqlStore, path: Path
) -> None:
    remove(path)

    for _ in range(2):  # also on the new connection that follows a failure
        with pytest.raises(UnavailableError, match=f"{path} was removed"):
            await store.sessions.open_session(make_session())
        with pytest.raises(UnavailableError, match="was removed"):
            await store.sessions.owners()
        with pytest.raises(UnavailableError, match="was removed"):
            await store.tasks.task("task_none")

    assert not is_there(path)


async def test_a_heartbeat_is_not_sent_into_the_void(store: SqlStore, path: Path) -> None:
    worker, heart = make_worker(), store.heartbeat_writer()
    await store.sessions.register_worker(worker)
    assert heart.beat(worker.id)
    remove(path)

    with pytest.raises(UnavailableError, match="was removed"):
        heart.beat(worker.id)
    heart.close()


async def test_a_file_that_is_put_back_is_gone_on_with(store: SqlStore, path: Path) -> None:
    aside = path.with_name("aside.db")
    move(path, aside)
    with pytest.raises(UnavailableError):
        await store.sessions.open_session(make_session())

    move(aside, path)
    await store.sessions.open_session(make_session("sess_after"))

    assert (await store.sessions.session("sess_after")).id == "sess_after"


async def test_a_file_in_its_place_is_not_taken_for_it(store: SqlStore, path: Path, tmp_path: Path) -> None:
    await store.sessions.open_session(make_session("sess_before"))
    await store.sessions.owners()
    other = await open_store(f"sqlite:///{tmp_path / 'other.db'}", migrate=True)
    await other.close()
    move(tmp_path / "other.db", path)

    with pytest.raises(UnavailableError, match="was replaced"):
        await store.sessions.open_session(make_session())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk:
        url = f"sqlite:///{disk / 'soong.db'}"
        await (await open_store(url, migrate=True)).close()
        make_readonly(disk)

        for migrate in (False, True):
            with pytest.raises(InvalidConfigError, match="Read-only file system"):
                await open_store(url, migrate=migrate)
