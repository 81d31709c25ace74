"""The record of a home's service: who holds it, and when a record proves nothing."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.embedded.service_file import ServiceLock, ServiceRecord, own_record, read_record, start_of
from tests.stepped_clock import step_clock

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a start is a time of the clock")


def make_record(**overrides: object) -> ServiceRecord:
    record = own_record(
        control=Path("/run/x/control.sock"), redis_url="unix:///r", database_url="", version="1", is_ephemeral=True
    )
    return replace(record, **overrides)  # a test's own overrides


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    lock.acquire()

    lock.write(make_record())

    assert read_record(tmp_path) == make_record()
    assert (tmp_path / "service.json").stat().st_mode & 0o777 == 0o600


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    lock.acquire()
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as child:
        lock.release()

        descriptor = os.open(tmp_path / "service.lock", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

        os.close(descriptor)
        child.kill()


@on_linux
@pytest.mark.parametrize("by_s", [-3600, -2, 2, 3600])
def test_a_clock_that_is_set_leaves_a_service_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_s: int) -> None:
    record = make_record()

    step_clock(monkeypatch, tmp_path, by_s)

    assert start_of(os.getpid()) == pytest.approx(record.started_at + by_s)
    assert record.is_process_alive


@on_linux
def test_a_pid_used_again_is_another_process_whatever_the_clock_says() -> None:
    boot, _, ticks = make_record().birth.partition("/")

    assert not make_record(birth=f"{boot}/{int(ticks) - 1}").is_process_alive
    assert not make_record(birth=f"{'0' * len(boot)}/{ticks}").is_process_alive


def test_of_a_record_without_a_birth_the_start_counts_and_an_ended_process_is_not_alive() -> None:
    start = start_of(os.getpid())
    assert start is not None

    assert make_record(birth="").is_process_alive
    assert not make_record(birth="", started_at=start - 3600).is_process_alive

    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()

    assert not make_record(pid=child.pid).is_process_alive


def test_a_record_of_an_older_version_is_understood(tmp_path: Path) -> None:
    lock = ServiceLock(tmp_path)
    lock.acquire()
    lock.write(make_record())
    text = json.loads((tmp_path / "service.json").read_text())
    del text["birth"]
    (tmp_path / "service.json").write_text(json.dumps(text))

    found = read_record(tmp_path)

    assert found == make_record(birth="")
    assert found is not None
    assert found.is_process_alive


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({"pid": 1})], ids=["empty", "cut", "list", "bare", "part"]
)
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "service.json").write_text(text)

    assert read_record(tmp_path) is None
