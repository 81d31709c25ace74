"""A process that imports what a service needs while its command reads a plan, and does nothing without an order."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from soong.orchestrator.embedded import early_service
from soong.orchestrator.embedded.control import ControlServer
from soong.orchestrator.embedded.early_service import early_start, import_also, order
from soong.orchestrator.embedded.service_file import ServiceLock, own_record
from soong.orchestrator.embedded.starter import attach
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from tests.waiting import wait_until

LIMIT_S = 60.0
BEGINS_AND_DIES = """
import os, sys
from pathlib import Path
from soong.orchestrator.embedded import early_service
with early_service.early_start(Path(sys.argv[1])):
    print(early_service._early[0].pid, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _nothing_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in early_service.DECIDES:
        monkeypatch.delenv(name, raising=False)


def waiting() -> psutil.Process:
    (process,) = early_service._early
    return psutil.Process(process.pid)


def test_a_process_becomes_what_it_is_ordered_to_be(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with early_start(tmp_path):
        pid = waiting().pid
        process = order(("config", "show"), {**os.environ, "SOONG_SLOTS": "23"}, tmp_path, log)

    assert process is not None
    assert (process.pid, process.wait(LIMIT_S)) == (pid, 0)
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("SOONG_SLOTS "))
    assert "23" in line.split()


def test_a_process_imports_what_else_its_command_names_and_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    with early_start(tmp_path):
        import_also(["no_such_library"])
        import_also(["cProfile"])
        process = waiting()
        wait_until(lambda: any("_lsprof" in one.path for one in process.memory_maps()), LIMIT_S, "the import")
        log = tmp_path / "log"
        log.touch()
        ordered = order(("version",), os.environ, tmp_path, log)

    assert ordered is not None
    assert ordered.wait(LIMIT_S) == 0


def test_what_a_process_that_has_ended_is_to_import_is_nobodys_error(tmp_path: Path) -> None:
    with early_start(tmp_path):
        waiting().kill()
        early_service._early[0].wait(LIMIT_S)

        import_also(["cProfile"])

        assert order(("version",), os.environ, tmp_path, tmp_path / "log") is None


def test_a_command_that_ends_without_an_order_leaves_no_process(tmp_path: Path) -> None:
    def command() -> None:
        with early_start(tmp_path):
            processes.append(waiting())
            raise UsageError("the plan is wrong")

    processes: list[psutil.Process] = []
    with pytest.raises(UsageError):
        command()

    assert [process.is_running() for process in processes] == [False]
    assert early_service._early == []
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", BEGINS_AND_DIES, str(tmp_path)], capture_output=True, text=True, check=False
    )

    with suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(done.stdout)).wait(LIMIT_S)

    assert not psutil.pid_exists(int(done.stdout))
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_has_ended_before_the_order_is_replaced_by_an_ordinary_start(tmp_path: Path) -> None:
    with early_start(tmp_path):
        waiting().kill()
        early_service._early[0].wait(LIMIT_S)

        assert order(("version",), os.environ, tmp_path, tmp_path / "log") is None


@pytest.mark.parametrize("name", early_service.DECIDES)
def test_none_is_begun_for_a_deployment_or_for_folders_of_the_users_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")

    with early_start(tmp_path):
        assert early_service._early == []


async def test_the_process_is_ended_when_its_command_finds_a_deployment(tmp_path: Path) -> None:
    with early_start(tmp_path):
        process = waiting()

        await attach(load_settings(agent_home=tmp_path, database_url="postgresql://db/soong"))

        assert not process.is_running()


async def test_the_process_is_ended_when_its_command_joins_a_service_that_another_has_started(
    tmp_path: Path,
) -> None:
    with early_start(tmp_path), tempfile.TemporaryDirectory(prefix="soong-c-") as folder:
        process, control = waiting(), Path(folder) / "control.sock"
        server = ControlServer(control, lambda: {"state": "ready", "pid": os.getpid()}, lambda: None, lambda: False)
        await server.start()
        record = own_record(
            control=control, redis_url="unix:///redis.sock", database_url="", version="1", is_ephemeral=False
        )
        ServiceLock(tmp_path).write(record)

        held = await attach(load_settings(agent_home=tmp_path))

        assert (held.record, process.is_running()) == (record, False)
        await held.release()
        await server.close()


def test_none_is_begun_where_the_command_starts_no_service(tmp_path: Path) -> None:
    with early_start(tmp_path, is_wanted=False):
        assert early_service._early == []


def test_none_is_begun_where_a_service_may_be(tmp_path: Path) -> None:
    (tmp_path / "service.json").touch()

    with early_start(tmp_path):
        assert early_service._early == []
