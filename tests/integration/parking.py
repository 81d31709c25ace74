"""Worker processes and a broker in one loop, with everything real but the processes: for runs that wait for consent."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from soong.orchestrator.approvals.broker import ApprovalBroker
from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.submission import SessionTerms, submission
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import load_config
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.request import Choice, PermissionRequest
from soong.shared.permissions.signing import Signer
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.storage.store import Store
from soong.worker.agent_step import AgentStepRunner
from soong.worker.flower import NoFlower
from soong.worker.function_step import FunctionStepRunner
from soong.worker.heartbeat import Incarnation
from soong.worker.process import WorkerProcess
from soong.worker.run import StepRunner
from tests.integration.consent import BothPorts
from tests.integration.waiting_tools import opened
from tests.model.builders import make_answer, make_owner
from tests.scripted import calls as made
from tests.waiting import until

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
        document: JsonObject = {"title": "t", "steps": list(steps), "limits": limits}
        catalogue = Catalogue.of(self.settings)
        prepared = submission(
            plan_from_json(document, "plan", catalogue.known()),
            {},
            SessionTerms(project=self.project, cwd=self.project, approval_mode=mode, model="script", allow=allow),
            catalogue,
            self.clock,
        )
        owner = make_owner()
        await self.store.sessions.register_owner(owner)
        await self.store.sessions.open_session(replace(prepared.session, owner_id=owner.id, owner_epoch=1))
        await self.store.tasks.create_task(prepared.task)
        self.own, self.task_id = Ownership(prepared.session.id, owner.id, 1), prepared.task.id
        key = DeploymentKey(self.store, Signer.generate(), self.clock)
        self.broker = ApprovalBroker(self.store, self.board, key, self.clock, self.settings, owner_id=lambda: owner.id)
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
            store=self.store,
            notifier=self.board,
            subscriber=self.board,
            clock=self.clock,
            settings=own,
            incarnation=incarnation,
            runner=StepRunner(FunctionStepRunner(), agents, Redactor()),
            watcher=NoFlower(),
            thread=_Soon(),
            on_drain=agents.lot.hurry,
            closers=(inbox.close,),
            is_ready=is_ready,
        )
        await process.start()
        self._processes.append(process)
        if is_dispatched:
            self._begin(self._dispatch(process))
        return process

    async def _dispatch(self, process: WorkerProcess) -> None:
        while True:
            if any((await self.store.claims.backlog()).ready.values()):
                self._begin(process.slots.hold())
            await asyncio.sleep(0.01)

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
