"""The workbench of the peer: bare Celery on the same Redis, in the same run."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from celery import Celery

from benchmarks.peer_app import COUNTER, DONE, PROCESSES, make_app
from benchmarks.workload import Shape, Workload

ROOT = Path(__file__).resolve().parent.parent
RUN_LIMIT_S = 120
STOP_LIMIT_S = 15.0


class PeerError(RuntimeError):
    """The peer did not do its work in time."""


@dataclass(frozen=True, slots=True)
class CeleryWorkbench:
    """A running Celery worker and its sender."""

    app: Celery
    client: redis.Redis
    pid: int
    concurrency: int = PROCESSES

    @property
    def name(self) -> str:
        return f"celery prefork -c {self.concurrency}"

    def run(self, workload: Workload) -> float:
        self.client.delete(COUNTER, DONE)
        began = time.perf_counter()
        self._send(workload)
        if self.client.blpop([DONE], timeout=RUN_LIMIT_S) is None:
            raise PeerError(f"{self.name} did not end {workload.name} within {RUN_LIMIT_S} s")
        return time.perf_counter() - began

    def processes(self) -> Sequence[int]:
        return (self.pid,)

    def transactions(self) -> int | None:
        return None

    def _send(self, workload: Workload) -> None:
        match workload.shape:
            case Shape.FAN:
                with self.app.producer_pool.acquire(block=True) as producer:
                    for _ in range(workload.size):
                        self.app.send_task("count", (workload.size,), producer=producer)
            case Shape.CHAIN:
                self.app.send_task("hop", (workload.size,))


@contextmanager
def celery_workbench(redis_url: str, concurrency: int = PROCESSES) -> Iterator[CeleryWorkbench]:
    """Start the peer's worker with so many processes, wait until it has done one task, and stop it afterwards."""
    # redis-py gives a blocking read no more than its socket timeout, so this client has none.
    client = redis.Redis.from_url(redis_url, socket_timeout=None)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "benchmarks.peer_app", redis_url, str(concurrency)]
    silent = subprocess.DEVNULL
    worker = subprocess.Popen(command, env=environment, cwd="/", stdin=silent, stdout=silent, stderr=silent)
    app = make_app(redis_url)
    try:
        client.delete(COUNTER, DONE)
        app.send_task("count", (1,))
        if client.blpop([DONE], timeout=RUN_LIMIT_S) is None:
            raise PeerError(f"the peer's worker did not start; see what it says: {' '.join(command)}")
        yield CeleryWorkbench(app, client, worker.pid, concurrency)
    finally:
        worker.terminate()
        try:
            worker.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(STOP_LIMIT_S)
        app.close()
        client.close()
