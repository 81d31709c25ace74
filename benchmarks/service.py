"""The workbench of the service: ``soong up`` with two worker processes as a child, and a client of it here.

A run is timed from handing the prepared task over (its rows are written within that time) to reading that it completed.
Reading the plan is not: the peer reads none.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.plans import plan_of
from benchmarks.workload import Workload
from orchestrator.catalogue import Catalogue
from orchestrator.client import Client
from orchestrator.client_bootstrap import open_client
from orchestrator.embedded.starter import living_service
from orchestrator.submission import Submission, submission
from shared.clock import SystemClock
from shared.errors import SoongError
from shared.sessions.session import AnswerMode
from shared.settings import Settings, load_settings
from shared.tasks.reading import plan_from_json
from shared.tasks.status import TaskStatus

WORKERS = 2
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0
RUN_LIMIT_S = 300.0
LOOK_EVERY_S = 0.5


class ServiceError(RuntimeError):
    """The service did not start, or did not complete a task."""


@dataclass(frozen=True, slots=True)
class ServiceWorkbench:
    """A running service on one store, and a client of it."""

    store: str
    home: Path
    client: Client
    runner: asyncio.Runner
    pid: int
    ledger: Ledger

    @property
    def name(self) -> str:
        return self.store

    def run(self, workload: Workload) -> float:
        return self.runner.run(self._run(self._prepare(workload)))

    def processes(self) -> Sequence[int]:
        return (self.pid,)

    def transactions(self) -> int | None:
        return self.ledger.transactions()

    def _prepare(self, workload: Workload) -> Submission:
        catalogue = Catalogue.of(load_settings(agent_home=self.home))
        return submission(
            plan_from_json(plan_of(workload), known=catalogue.known()),
            {},
            project=self.home,
            answer_mode=AnswerMode.NONE,
            model="script",
            allow=(),
            catalogue=catalogue,
            clock=SystemClock(),
        )

    async def _run(self, prepared: Submission) -> float:
        ear = await self.client.switchboard.session_ear(prepared.session.id)
        try:
            began = time.perf_counter()
            await self.client.submit(prepared.session, prepared.task)
            async with asyncio.timeout(RUN_LIMIT_S):
                status = TaskStatus.RUNNING
                while not status.is_terminal:
                    await ear.wait(LOOK_EVERY_S)
                    status = (await self.client.store.task(prepared.task.id)).status
            elapsed_s = time.perf_counter() - began
        finally:
            await ear.close()
        if status is not TaskStatus.COMPLETED:
            raise ServiceError(f"{prepared.task.title} on {self.store} ended as {status}")
        return elapsed_s


@contextmanager
def service_workbench(
    store: str, home: Path, database_url: str, redis_url: str, ledger: Ledger
) -> Iterator[ServiceWorkbench]:
    """Start the service, wait for its workers, and stop it afterwards."""
    settings = load_settings(agent_home=home, database_url=database_url, redis_url=redis_url, workers=WORKERS)
    log_path = home / "service.log"
    with log_path.open("wb") as log, asyncio.Runner() as runner:
        service = subprocess.Popen(
            [Path(sys.executable).with_name("soong"), "up", "--workers", str(WORKERS)],
            env=_environment(settings),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        client: Client | None = None
        try:
            client = runner.run(_connect(settings, service))
            if client is None:
                raise ServiceError(f"the service did not start: {log_path.read_text(errors='replace')[-3000:]}")
            yield ServiceWorkbench(store, home, client, runner, service.pid, ledger)
        finally:
            if client is not None:
                runner.run(client.close())
            service.terminate()
            try:
                service.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait(STOP_LIMIT_S)


def _environment(settings: Settings) -> dict[str, str]:
    ours = ("SOONG_", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment["SOONG_AGENT_HOME"] = environment["XDG_RUNTIME_DIR"] = str(settings.agent_home)
    environment["SOONG_REDIS_URL"] = settings.redis_url
    if settings.database_url:
        environment["SOONG_DATABASE_URL"] = settings.database_url
    return environment


async def _connect(settings: Settings, service: subprocess.Popen[bytes]) -> Client | None:
    """Return a client once the service and its workers are there; None when they are not in time."""
    deadline = time.monotonic() + START_LIMIT_S
    client: Client | None = None
    while time.monotonic() < deadline and service.poll() is None:
        try:
            if client is None and await living_service(settings) is not None:
                client = await open_client(settings)
            if client is not None and len(await client.store.workers()) >= WORKERS:
                return client
        except SoongError:
            pass  # not there yet
        await asyncio.sleep(0.1)
    if client is not None:
        await client.close()
    return None
