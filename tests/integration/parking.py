"""Worker processes and a broker in one loop, with everything real but the processes: for runs that wait for consent."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from soong.orchestrator.approvals.broker import ApprovalBroker, ApprovalContext
from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.operations.preparation import prepared
from soong.orchestrator.operations.submissions import SubmissionBody, new_ids
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.core.config import load_config
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.request import Choice, PermissionRequest
from soong.shared.permissions.signing import Signer
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.storage.store import Store
from soong.worker.agent_step import AgentStepRunner
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.lifetime import Lifetime, RecycleLimits, Retirement
from soong.worker.process import Connections, RunParts, WorkerProcess
from soong.worker.run import FunctionStepRunner, StepRunner
from tests.integration.consent import BothPorts
from tests.integration.waiting_tools import opened
from tests.model.builders import make_answer, make_owner
from tests.scripted import calls as made
from tests.waiting import looks, until

SECRETS = ("a.pem", "b.pem")
"""Files that may be read by a person's leave only: neighbouring calls of one turn that ask at the same time."""


def ask(name: str = "a.pem") -> JsonObject:
    """Return a script's call that asks: it reads a sensitive file."""
    return {"call": "code.read_file", "with": {"path": name}}


def wait_for(name: str) -> JsonObject:
    """Return a script's call that asks nobody, and takes until the test opens that name."""
    return {"call": "test.wait_for", "with": {"name": name}}


def asking(id: str = "asks", *calls: JsonObject, **more: Json) -> JsonObject:
    """Return a step that makes these calls in one turn (by default one that asks) and then ends."""
    return {
        "id": id,
        "instructions": "x",
        "allowed_tools": ["code.read_file", "test.wait_for"],
        **made(*(calls or (ask(),)), at_once=True, output="done"),
        **more,
    }


def echo(id: str) -> JsonObject:
    return {"id": id, "kind": "python", "call": "builtin.echo"}


class _Soon:
    """Hands a function from the heart's thread to the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)


@dataclass
class Site:
    """One session with its broker, a project, and as many worker processes as a test starts."""

    store: Store
    board: BothPorts
    root: Path
    settings: Settings
    clock: SystemClock = field(default_factory=SystemClock)
    own: Ownership = field(init=False)
    broker: ApprovalBroker = field(init=False)
    task_id: str = ""
    _tasks: list[asyncio.Task[object]] = field(default_factory=list)
    _processes: list[WorkerProcess] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.root / "project"

    async def submit(
        self,
        *steps: JsonObject,
        mode: ApprovalMode = ApprovalMode.INBOX,
        allow: Sequence[str] = (),
        limits: JsonObject | None = None,
    ) -> None:
        plan = {"title": "t", "steps": list(steps), "limits": limits}
        given: Any = {"plan": plan, "project": str(self.project), "approval_mode": str(mode), "allow": allow}
        body = SubmissionBody.model_construct(**given, model="script")
        made = prepared(body, "local", new_ids(), Catalogue.of(self.settings), self.settings)
        owner = make_owner()
        await self.store.sessions.register_owner(owner)
        await self.store.sessions.open_session(replace(made.session, owner_id=owner.id, owner_epoch=1))
        await self.store.tasks.create_task(made.task)
        self.own, self.task_id = Ownership(made.session.id, owner.id, 1), made.task.id
        key = DeploymentKey(self.store, Signer.generate(), self.clock)
        self.broker = ApprovalBroker(
            ApprovalContext(self.store, self.board, key, self.clock, self.settings, lambda: owner.id)
        )
        self._begin(self._hear_questions())

    async def start_worker(
        self,
        slots: int = 1,
        *,
        is_dispatched: bool = True,
        is_ready: Callable[[], bool] = lambda: True,
        **settings: object,
    ) -> WorkerProcess:
        """Start a worker process; each of its slots takes a dispatch whenever there is something to claim."""
        own = self.settings.model_copy(update={"slots": slots, **settings})
        incarnation = Incarnation(
            self.store.sessions, self.clock, f"w{len(self._processes)}@here", slots, ("default",), ()
        )
        inbox = DecisionInbox(self.store.consent, self.board, "")
        agents = AgentStepRunner(
            self.store,
            self.board,
            inbox,
            incarnation,
            FolderArtifacts(RootedFolder(self.root, "artifacts")),
            self.clock,
            own,
            load_config(own.home),
        )
        process = WorkerProcess(
            Connections(self.store, self.board, self.board, closers=(inbox.close,)),
            RunParts(StepRunner(FunctionStepRunner(), agents, agents, Redactor()), NoFlower(), hurry=agents.lot.hurry),
            own,
            incarnation,
            self.clock,
            _Soon().call,
            Lifetime(RecycleLimits(), Retirement(self.clock), is_ready=is_ready),
        )
        await process.start()
        self._processes.append(process)
        if is_dispatched:
            self._begin(self._dispatch(process))
        return process

    async def _dispatch(self, process: WorkerProcess) -> None:
        async for _ in looks(600):
            if any((await self.store.claims.backlog()).ready.values()):
                self._begin(process.slots.hold())

    async def _hear_questions(self) -> None:
        subscription = await self.board.subscribe_permissions()
        try:
            while True:
                await subscription.wait(1.0)
                await self.broker.review([self.own.session_id])
        finally:
            await subscription.close()

    def _begin(self, work: object) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))  # type: ignore[arg-type]  # coroutines of ours

    async def close(self) -> None:
        for process in self._processes:
            await process.drain(timedelta(seconds=0.01))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.broker.close()
        for process in self._processes:
            await process.stop()

    # -- looking
    async def steps(self) -> dict[str, Step]:
        return {step.step_id: step for step in await self.store.tasks.steps(self.task_id)}

    async def until_stands(self, **statuses: StepStatus) -> dict[str, Step]:
        """Wait until the named steps stand so."""

        async def do_stand() -> bool:
            steps = await self.steps()
            return all(steps[name].status is status for name, status in statuses.items())

        await until(do_stand)
        return await self.steps()

    async def pending(self, count: int = 1) -> Sequence[PermissionRequest]:
        """Wait until so many questions are open."""

        async def are_open() -> bool:
            return len(await self.store.consent.pending(self.own.session_id)) == count

        await until(are_open)
        return await self.store.consent.pending(self.own.session_id)

    async def answer(self, *requests: PermissionRequest, choice: Choice = Choice.ALLOW_ONCE) -> None:
        for request in requests:
            await self.store.consent.answer(make_answer(request, choice))
            await self.board.permission_raised(request.id, self.own.session_id)

    async def story(self, name: str = "asks") -> Counter[str]:
        run_id = (await self.steps())[name].run_id
        return Counter(str(event.type) for event in await self.store.runs.events(run_id))


@asynccontextmanager
async def open_site(store: Store, board: BothPorts, root: Path, **settings: object) -> AsyncIterator[Site]:
    """Open a site; its project has files that are read by a person's leave only."""
    given: Mapping[str, object] = {
        "agent_home": root / "home",
        "tools": ("tests.integration.waiting_tools",),
        "beat_s": 0.2,
        "park_after_s": 0.05,
        **settings,
    }
    site = Site(store, board, root, Settings.model_validate(given))
    import soong.shared.agents.loop  # noqa: F401  # the model library: seconds of imports that are none of a test's time

    opened.clear()
    (root / "home").mkdir(parents=True, exist_ok=True)
    site.project.mkdir()
    for name in SECRETS:
        (site.project / name).write_text("KEY=1", encoding="utf-8")
    try:
        yield site
    finally:
        await site.close()
