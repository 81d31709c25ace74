"""The parts of an embedded service: children, control connections, records, ports, health and the number of workers."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.embedded.child import EXIT_RETIRED, EXIT_USAGE, ChildHealth, ServiceChild, exit_words
from soong.orchestrator.embedded.control import ControlClient, ControlServer, ShutdownState, ask_once
from soong.orchestrator.embedded.folders import STATUS_FD
from soong.orchestrator.embedded.listening import PortHeldError, listen, listen_after_former
from soong.orchestrator.embedded.service import Demand, WorkerScaler
from soong.orchestrator.embedded.service_file import ServiceLock, ServiceRecord, own_record, read_record, start_of
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.step import Backlog, WaitingSteps
from soong.worker import lifetime
from tests.model.builders import make_worker
from tests.stepped_clock import step_clock
from tests.waiting import others_run

REPORTING = """
import os, sys
os.write(int(os.environ["{fd}"]), sys.argv[1].encode() + b"\\n")
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (7, "exit code 7"),
        (-signal.SIGKILL, "SIGKILL, killed, perhaps out of memory"),
        (-signal.SIGSEGV, "SIGSEGV, segmentation fault"),
        (-signal.SIGABRT, "SIGABRT, aborted"),
        (-63, "signal 63"),
    ],
)
def test_how_a_process_ended_is_said_in_words(code: int, words: str) -> None:
    assert exit_words(code) == words


async def ended(child: ServiceChild, folder: Path) -> ServiceChild:
    await child.spawn(folder)
    assert child.process is not None
    async with asyncio.timeout(30):
        code = await child.process.wait()
    child.note_end(code, is_steady=False)
    return child


def worker(line: str, then: str) -> ServiceChild:
    code = REPORTING.format(fd=STATUS_FD)
    return ServiceChild("w", [sys.executable, "-c", code, line, then], dict(os.environ), is_worker=True)


async def test_a_worker_that_cannot_start_is_tried_a_few_times_and_one_that_was_ready_always(tmp_path: Path) -> None:
    child = worker("failed the database is away", "1")

    seen = [(await ended(child, tmp_path)).is_hopeless for _ in range(3)]

    assert seen == [False, False, True]

    child = worker("ready", str(EXIT_USAGE))

    seen = [(await ended(child, tmp_path)).is_hopeless for _ in range(4)]

    assert (seen, child.failed_starts, child.deaths) == ([False] * 4, 0, 4)


@pytest.mark.parametrize(
    ("retires_after_s", "code", "lived_s", "has_retired"),
    [(60, EXIT_RETIRED, 61, True), (60, EXIT_RETIRED, 59, False), (60, 0, 61, False), (0, EXIT_RETIRED, 61, False)],
    ids=["idle for long enough", "a step has ended it so", "stopped by hand", "one that stays"],
)
def test_only_an_added_worker_that_had_the_time_for_it_has_retired(
    retires_after_s: float, code: int, lived_s: float, *, has_retired: bool
) -> None:
    child = ServiceChild("w", [], {}, is_worker=True, retires_after_s=retires_after_s)

    assert child.has_retired(code, lived_s) is has_retired


