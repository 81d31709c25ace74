"""A deployment of real processes: an orchestrator in the test's own, workers that run what users start."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Client
from soong.orchestrator.owner.bootstrap import build
from soong.orchestrator.owner.service import Orchestrator
from soong.shared.core.errors import UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import ApprovalMode, Command, CommandKind, ProcessState, Session
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import bind_inputs
from soong.shared.engine.tasks.plan.reader import load_plan, plan_from_json
from soong.shared.engine.tasks.step import Step, Task, session_limit
from soong.shared.permissions.request import PermissionCallback
from soong.shared.sandbox.rooted import project_id
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.answering import AnsweringProgram
from tests.waiting import looks
from tests.warm import WarmProcess, warm_parent

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
LEASE_S = 2.0
BEAT_S = 0.5
SWEEP_S = 0.2
HOLDS_TIMES = os.environ.get("TEST_TIMES") == "exact"
"""Whether :func:`promised` holds the wall clock to a promise, which needs a machine where nothing runs beside the test.

`make chaos` runs the tests marked ``timed`` so. `make test` holds the same promises in virtual time and without slack
(tests/simulation/test_promised_times.py); here it holds that what is promised happens, and in which order."""


# Where the store decides nothing, one of them is enough.
ON_SQLITE = pytest.mark.parametrize("service", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("service", ["postgres"], indirect=True)


@dataclass
class Deployment:
    """``async with Deployment(url, redis_url, tmp_path) as service``; times are scaled to tests."""

    database_url: str
    redis_url: str
    home: Path
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further settings by their names, above the scaled ones."""
    has_own_owner: bool = True
    """Whether an orchestrator lives in the test's own process; otherwise the test starts owner processes."""
    workers: list[WarmProcess] = field(default_factory=list)
    owners: list[WarmProcess] = field(default_factory=list)
    responders: list[asyncio.Task[None]] = field(default_factory=list)
    _count: int = 0

    async def __aenter__(self) -> Self:
        self.settings = Settings(
            agent_home=self.home / "home",
            database_url=self.database_url,
            redis_url=self.redis_url,
            beat_s=BEAT_S,
            lease_s=LEASE_S,
            sweep_s=SWEEP_S,
            responder_wait_s=1.0,
            permission_timeout_s=2.0,
        ).model_copy(update=dict(self.extra))
        self.settings.home.mkdir(parents=True, exist_ok=True)
        if self.has_own_owner:
            await self.start_orchestrator()
        self.store: SqlStore = await open_store(self.database_url, migrate=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in (*self.workers, *self.owners):
            kill(process)
        for responder in self.responders:
            responder.cancel()
        await asyncio.gather(*self.responders, return_exceptions=True)
        if self.has_own_owner:
            await self.orchestrator.stop()
        await self.store.close()

    async def start_orchestrator(self) -> None:
        self.orchestrator: Orchestrator = await build(self.settings)
        await self.orchestrator.start()

    async def kill_orchestrator(self) -> None:
        """Let the orchestrator end as if killed: it releases nothing and says goodbye to nobody."""
        await self.orchestrator.abandon()

    async def start_owners(self, count: int, **environment: str) -> None:
        """Start orchestrator processes and wait until they are registered."""
        owner, known = "tests.system.faults.owner", len(self.owners)
        started = [self._start(f"o{known + index}", owner, (), environment) for index in range(count)]
        self.owners.extend(started)

        async def are_live() -> bool:
            return {process.pid for process in started} <= {owner.pid for owner in await self.store.sessions.owners()}

        await self.until(are_live, within_s=30)

    async def owner_of(self, task: Task) -> WarmProcess:
        """Return the process that owns a task's session, once one does."""

        async def is_owned() -> bool:
            return (await self.store.sessions.session(task.session_id)).owner_id != ""

        await self.until(is_owned)
        owner_id = (await self.store.sessions.session(task.session_id)).owner_id
        pid = next(owner.pid for owner in await self.store.sessions.owners() if owner.id == owner_id)
        return next(process for process in self.owners if process.pid == pid)

    async def command(self, task: Task, kind: str, detail: JsonObject | None = None) -> None:
        """Ask the task's owner for something and wait until it has been carried out."""
        now_us = SystemClock().now_us()
        command = Command(
            new_id("cmd"), task.session_id, CommandKind(kind), task.id, "local", now_us, dict(detail or {})
        )
        await self.store.sessions.send_command(command)
        await self._wake(task.session_id)

        async def has_ended() -> bool:
            return (await self.store.sessions.command(command.id))[1]

        await self.until(has_ended)
        assert (await self.store.sessions.command(command.id))[0].refusal == ""

    # -- workers
    async def start_workers(self, count: int, *, slots: int = 8, **environment: str) -> None:
        """Start worker processes and wait until they are registered."""
        started = [self._spawn(slots, environment) for _ in range(count)]
        self.workers.extend(started)
        await self.until(lambda: self._are_live(started), within_s=30)

    def _spawn(self, slots: int, environment: Mapping[str, str], *, pass_fds: tuple[int, ...] = ()) -> WarmProcess:
        self._count += 1
        name = f"w{self._count}"
        return self._start(name, "worker", ("--name", name, "--slots", str(slots)), environment, pass_fds=pass_fds)

    def _start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: tuple[int, ...] = (),
    ) -> WarmProcess:
        settings = {
            "SOONG_AGENT_HOME": str(self.settings.home),
            "SOONG_DATABASE_URL": self.database_url,
            "SOONG_REDIS_URL": self.redis_url,
            "SOONG_BEAT_S": str(self.settings.beat_s),
            "SOONG_LEASE_S": str(self.settings.lease_s),
            "SOONG_SWEEP_S": str(self.settings.sweep_s),
            "SOONG_DRAIN_S": "5",
            "PYTHONPATH": str(ROOT),
            "SOONG_FUNCTIONS": "tests.system.scripts,approve",
            "SOONG_IMPORT_PATH": str(ROOT / "examples"),
        }
        with (self.home / f"{name}.log").open("wb") as log:
            return warm_parent().start(
                module,
                arguments,
                env={**os.environ, **settings, **environment},
                stdout=log.fileno(),
                stderr=log.fileno(),
                cwd=self.home,
                pass_fds=pass_fds,
            )

    def spawn_with_parent(self, descriptor: int, **more: str) -> WarmProcess:
        """Start a worker that ends when the other end of this pipe is closed."""
        environment = {"SOONG_PARENT_FD": str(descriptor), **more}
        self.workers.append(self._spawn(2, environment, pass_fds=(descriptor,)))
        return self.workers[-1]

    async def _live_pids(self) -> set[int]:
        return {worker.pid for worker in await self.store.sessions.workers() if worker.state is ProcessState.LIVE}

    async def _are_live(self, processes: Sequence[WarmProcess]) -> bool:
        for process in processes:
            if process.poll() is not None:
                raise AssertionError(f"a worker ended with {process.returncode}:\n{self.logs()}")
        return {process.pid for process in processes} <= await self._live_pids()

    async def worker_of(self, step: Step) -> WarmProcess:
        """Return the process that holds a step."""
        pid = next(worker.pid for worker in await self.store.sessions.workers() if worker.id == step.worker_id)
        return next(process for process in self.workers if process.pid == pid)

    def logs(self, *, all_of_it: bool = False) -> str:
        last = 0 if all_of_it else -4000
        return "\n".join(path.read_text(errors="replace")[last:] for path in sorted(self.home.glob("[ow]*.log")))

    async def _wake(self, session_id: str) -> None:
        if self.has_own_owner:
            await self.orchestrator.parts.notifier.notify_owners([session_id])

    # -- tasks
    async def submit(
        self,
        plan: JsonObject | Path,
        inputs: Mapping[str, Json] | None = None,
        *,
        project: Path | None = None,
        callback: PermissionCallback | None = None,
        approval_mode: ApprovalMode = ApprovalMode.PROMPT,
        allow: tuple[str, ...] = (),
        max_concurrent: int = 0,
    ) -> Task:
        """Write a session and a task, as a client does, and ring."""
        catalogue = Catalogue.of(self.settings)
        known = replace(catalogue.known(), load_module=lambda _name: None)
        read = load_plan(plan, known) if isinstance(plan, Path) else plan_from_json(plan, "test")
        folder = str(project or self.home)
        rules = catalogue.policy.with_rules(catalogue.rules_of(*allow))
        mark = project_id(Path(folder))
        now_us = SystemClock().now_us()
        session = Session(new_id("sess"), folder, folder, approval_mode, now_us, rules.as_json(), project_id=mark)
        task = new_task(
            read,
            bind_inputs(read, inputs or {}),
            session,
            surface_of=catalogue.surface_of,
            default_model="script",
            now_us=SystemClock().now_us(),
        )
        await self.store.sessions.open_session(session)
        if callback is not None:
            self.attach(session.id, callback)
        if max_concurrent:
            await self.store.claims.set_concurrency_limits([session_limit(session.id, max_concurrent)])
        await self.store.tasks.create_task(task)
        await self._wake(session.id)
        return await self.store.tasks.task(task.id)

    def attach(self, session_id: str, callback: PermissionCallback) -> None:
        """Let a callback answer a session's questions, as the program of a client does, until the deployment ends."""
        parts = self.orchestrator.parts
        client = Client(self.store, parts.notifier, parts.subscriber, SystemClock(), self.settings)
        answering = AnsweringProgram(client, session_id, callback)
        self.responders.append(asyncio.get_running_loop().create_task(answering.run()))

    async def finished(self, task: Task, *, within_s: float = 60) -> Task:
        """Return the task once it has ended."""

        async def has_ended() -> bool:
            return (await self.store.tasks.task(task.id)).status.is_terminal

        await self.until(has_ended, within_s=within_s)
        return await self.store.tasks.task(task.id)

    async def steps(self, task: Task) -> dict[str, Step]:
        return {step.step_id: step for step in await self.store.tasks.steps(task.id)}

    async def until(self, holds: Callable[[], bool | Awaitable[bool]], *, within_s: float = 30) -> None:
        """Wait until a condition holds, looking every 20 ms; fail with the processes' logs after ``within_s``."""
        try:
            async for _ in looks(within_s):
                if await _holds_now(holds):
                    break
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s; workers' logs:\n{self.logs()}") from None


async def _holds_now(holds: Callable[[], bool | Awaitable[bool]]) -> bool:
    try:
        found = holds()
        return found if isinstance(found, bool) else await found
    except UnavailableError:
        return False


def promised(took_s: float, limit_s: float) -> bool:
    """Say whether a time on the wall clock keeps its promise, where that can be said at all."""
    return took_s <= limit_s or not HOLDS_TIMES


def kill(process: WarmProcess) -> None:
    """Kill a process that this test started; whatever it had under way is no longer looked at."""
    if process.poll() is None:
        process.kill()
        process.wait(timeout=5)


def end(process: "WarmProcess | subprocess.Popen[bytes]") -> None:
    """End a process that this test started, by asking and then by force."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)
