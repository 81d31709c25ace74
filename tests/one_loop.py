"""A whole deployment in one asyncio loop: an orchestrator and workers over any store, with a broker that is a call."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.parts import Ended, Parts
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.service import Orchestrator
from soong.orchestrator.owner.workers import Dispatcher
from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd, Task
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.engine.wire.notifier import functions_needed
from soong.shared.permissions.request import PermissionCallback
from soong.shared.storage.store import Store
from soong.shared.tools.limits import TimeLimit
from soong.worker.claim_loop import ClaimLoop
from soong.worker.flower import NoFlower
from soong.worker.heartbeat import Incarnation
from soong.worker.held_runs import UnendedRuns
from soong.worker.run import FunctionStepRunner, StepRunner, TaskLimits
from soong.worker.slots import Slots
from tests.model.builders import make_session
from tests.waiting import looks

FAST = Settings(lease_s=600, sweep_s=0.1)  # nobody beats here


class NoAgents:
    """Runs no agents: these tests are about steps."""

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        raise AssertionError(f"no agent was expected, and {claim.step_key} is one")


class NoQuestions:
    """A broker nobody comes to."""

    async def review(self, session_ids: Sequence[str]) -> None: ...

    def attach(self, session_id: str, callback: PermissionCallback) -> None: ...

    def detach(self, session_id: str) -> None: ...

    async def close(self) -> None: ...


class NoAsks:
    """The agents of an owner that runs plans only."""

    def on_end(self, ended: Ended) -> None: ...

    def holds(self, _session_id: str, /) -> bool:
        return False

    async def look(self, ownership: Ownership) -> None: ...

    def next_waiting(self) -> str:
        return ""

    def drop(self, session_id: str) -> None: ...

    async def stop(self, *, is_abandoned: bool = False) -> None: ...


class NoFolders:
    """Writes none."""

    async def write(self, task_id: str) -> None: ...

    def set_aside(self) -> Collection[str]:
        return ()

    async def write_ended(self, owner_id: str) -> None: ...


@dataclass
class CallBroker:
    """A queue that is a call."""

    loop: asyncio.AbstractEventLoop
    workers: list["LoopWorker"] = field(default_factory=list)
    sent: int = 0

    def queued(self, pool: str) -> int:
        return 0

    def send(self, pool: str, dispatch_ids: Sequence[str]) -> None:
        for _ in dispatch_ids:
            self.sent += 1
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        free = [worker for worker in self.workers if worker.free > 0]
        if free:
            max(free, key=lambda worker: worker.free).begin()

    def close(self) -> None: ...


@dataclass
class LoopWorker:
    """A worker without its process: claim loop and slots."""

    store: Store
    board: MemoryBus
    slots_count: int
    held: set[asyncio.Task[int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.incarnation = Incarnation(self.store.sessions, clock, "w@localhost", self.slots_count, ("default",), ())
        self.incarnation.abilities = functions_needed(known_functions())
        limits = TaskLimits(self.store.budgets, clock)
        runner = StepRunner(FunctionStepRunner(), NoAgents(), NoAgents(), limits=limits)
        self.slots = Slots(
            self.slots_count, self.store.claims, clock, runner, NoFlower(), UnendedRuns(self.store.claims, clock)
        )
        self.claim_loop = ClaimLoop(
            self.store.claims,
            self.board,
            clock,
            self.incarnation.capacity,
            self.slots.free_slots,
            self.slots.start_slot,
        )
        self.slots.claim_loop = self.claim_loop

    @property
    def free(self) -> int:
        return self.slots.free_slots()

    async def start(self) -> None:
        await self.incarnation.register()
        self.pumping = asyncio.get_running_loop().create_task(self.claim_loop.run())

    def begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self.slots.hold())
        self.held.add(task)
        task.add_done_callback(self.held.discard)

    async def stop(self) -> None:
        self.pumping.cancel()
        for task in self.held:
            task.cancel()
        await asyncio.gather(self.pumping, *self.held, return_exceptions=True)


class OneLoop:
    """``async with OneLoop(store) as service: task = await service.run({...plan...})``."""

    def __init__(self, store: Store, *, workers: int = 2, slots: int = 8, settings: Settings = FAST) -> None:
        self.store = store
        self.board = MemoryBus()
        self.settings = settings
        self.workers = [LoopWorker(store, self.board, slots) for _ in range(workers)]
        self.folders = NoFolders()

    async def __aenter__(self) -> Self:
        clock, most = SystemClock(), self.settings.max_children_per_run
        self.broker = CallBroker(asyncio.get_running_loop(), self.workers)
        for worker in self.workers:
            await worker.start()
        parts = Parts(
            store=self.store,
            notifier=self.board,
            subscriber=self.board,
            clock=clock,
            scheduler=Scheduler(
                self.store.tasks, self.store.runs, Expander(self.store.tasks, self.store.runs, clock, most), clock
            ),
            commands=Commands(
                self.store.sessions, self.store.tasks, self.store.runs, self.board, clock, Planner(max_children=most)
            ),
            dispatcher=Dispatcher(self.store.claims, self.store.sessions, self.broker),
            broker=NoQuestions(),
            recorder=self.folders,
            agents=NoAsks(),
        )
        self.orchestrator = Orchestrator(parts, self.settings)
        await self.orchestrator.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            await worker.stop()
        await self.orchestrator.stop()

    async def submit(self, document: JsonObject, inputs: JsonObject | None = None) -> tuple[Session, Task]:
        """Write a session and a task of the plan, and ring."""
        plan = plan_from_json(document, "test", PlanNames(functions=frozenset(known_functions())))
        session = make_session()
        task = new_task(plan, inputs or {}, session, surface_of=lambda step: {}, default_model="", now_us=1)
        await self.store.sessions.open_session(session)
        await self.store.tasks.create_task(task)
        await self.board.notify_owners([session.id])
        return session, await self.store.tasks.task(task.id)

    async def finished(self, task_id: str, *, within_s: float = 20) -> Task:
        """Return the task once it has ended."""
        async for _ in looks(within_s):
            if (task := await self.store.tasks.task(task_id)).status.is_terminal:
                return task
        raise AssertionError  # looks end by an error

    async def run(self, document: JsonObject, inputs: JsonObject | None = None) -> Task:
        _, task = await self.submit(document, inputs)
        return await self.finished(task.id)

    async def outputs(self, task_id: str) -> dict[str, Json]:
        return {
            step.step_id: (await self.store.tasks.result(step.key)).output
            for step in await self.store.tasks.steps(task_id)
        }