def test_both_sides_mean_the_same_exit_code() -> None:
    assert EXIT_RETIRED == lifetime.EXIT_RETIRED


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short: a unix socket's path has 107 bytes at most, and pytest's own folders can be long.
    path = Path(tempfile.mkdtemp(prefix="soong-c-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[ControlServer]:
    stopped = asyncio.Event()
    one = ControlServer(folder / "control.sock", lambda: {"state": "ready", "pid": 7}, stopped.set, lambda: False)
    await one.start()
    yield one
    await one.close()


async def test_attaching_twice_counts_once(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    await client.ask("attach")

    assert (await client.ask("attach"))["ok"] is True

    assert server.attached == 1
    await client.close()


async def test_a_stopping_service_lets_nobody_attach(server: ControlServer) -> None:
    client = await ControlClient.open(server.path)
    assert (await client.ask("hello"))["ok"] is True

    await server.refuse(ShutdownState.STOPPING)

    assert (await client.reader.readline()).rstrip().endswith(b'"event": "stopping"}')
    with pytest.raises(UnavailableError):
        await ControlClient.open(server.path)
    await client.close()


async def test_an_unknown_operation_is_refused_by_name(server: ControlServer) -> None:
    assert (await ask_once(server.path, "dance"))["problem"] == "unknown operation 'dance'"


@pytest.mark.parametrize(
    ("child", "is_dying", "words"),
    [
        (
            ChildHealth("worker-1", 1, 1, "exit code 7", 4),
            False,
            "worker-1 ended unexpectedly once, last by exit code 7; it runs since 4 s",
        ),
        (
            ChildHealth("worker-2", 5, 3, "exit code 7"),
            True,
            "worker-2 ended unexpectedly 5 times, 3 of them in a row, last by exit code 7",
        ),
        (
            ChildHealth("worker-1", 3, 3, "exit code 7", int(timing.STEADY_AFTER_S)),
            False,
            "worker-1 ended unexpectedly 3 times, last by exit code 7; it runs since 30 s",
        ),
    ],
    ids=["once", "again and again", "steady since"],
)
def test_a_worker_is_dying_until_it_has_proved_itself(child: ChildHealth, is_dying: bool, words: str) -> None:
    assert (child.is_dying, child.words) == (is_dying, words)


def settings_of(home: Path, listener: socket.socket) -> Settings:
    return Settings(agent_home=home, http_port=listener.getsockname()[1])


async def test_the_port_of_another_program_is_refused_after_a_while(tmp_path: Path) -> None:
    listener = listen("127.0.0.1", 0, ())

    with pytest.raises(PortHeldError, match="another program listens there; end that program, or choose another port"):
        await listen_after_former(settings_of(tmp_path, listener), limit_s=0.0)

    listener.close()


STEP, OTHER = WaitingSteps("sess_a", "default"), WaitingSteps("sess_b", "default")

IDLE, CALM = Demand(1, 0), Demand(1, 1)

TWO_HELD, WAITING = Demand(1, 2), Demand(1, 1, frozenset({STEP}))


@dataclass
class Timeline:
    """The time of a test, the rows at each moment of it, and the workers of the service: from one to ``most``."""

    at: Callable[[float], Demand]
    most: int = 2
    now_s: float = 0.0
    count: int = 1
    looks: list[float] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        await others_run()

    async def look(self) -> Demand:
        self.looks.append(self.now_s)
        return self.at(self.now_s)

    @property
    def may_grow(self) -> bool:
        return self.count < self.most

    def grow(self) -> None:
        self.count += 1
        self.grown.append(self.now_s)


async def hinted(timeline: Timeline, until_s: float = 1.0) -> Timeline:
    """Hint all the time, as a busy owner does, until the timeline has come there."""
    scaler = WorkerScaler(lambda: timeline.may_grow, timeline.grow, timeline.look, others_run, timeline.sleep)
    running = asyncio.create_task(scaler.run())
    while timeline.now_s < until_s:
        scaler.hint()
        await others_run()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return timeline


@pytest.mark.parametrize("demand", [IDLE, CALM, Demand(2, 2), Demand(0, 0, frozenset({STEP}))], ids=str)
async def test_none_is_added_for_what_the_workers_can_do_or_where_none_lives(demand: Demand) -> None:
    assert not (await hinted(Timeline(lambda _now_s: demand, most=4))).grown


@pytest.mark.parametrize("demand", [TWO_HELD, WAITING], ids=["several steps on one worker", "a step waits"])
async def test_what_is_over_in_a_moment_adds_none(demand: Demand) -> None:
    timeline = await hinted(Timeline(lambda now_s: demand if now_s < 0.2 else CALM))

    assert (timeline.looks[0] < 0.2, timeline.grown) == (True, [])


@pytest.mark.parametrize("error", [UnavailableError("away"), ValueError("a row that nobody can read")], ids=repr)
async def test_rows_that_cannot_be_read_are_read_again_after_the_next_hint(error: Exception) -> None:
    def at(now_s: float) -> Demand:
        if now_s < 0.3:
            raise error
        return TWO_HELD

    assert len((await hinted(Timeline(at))).grown) == 1


def test_only_live_workers_count_and_only_what_they_are_able_to_run() -> None:
    live = replace(make_worker("wrk_1"), busy=1)
    draining = replace(make_worker("wrk_2", state=ProcessState.DRAINING), busy=5)
    unable = WaitingSteps("sess_c", "default", ("label:gpu",))

    demand = Demand.of([live, draining], Backlog({"default": 3}, frozenset({STEP, OTHER, unable})))

    assert demand == Demand(1, 1, frozenset({STEP, OTHER}))


def test_what_waits_for_a_concurrency_limit_waits_for_no_worker() -> None:
    assert Demand.of([make_worker("wrk_1")], Backlog({}, frozenset({STEP}))) == Demand(1, 0)


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a start is a time of the clock")


def make_record(**overrides: object) -> ServiceRecord:
    record = own_record(
        control=Path("/run/x/control.sock"), redis_url="unix:///r", database_url="", version="1", is_ephemeral=True
    )
    return replace(record, **overrides)  # a test's own overrides


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

    assert (tmp_path / "service.json").stat().st_mode & 0o777 == 0o600
    assert found == make_record(birth="")
    assert found is not None
    assert found.is_process_alive


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", json.dumps({"pid": 1})], ids=["empty", "cut", "list", "bare", "part"]
)
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "service.json").write_text(text)

    assert read_record(tmp_path) is None
