"""Deployments as users start them: ``soong orchestrator`` and some ``soong worker`` on a PostgreSQL and a Redis."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import psycopg

from benchmarks.handing_over import ServiceError, environment_of, prepare
from soong.orchestrator.client.bootstrap import open_client
from soong.orchestrator.client.client import Client, Submission
from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.sessions.session import ProcessState
from tests.servers import PostgresServer, redis_server

SLOTS: Final = 8
START_LIMIT_S: Final = 90.0
STOP_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running deployment with so many workers, and a client of it."""

    workers: int
    slots_each: int
    home: Path
    client: Client
    runner: asyncio.Runner
    processes: Sequence["subprocess.Popen[bytes]"]
    rows_url: str

    @property
    def slots(self) -> int:
        return self.workers * self.slots_each

    def prepare(self, title: str, steps: Sequence[Mapping[str, Json]]) -> Submission:
        return prepare(self.home, {"title": title, "steps": [dict(step) for step in steps]})

    def ask(self, question: str, *values: object) -> tuple[object, ...]:
        """Return the one row that answers a question to the database."""
        with psycopg.connect(self.rows_url, autocommit=True) as connection:
            row = connection.execute(question.encode(), values).fetchone()
        if row is None:
            raise ServiceError(f"no row answers {question!r}")
        return tuple(row)

    def cpu_s(self) -> float:
        """Return what its processes have used so far: the orchestrator and the workers with all that they started."""
        return sum(cpu_of_tree(process.pid) for process in self.processes)


def cpu_of_tree(pid: int) -> float:
    """Return user and system time of a process, of its children, and of those that it has had and waited for."""
    root, used = psutil.Process(pid), 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


@contextmanager
def fleet(server: PostgresServer, workers: int, slots: int = SLOTS) -> Iterator[Fleet]:
    """Start a deployment of its own on the server, wait until its workers are there, stop it afterwards.

    ``slots`` are those of each worker.
    """
    name = f"fleet{workers}x{slots}"
    with ExitStack() as stack:
        broker = stack.enter_context(redis_server())
        url = stack.enter_context(server.fresh_database(name))
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soong-bench-")))
        settings = load_settings(agent_home=home, database_url=url, redis_url=broker.socket_url)
        runner = stack.enter_context(asyncio.Runner())
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_stop, processes)
        processes.append(_start(settings, "orchestrator"))
        client = _awaited(runner, settings, processes, workers=0)
        stack.callback(lambda: runner.run(client.close()))
        named = (("--slots", str(slots), "--name", f"w{number}") for number in range(workers))
        processes.extend(_start(settings, "worker", *words) for words in named)
        _awaited(runner, settings, processes, workers=workers, client=client)
        yield Fleet(workers, slots, home, client, runner, processes, server.url(name, driver="postgresql"))


def _start(settings: Settings, *words: str) -> "subprocess.Popen[bytes]":
    log_path = Path(settings.agent_home) / f"{words[0]}.log"
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [Path(sys.executable).with_name("soong"), *words],
            env=environment_of(settings),
            cwd=settings.agent_home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _stop(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)


def _awaited(
    runner: asyncio.Runner,
    settings: Settings,
    processes: Sequence["subprocess.Popen[bytes]"],
    *,
    workers: int,
    client: Client | None = None,
) -> Client:
    """Return a client once that many workers live and an owner does. Raises: ServiceError."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            client = client or runner.run(open_client(settings))
            if runner.run(_live(client)) >= workers:
                return client
        except SoongError:
            pass  # not there yet
        time.sleep(0.1)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in Path(settings.agent_home).glob("*.log"))
    raise ServiceError(f"the deployment did not start within {START_LIMIT_S:.0f} s:\n{logs}")


async def _live(client: Client) -> int:
    """Return how many workers live; -1 without an owner."""
    if not await client.store.sessions.owners():
        return -1
    return sum(worker.state is ProcessState.LIVE for worker in await client.store.sessions.workers())
