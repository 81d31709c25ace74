"""Agent steps: runs the child agent of a claimed step and turns its end into the step's end."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from soong.shared.agents.pacing import LocalPacer, Pacer
from soong.shared.agents.runtime.assembly import AgentRuntime, step_end
from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.agents.runtime.observer import AgentObserver, NullObserver
from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.clock import Clock
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UsageError
from soong.shared.core.settings import Settings, secret_values
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.configured import WORKER_SOURCE
from soong.shared.sandbox.redact import redactor
from soong.shared.storage.store import Store
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.time_limit import TimeLimit
from soong.shared.toolsets.command_runner import process_launcher
from soong.shared.toolsets.hooks import all_hooks
from soong.shared.toolsets.sources import ToolEnvironment, make_registry
from soong.shared.toolsets.tasks import TaskTools
from soong.worker.acp_step import AcpStepRunner, is_acp
from soong.worker.additional_steps import AdditionalSteps
from soong.worker.capabilities import abilities
from soong.worker.incarnation import Incarnation
from soong.worker.lent_slots import LentSlots
from soong.worker.parking import ParkingCoordinator, RunParking, WatchedCalls


@dataclass(slots=True)
class AgentStepRunner:
    """Runs child agents of one worker process."""

    store: Store
    notifier: Notifier
    inbox: DecisionInbox
    incarnation: Incarnation
    artifacts: ArtifactStore
    clock: Clock
    settings: Settings
    config: Config = field(default_factory=Config)
    watcher: AgentObserver = field(default_factory=NullObserver)
    pacer: Pacer = field(default_factory=LocalPacer)
    additional: AdditionalSteps = field(init=False)
    """The additional steps of runs; the slots of the same process end it with them."""
    lot: ParkingCoordinator = field(init=False)
    lent: LentSlots = field(init=False)
    """The slots of the same process that runs do without while they wait for their provider."""
    close: Callable[[], Awaitable[None]] = field(init=False)
    """Lets go of what tools hold open, such as MCP servers."""
    _runtime: AgentRuntime = field(init=False)
    _acp: AcpStepRunner = field(init=False)

    def __post_init__(self) -> None:
        self.lot = ParkingCoordinator(
            self.store.claims, self.clock, self.settings.park_after_s, self.settings.max_parked
        )
        self.lent = LentSlots(self.settings.park_after_s)
        clean = redactor(secret_values(self.settings, self.config.secret_env, self.config.secret_files))
        self.additional = AdditionalSteps(clean)
        environment = ToolEnvironment.of(self.settings, self.config)
        own_step = TaskTools(self.store, self._worker_id, self.clock, clean.text, self.additional)
        registry = make_registry(environment, [own_step])
        self.close = registry.close
        self.incarnation.abilities = abilities(registry, self.settings, environment.mcp.enabled)
        self._runtime = AgentRuntime(
            store=self.store,
            notifier=self.notifier,
            inbox=self.inbox,
            artifacts=self.artifacts,
            clock=self.clock,
            settings=self.settings,
            config=self.config,
            registry=registry,
            hooks=all_hooks(environment, clean, self.settings.home),
            redactor=clean,
            source=WORKER_SOURCE,
            observer=self.watcher,
            pacer=self.pacer,
        )
        self._acp = AcpStepRunner(self._runtime, environment.paths, process_launcher(self.settings, self.config))

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        """Run the agent of a claimed step from its last state to its end."""
        self.inbox.worker_id = self.incarnation.worker_id
        if claim.is_resumed and self.config.mcp.servers:
            await self._withdraw_cut_off(claim)
        log = self._runtime.call_log(claim, interruption)
        parking = self._parking(claim, log, interruption)
        if is_acp(claim):
            return await self._run_acp(claim, bound, limit, log, parking)
        try:
            agent = await self._runtime.prepare(claim, bound, limit, log, waiting=parking.waiting)
        except InvalidConfigError as error:
            return claim.failed("worker_incompatible", str(error))
        except (NotFoundError, UsageError) as error:
            return claim.failed("invalid_input", str(error))
        with self.lot.entered(parking):
            end = await self._runtime.run(agent, WatchedCalls(agent.executor, parking), sleep=self.lent.sleep)
        return step_end(claim, end, await log.take())

    async def _withdraw_cut_off(self, claim: Claim) -> None:
        """Close what servers asked in calls of a former life of the run: nobody waits for the answers."""
        run_id, now_us = claim.identity.run_id, self.clock.now_us()
        reason = "the call that asked was cut off"
        for request_id in await self.store.consent.withdraw_cut_off(run_id, claim.fence, reason=reason, now_us=now_us):
            await self.notifier.permission_raised(request_id, claim.identity.session_id)

    async def _run_acp(
        self, claim: Claim, bound: BoundStep, limit: TimeLimit, log: RunCallLog, parking: RunParking
    ) -> StepEnd:
        try:
            with self.lot.entered(parking):
                end = await self._acp.run(claim, bound, limit, log, parking)
        except InvalidConfigError as error:
            return claim.failed("worker_incompatible", str(error))
        except (NotFoundError, UsageError) as error:
            return claim.failed("invalid_input", str(error))
        return step_end(claim, end, await log.take())

    def _parking(self, claim: Claim, log: RunCallLog, interruption: StopSignal) -> RunParking:
        task = asyncio.current_task()
        assert task is not None
        return RunParking(self.lot, self.incarnation.worker_id, claim.lease, interruption, task, log.flush)

    def _worker_id(self) -> str:
        return self.incarnation.worker_id
