"""Files and rows of SQLite under faults: a killed writer, a file that is taken away, writers that never rest."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from soong.shared.core.errors import InvalidConfigError, UnavailableError
from soong.shared.engine.tasks.step import Claim
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.integration.sql_stores import begin, claim_one, opened
from tests.model.builders import make_owner, make_session, make_worker
from tests.system.faults.scene import small_disk

WRITER = """
import asyncio, sys
from soong.shared.storage.sql.store import open_store
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind

async def main(url, run_id, fence):
    store = await open_store(url, migrate=False)
    number = 0
    while True:
        node = NewNode(NodeKind.ASSISTANT, {"v": 1, "text": "x" * 5000})
        events = [NewEvent("turn", {"n": number}), NewEvent("turn_end", {"n": number})]
        appended = await store.runs.append(run_id, fence, nodes=[node], events=events, now_us=1)
        print(appended.last_seq, flush=True)
        number += 1

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.mark.spec("DAG-07")
async def test_kill_in_the_middle_of_writing_loses_nothing_reported_and_breaks_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    store = await open_store(url, migrate=True)
    session, worker_id = await begin(store)
    claim = await claim_one(store, session, worker_id)
    run_id = claim.identity.run_id
    told = 0

    for delay_s in (0.05, 0.11, 0.23):
        told = max(told, _write_and_kill([url, run_id, str(claim.fence)], delay_s))

        run, events = await store.runs.run(run_id), await store.runs.events(run_id, limit=100_000)
        assert run.last_seq >= told
        assert [event.seq for event in events] == list(range(1, run.last_seq + 1))
        assert len(await store.runs.nodes(run_id)) == run.last_node
        assert sum(event.type == "turn" for event in events) == sum(event.type == "turn_end" for event in events)
    await store.close()
    with sqlite3.connect(tmp_path / "soong.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def _write_and_kill(arguments: list[str], delay_s: float) -> int:
    """Let a process write until it is killed ``delay_s`` after its first word; return the last number it told."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        deadline = time.monotonic() + delay_s
        while time.monotonic() < deadline:  # not waited for: the kill must fall at no particular moment
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        rest = [line for line in process.stdout.read().splitlines() if line.isdigit()]
    return int(rest[-1] if rest else first)


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


@pytest.mark.spec("DAG-03")
async def test_heartbeat_is_not_kept_waiting_by_busy_writers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with opened(url) as store:
        session, worker_id = await begin(store)
        claims = [await claim_one(store, session, worker_id) for _ in range(2)]
        writers = [_busy_writer(url, claim) for claim in claims]
        heart = store.heartbeat_writer()
        try:
            took = [await asyncio.to_thread(_timed, heart.beat, worker_id) for _ in range(30)]
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
        heart.close()

        # Far under the lease; without the side lock one beat was seen to wait 3.5 s.
        assert max(took) < 1.0
        assert [worker.beat for worker in await store.sessions.workers()] == [30]


def _busy_writer(url: str, claim: Claim) -> "subprocess.Popen[bytes]":
    """Start a process that does nothing but append."""
    arguments = [url, claim.identity.run_id, str(claim.fence)]
    return subprocess.Popen([sys.executable, "-P", "-c", WRITER, *arguments], stdout=subprocess.DEVNULL)


def _timed(beat: object, worker_id: str) -> float:
    start = time.monotonic()
    assert callable(beat)
    assert beat(worker_id)
    return time.monotonic() - start
