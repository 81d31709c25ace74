"""The processes of a simulated deployment: owners and workers, made of the product's own parts on strands of their own.

A process is started by a supervisor, as systemd would, and ends by being killed, told to stop, or failing to start.
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Protocol

from soong.orchestrator.approvals.broker import ApprovalBroker, ApprovalContext
from soong.orchestrator.approvals.deployment_key import DeploymentKey
from soong.orchestrator.owner.commands import Commands
from soong.orchestrator.owner.parts import Parts
from soong.orchestrator.owner.scheduler import Expander, Scheduler
from soong.orchestrator.owner.service import Orchestrator
from soong.orchestrator.owner.workers import Dispatcher
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.storage.store import Store
from soong.worker.heartbeat import Incarnation
from soong.worker.held_runs import AdditionalSteps
from soong.worker.parking import ParkingCoordinator
from soong.worker.process import Connections, RunParts, WorkerProcess
from soong.worker.run import FunctionStepRunner, StepRunner
from tests.one_loop import NoAsks
from tests.simulation.borders import Dice, Fault, LossyBoard, Queues, SimBroker, border_notifier, border_store
from tests.simulation.loop import Strand, VirtualLoop
from tests.simulation.work import HOME, SIGNER, AskedCalls, ScriptedWork, SimulationHarness


class Ground(Protocol):
    """What all processes of a deployment stand on."""

    loop: VirtualLoop
    dice: Dice
    store: Store
    board: LossyBoard
    queues: Queues
    bench: SimulationHarness
    settings: Settings
    is_database_down: bool
    is_over: bool

    @property
    def clock(self) -> Clock: ...

    def ended(self, actor: "Actor") -> None: ...

    def struck(self, border: str, fault: Fault) -> None: ...

    def crossed(
        self, actor: "Actor", method: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: object
    ) -> None: ...

    def acts(self, actor: "WorkerActor", claim: Claim) -> None: ...

    def note(self, actor: str, what: str, detail: object = "") -> None: ...

    def fail(self, what: str) -> None: ...


class SkewedClock:
    """A machine's clocks: its wall may be wrong, its monotonic clock only starts elsewhere."""

    def __init__(self, true: Clock) -> None:
        self._true = true
        self.skew_us = 0

    def now_us(self) -> int:
        return self._true.now_us() + self.skew_us

    def monotonic_s(self) -> float:
        return self._true.monotonic_s()


class Actor:
    """One process. Its main strand is its event loop, a second one its heart's thread, if it has one."""

    kind = ""

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground = ground
        self.name = name
        self.main = ground.loop.strand(name)
        self.strands = [self.main]
        self.clock = SkewedClock(ground.clock)
        self.store = border_store(ground.store, self)
        self.notifier = border_notifier(ground.board, self)
        self.is_alive = True
        self.is_excused = False
        """It stood still and may not know yet that its lease is gone."""
        self.stopping = asyncio.Event()

    @property
    def is_held(self) -> bool:
        return self.main.is_held

    @property
    def is_at_work(self) -> bool:
        """Say whether a fault would hit something."""
        return not self.is_held

    # -- what borders ask (tests.simulation.borders.Crossing)
    @property
    def dice(self) -> Dice:
        return self.ground.dice

    @property
    def is_database_down(self) -> bool:
        return self.ground.is_database_down

    def check_running(self) -> None:
        if self.ground.is_over:
            raise asyncio.CancelledError

    def hit(self, border: str, fault: Fault) -> None:
        self.ground.struck(border, fault)
        self.ground.note(self.name, "fault", f"{fault} at {border}")

    def crossed(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: object) -> None:
        if (method == "beat" and outcome is True and not self.is_held) or method == "register_worker":
            self.is_excused = False
        self.ground.crossed(self, method, args, kwargs, outcome)

    # -- life and death
    def start(self) -> None:
        self.ground.note(self.name, "started")
        task = self.ground.loop.begin(self.main, self.live())
        task.add_done_callback(self._has_ended)

    async def live(self) -> None:
        raise NotImplementedError

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if self.is_alive and not self.ground.is_over:
            error = None if task.cancelled() else task.exception()
            self.ground.note(self.name, "exited", repr(error))
            if error is not None and not isinstance(error, UnavailableError):
                self.ground.fail(f"{self.name} ended with {error!r}")
            self.kill()

    def kill(self) -> None:
        """End the process between two of its instructions."""
        if self.is_alive:
            self.is_alive = False
            self.ground.note(self.name, "dead")
            for strand in self.strands:
                self.ground.loop.forget(strand)
            self.ground.ended(self)

    def pause(self, for_s: float) -> None:
        """Hold the whole process, as SIGSTOP does, and let it go on after a while."""
        self._hold(self.strands, for_s, "paused")

    def _hold(self, strands: list[Strand], for_s: float, what: str) -> None:
        held = [strand for strand in strands if self.is_alive and not strand.is_held]
        if not held:
            return
        self.ground.note(self.name, what, f"for {for_s:.1f} s")
        self.is_excused = self.is_excused or self.main in held
        for strand in held:
            strand.is_held = True
        self.ground.loop.call_later(
            for_s, self._let_go, held, context=self.ground.loop.context_of(self.ground.loop.world)
        )

    def _let_go(self, strands: list[Strand]) -> None:
        if self.is_alive:
            self.ground.note(self.name, "goes on")
            for strand in strands:
                strand.is_held = False
            self.ground.queues.deliver()

    def tell_to_stop(self) -> None:
        self.ground.note(self.name, "told to stop")
        self.ground.loop.call_soon(self.stopping.set, context=self.ground.loop.context_of(self.main))


