"""The list of workers as people and programs get it, and the check that a container makes of itself."""

import json
import socket
from pathlib import Path

import pytest

from soong.orchestrator.cli.workers import text_of
from soong.orchestrator.schemas.worker import PoolSchema, WorkerSchema, WorkersSchema
from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.tasks.metrics import WorkerLoad
from soong.shared.storage.sql.store import open_store
from tests.model.builders import make_worker
from tests.unit.cli.calling import soong


async def deployed(tmp_path: Path, *workers: Worker) -> Path:
    """Return a home whose database knows these workers."""
    home = tmp_path / "home"
    (home / "soong").mkdir(parents=True)
    store = await open_store(f"sqlite:///{home / 'soong' / 'soong.db'}", migrate=True)
    for worker in workers:
        await store.sessions.register_worker(worker)
    await store.close()
    return home


@pytest.mark.spec("DIS-04", "OPS-04")
async def test_a_program_gets_one_document(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker("wrk_1", slots=7, pools=("big",)))

    done = soong("workers", "list", "--json", home=home)

    report = json.loads(done.stdout)
    assert (report["workers"][0]["id"], report["workers"][0]["slots"]) == ("wrk_1", 7)
    assert report["pools"] == [{"pool": "big", "queue": "soong.big", "waiting": 0, "free_slots": 7}]


async def test_metrics_are_printed_without_prometheus(tmp_path: Path) -> None:
    home = await deployed(tmp_path, make_worker(slots=7))

    done = soong("metrics", home=home)

    assert done.returncode == 0, done.stderr
    assert 'soong_slots_free{pool="default"} 7.0' in done.stdout


async def test_a_host_with_a_worker_is_healthy_until_it_is_declared_gone(tmp_path: Path) -> None:
    here = make_worker("wrk_here")
    home = await deployed(tmp_path, here)
    healthy = soong("workers", "check", "--host", here.host, home=home)
    other = soong("workers", "check", home=home) if here.host != socket.gethostname() else None

    store = await open_store(f"sqlite:///{home / 'soong' / 'soong.db'}")
    await store.sessions.set_worker_state(here.id, ProcessState.GONE)
    await store.close()
    gone = soong("workers", "check", "--host", here.host, home=home)

    assert (healthy.returncode, gone.returncode) == (0, 1)
    assert other is None or other.returncode == 1
    assert here.host in gone.stderr


def test_a_home_in_which_nothing_has_run_says_so(tmp_path: Path) -> None:
    done = soong("workers", "list", home=tmp_path / "none")

    assert done.returncode == 2
    assert "nothing has run" in done.stderr


def test_what_a_worker_says_of_itself_moves_no_terminal() -> None:
    hostile = make_worker(capabilities=("\x1b[31mred", "version:1\x1b]0;x\x07"))
    held = WorkerLoad(hostile.id, "run_1", "task_1/a", "\x1b[2Jtitle", 1, "sess_1", None)

    pool = PoolSchema(pool="default", queue="soong.default", waiting=0, free_slots=1)
    view = WorkersSchema(workers=[WorkerSchema.holding(hostile, [held])], pools=[pool], limits=[], parked=0)
    shown = text_of(view.model_dump())

    assert "\x1b" not in shown
    assert "title" in shown
