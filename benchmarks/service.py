"""The workbench of the service: ``soong up`` with two worker processes as a child, and a client of it here.

A workload is timed as a program sees it: from calling ``Soong.run`` with the plan to having its result.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.handing_over import ServiceError, environment_of
from benchmarks.ledger import Ledger
from benchmarks.plans import plan_of
from benchmarks.workload import Shape, Work, Workload
from soong.orchestrator.client.bootstrap import open_client
from soong.orchestrator.client.client import Client
from soong.orchestrator.embedded.starter import living_service
from soong.orchestrator.sdk.service import Soong
from soong.shared.core.errors import SoongError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.spec import TaskStatus

WORKERS = 2
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0


def project_of(home: Path) -> Path:
    """Return the folder that agents look into; no tool reads the home."""
    folder = home.parent / f"{home.name}-project"
    folder.mkdir(exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class ServiceWorkbench:
    """A running service on one store, and a client of it."""

    store: str
    home: Path
    client: Client
    runner: asyncio.Runner
    pid: int
    ledger: Ledger
    more_pids: Sequence[int] = ()
    """Of the database's server."""

    @property
    def name(self) -> str:
        return self.store

    def does(self, work: Work) -> bool:
        del work
        return True

    def run(self, workload: Workload) -> Sequence[float]:
        return self.runner.run(self._run(workload))

    async def _run(self, workload: Workload) -> Sequence[float]:
        soong, plan = Soong(self.client, self.client.settings), plan_of(workload)
        waits_s = []
        for _ in range(workload.size if workload.shape is Shape.SINGLE else 1):
            began = time.perf_counter()
            result = await soong.run(plan, project=self.project)
            waits_s.append(time.perf_counter() - began)
            if result.status is not TaskStatus.COMPLETED:
                raise ServiceError(f"{workload.name} ended as {result.status}")
        return waits_s

    @property
    def project(self) -> Path:
        return project_of(self.home)

    def processes(self) -> Sequence[int]:
        return (self.pid, *self.more_pids)

    def transactions(self) -> int | None:
        return self.ledger.transactions()

    def log_bytes(self) -> int | None:
        return self.ledger.log_bytes()


@contextmanager
def service_workbench(
    store: str,
    home: Path,
    database_url: str,
    redis_url: str,
    ledger: Ledger,
    *,
    slots: int = 0,
    more: Mapping[str, str] = MappingProxyType({}),
    more_pids: Sequence[int] = (),
) -> Iterator[ServiceWorkbench]:
    """Start the service, wait for its workers, and stop it afterwards.

    ``slots`` are those of each worker, 0 as many as it is configured to have; ``more`` is put into its environment.
    ``more_pids`` are processes whose CPU time counts as its own.
    """
    settings = load_settings(agent_home=home, database_url=database_url, redis_url=redis_url, workers=WORKERS)
    log_path = home / "service.log"
    own = ("--slots", str(slots)) if slots else ()
    with log_path.open("wb") as log, asyncio.Runner() as runner:
        service = subprocess.Popen(
            [Path(sys.executable).with_name("soong"), "up", "--workers", str(WORKERS), *own],
            env={**environment_of(settings), **more},
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
            yield ServiceWorkbench(store, home, client, runner, service.pid, ledger, more_pids)
        finally:
            if client is not None:
                runner.run(client.close())
            service.terminate()
            try:
                service.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait(STOP_LIMIT_S)


async def _connect(settings: Settings, service: subprocess.Popen[bytes]) -> Client | None:
    """Return a client once the service and its workers are there; None when they are not in time."""
    deadline = time.monotonic() + START_LIMIT_S
    client: Client | None = None
    while time.monotonic() < deadline and service.poll() is None:
        try:
            if client is None and await living_service(settings) is not None:
                client = await open_client(settings)
            if client is not None and len(await client.store.sessions.workers()) >= WORKERS:
                return client
        except SoongError:
            pass  # not there yet
        await asyncio.sleep(0.1)
    if client is not None:
        await client.close()
    return None