class NoFolders:
    """Run folders are files, and files are no part of the ledger."""

    async def write(self, task_id: str) -> None: ...

    def set_aside(self) -> Collection[str]:
        return ()

    async def write_ended(self, owner_id: str) -> None: ...


class OwnerActor(Actor):
    """An orchestrator."""

    kind = "owner"

    def __init__(self, ground: Ground, name: str) -> None:
        super().__init__(ground, name)
        store, notifier, clock = self.store, self.notifier, self.clock
        key = DeploymentKey(store, SIGNER, clock)
        parts = Parts(
            store=store,
            notifier=notifier,
            subscriber=ground.board,
            clock=clock,
            scheduler=Scheduler(store.tasks, store.runs, Expander(store.tasks, store.runs, clock), clock),
            commands=Commands(store.sessions, store.tasks, store.runs, notifier, clock),
            dispatcher=Dispatcher(store.claims, store.sessions, SimBroker(ground.queues, self), notifier),
            broker=ApprovalBroker(
                ApprovalContext(store, notifier, key, clock, ground.settings, self._owner_id, home=HOME)
            ),
            recorder=NoFolders(),
            agents=NoAsks(),
        )
        self.orchestrator = Orchestrator(parts, ground.settings)

    def _owner_id(self) -> str:
        return self.orchestrator.owner_id

    async def live(self) -> None:
        await self.orchestrator.start()
        await self.stopping.wait()
        await self.orchestrator.stop()


class StrandTicker:
    """The heart's thread, as a strand of its own."""

    def __init__(self, loop: VirtualLoop, strand: Strand) -> None:
        self._loop = loop
        self._strand = strand
        self._task: asyncio.Task[None] | None = None

    def start(self, every_s: float, act: Callable[[], None]) -> None:
        self._task = self._loop.begin(self._strand, self._run(every_s, act))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, every_s: float, act: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(every_s)
            act()


class _Caller:
    """Hands a function from the heart's thread to the event loop."""

    def __init__(self, loop: VirtualLoop, strand: Strand) -> None:
        self._loop = loop
        self._context = loop.context_of(strand)

    def call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon(function, context=self._context)


class _NoWatcher:
    def started(self, claim: Claim) -> None: ...

    def ended(self, claim: Claim, end: StepEnd | None) -> None: ...


class WorkerActor(Actor):
    """A worker process with its Celery threads."""

    kind = "worker"

    def __init__(
        self, ground: Ground, name: str, *, slots: int, pools: tuple[str, ...], labels: tuple[str, ...]
    ) -> None:
        super().__init__(ground, name)
        self.slots = slots
        self.pools = pools
        self.labels = labels
        self.heart = ground.loop.strand(f"{name}'s heart")
        self.strands.append(self.heart)
        self._busy_threads = 0
        self._is_started = False
        self.additional = AdditionalSteps()
        self.incarnation = Incarnation(self.store.sessions, self.clock, name, slots, pools, labels)
        settings = ground.settings.model_copy(update={"slots": slots, "pools": pools})
        lot = ParkingCoordinator(self.store.claims, self.clock, settings.park_after_s, settings.max_parked)
        asked = AskedCalls.of(self.store, self.notifier, ground.board, self.clock, self, ground.bench.effects, lot)
        work = ScriptedWork(self.store, self.clock, self, ground.bench, asked)
        self.process = WorkerProcess(
            Connections(self.store, self.notifier, ground.board),
            RunParts(StepRunner(FunctionStepRunner(), work, work), _NoWatcher(), self.additional, hurry=lot.hurry),
            settings,
            self.incarnation,
            self.clock,
            _Caller(ground.loop, self.main).call,
            ticker=StrandTicker(ground.loop, self.heart),
        )

    async def live(self) -> None:
        await self.process.start()
        self._is_started = True
        self.ground.queues.consumers.append(self)
        self.ground.queues.deliver()
        await self.stopping.wait()
        self._is_started = False
        await self.process.drain(timedelta(seconds=self.ground.settings.drain_s))
        await self.process.stop()

    @property
    def is_at_work(self) -> bool:
        return not self.is_held and self.process.slots.busy > 0

    def kill(self) -> None:
        if self in self.ground.queues.consumers:
            self.ground.queues.consumers.remove(self)
        super().kill()

    def stall(self, for_s: float) -> None:
        """Hold the event loop alone: the heart's thread goes on."""
        self._hold([self.main], for_s, "stalled")

    def hang_heartbeat(self, for_s: float) -> None:
        """Hold the heart's thread alone, as a dead connection does."""
        self._hold([self.heart], for_s, "beat hangs")

    # -- the host of work (tests.simulation.work.Host)
    @property
    def worker_id(self) -> str:
        return self.incarnation.worker_id

    def acts(self, claim: Claim) -> None:
        self.ground.acts(self, claim)

    # -- the consumer of messages (tests.simulation.borders.Consumer)
    @property
    def is_consuming(self) -> bool:
        return self._is_started and not self.is_held and self._busy_threads < self.slots

    def take(self) -> None:
        self._busy_threads += 1
        self.ground.loop.begin(self.main, self._hold_slot()).add_done_callback(self._thread_is_free)

    async def _hold_slot(self) -> None:
        await self.process.slots.hold()

    def _thread_is_free(self, _: asyncio.Task[None]) -> None:
        self._busy_threads -= 1
        if not self.ground.is_over:
            self.ground.queues.deliver()
