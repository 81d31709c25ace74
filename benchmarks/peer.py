"""The workbench of the peer: bare Celery on the same Redis, in the same run, with processes, threads or neither.

Its tasks do nothing, whatever the step of the workload does, or run the agent of the step with Pydantic AI.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import redis
from celery import Celery

from benchmarks.peer_app import PROCESSES, counter_of, make_app
from benchmarks.workload import Shape, Work, Workload

ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_S = 120
STOP_LIMIT_S = 15.0

Pool: TypeAlias = Literal["prefork", "threads", "solo"]
"""PREFORK: one worker with as many child processes. THREADS: one with as many threads. SOLO: as many workers that run
tasks in their own process."""


class PeerError(RuntimeError):
    """The peer did not do its work in time."""


@dataclass(frozen=True, slots=True)
class CeleryWorkbench:
    """Running Celery workers and their sender."""

    app: Celery
    client: redis.Redis
    queue: str
    pool: Pool
    pids: Sequence[int]
    concurrency: int = PROCESSES
    has_agents: bool = False

    @property
    def name(self) -> str:
        form = f"{self.concurrency} x solo" if self.pool == "solo" else f"{self.pool} -c {self.concurrency}"
        return f"celery {form}, Pydantic AI agents" if self.has_agents else f"celery {form}"

    def does(self, work: Work) -> bool:
        return work.is_agent or not self.has_agents

    def run(self, workload: Workload) -> Sequence[float]:
        if workload.shape is Shape.SINGLE:
            return [self._answer(number, workload.work) for number in range(workload.size)]
        counter, done = counter_of(self.queue)
        self.client.delete(counter, done)
        began = time.perf_counter()
        self._send(workload)
        if self.client.blpop([done], timeout=RUN_LIMIT_S) is None:
            raise PeerError(f"{self.name} did not end {workload.name} within {RUN_LIMIT_S} s")
        return [time.perf_counter() - began]

    def processes(self) -> Sequence[int]:
        return self.pids

    def transactions(self) -> int | None:
        return None

    def log_bytes(self) -> int | None:
        return None

    def _answer(self, number: int, work: Work) -> float:
        began = time.perf_counter()
        if self.app.send_task("answer", self._arguments(number, work)).get(timeout=RUN_LIMIT_S) != number:
            raise PeerError(f"{self.name} answered something else")
        return time.perf_counter() - began

    def _send(self, workload: Workload) -> None:
        arguments = self._arguments(workload.size, workload.work)
        if workload.shape is Shape.CHAIN:
            self.app.send_task("hop", arguments)
            return
        with self.app.producer_pool.acquire(block=True) as producer:
            for _ in range(workload.size):
                self.app.send_task("count", arguments, producer=producer)

    def _arguments(self, number: int, work: Work) -> tuple[int, ...]:
        return (number, work.calls) if self.has_agents else (number,)


@contextmanager
def celery_workbench(
    redis_url: str, concurrency: int = PROCESSES, pool: Pool = "prefork", agents_in: Path | None = None
) -> Iterator[CeleryWorkbench]:
    """Start the peer's workers with so many processes, wait until they have done a task, and stop them afterwards.

    With ``agents_in`` their tasks are agents that look into that folder.
    """
    queue = f"benchmark-{pool}-agents" if agents_in else f"benchmark-{pool}"
    # redis-py gives a blocking read no more than its socket timeout, so this client has none.
    client = redis.Redis.from_url(redis_url, socket_timeout=None)
    number, each = (concurrency, 1) if pool == "solo" else (1, concurrency)
    folder = [str(agents_in)] if agents_in else []
    commands = [
        [sys.executable, "-P", "-m", "benchmarks.peer_app", redis_url, queue, pool, str(each), str(one), *folder]
        for one in range(number)
    ]
    app = make_app(redis_url, queue)
    with ExitStack() as stack:
        stack.callback(client.close)
        stack.callback(app.close)
        pids = [stack.enter_context(_running(command)) for command in commands]
        bench = CeleryWorkbench(app, client, queue, pool, pids, concurrency, has_agents=agents_in is not None)
        _warm(bench)
        yield bench


def _warm(bench: CeleryWorkbench) -> None:
    """Wait until each worker takes tasks."""
    deadline = time.monotonic() + RUN_LIMIT_S
    while len(bench.app.control.ping(timeout=1.0)) < len(bench.pids):
        if time.monotonic() > deadline:
            raise PeerError(f"the workers of {bench.name} did not start")


@contextmanager
def _running(command: Sequence[str]) -> Iterator[int]:
    environment, silent = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.DEVNULL
    worker = subprocess.Popen(command, env=environment, cwd="/", stdin=silent, stdout=silent, stderr=silent)
    try:
        yield worker.pid
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(STOP_LIMIT_S)
