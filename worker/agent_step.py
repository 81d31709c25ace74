"""Agent steps: runs the child agent of a claimed step and turns its end into the step's end."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from soong.shared.agents.acp_agents import acp_agent
from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.run_models import LocalPacer, Pacer
from soong.shared.agents.runtime.assembly import AgentRuntime, step_end
from soong.shared.agents.runtime.call_log import RunCallLog, StopSignal
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.agents.runtime.prepared import AgentObserver
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UsageError
from soong.shared.core.installation import OptionalPart
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.timing import Clock
from soong.shared.engine.tasks.functions import known_agents, known_functions, known_scripts
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, OWN_PREFIX
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import (
    Notifier,
    app_needed,
    catalogue_of,
    functions_needed,
    project_needed,
    tools_needed,
)
from soong.shared.permissions.configured import WORKER_SOURCE
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.rooted import project_id
from soong.shared.storage.store import Store
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.limits import TimeLimit
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.registry import ToolRegistry
from soong.shared.toolsets.controls import command_runner
from soong.shared.toolsets.sources import ToolEnvironment, all_hooks, make_registry
from soong.shared.toolsets.tasks.own import TaskTools
from soong.worker.heartbeat import Incarnation
from soong.worker.held_runs import AdditionalSteps
from soong.worker.parking import LentSlots, ParkingCoordinator, RunParking

log = get_logger(__name__)


@dataclass(slots=True)
class AcpStepRunner:
    """Runs the agents of others of one worker process. ``runner`` starts their programs."""

    runtime: AgentRuntime
    paths: PathPolicy
    runner: CommandRunner

    async def run(
        self, claim: Claim, bound: BoundStep, limit: TimeLimit, log: RunCallLog, parking: RunParking
    ) -> AgentEnd:
        """Run the agent of a claimed step from its last state to its end.
        Raises: InvalidConfigError, this worker does not have the program; NotFoundError, it knows no agent of that
        name; LeaseLostError, the run is no longer ours; asyncio.CancelledError, it was interrupted.
        """
        await asyncio.to_thread(_warm_up)
        from soong.shared.agents.requests import StoredBudget
        from soong.shared.agents.runtime.broadcast import AnswerBroadcast
        from soong.worker.acp.own_tools import own_tools
        from soong.worker.acp.run import AcpRun

        runtime, agent = self.runtime, acp_agent(claim.identity.definition, self.runtime.config)
        runs: list[AcpRun] = []

        async def own(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
            return await runs[0].client.run_own(context, call_input)

        async def start(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
            return await runs[0].start(context, call_input)

        def waiting(request_id: str) -> AbstractContextManager[object]:
            return parking.waiting(request_id) if runs[0].may_park else nullcontext()

        prepared = runtime.prepare_calls(
            claim,
            bound,
            limit,
            log,
            waiting=waiting,
            around=(parking.call,),
            own_tools=lambda tools: own_tools(agent, tools, self.paths, own, start),
        )
        view = AnswerBroadcast(runtime.notifier, runtime.redactor, claim.identity.run_id)
        budgets = StoredBudget(runtime.store.budgets, runtime.clock, claim.identity.run_id, claim.fence)
        runs.append(AcpRun(agent, prepared, self.runner, self.paths, runtime.clock, view, budgets))
        try:
            return await runs[0].run()
        finally:
            await view.close()


async def _nothing() -> None: ...


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
    watcher: AgentObserver = field(default_factory=AgentObserver)
    pacer: Pacer = field(default_factory=LocalPacer)
    additional: AdditionalSteps = field(init=False)
    """The additional steps of runs; the slots of the same process end it with them."""
    lot: ParkingCoordinator = field(init=False)
    lent: LentSlots = field(init=False)
    """The slots of the same process that runs do without while they wait for their provider."""
    close: Callable[[], Awaitable[None]] = field(init=False)
    """Lets go of what tools hold open, such as MCP servers."""
    flush_lines: Callable[[], Awaitable[None]] = _nothing
    """Writes what the runs of this process have printed: none is written for a run that is parked."""
    _runtime: AgentRuntime = field(init=False)
    _acp: AcpStepRunner = field(init=False)

    def __post_init__(self) -> None:
        self.lot = ParkingCoordinator(
            self.store.claims, self.clock, self.settings.park_after_s, self.settings.max_parked
        )
        self.lent = LentSlots(self.settings.park_after_s)
        environment = ToolEnvironment.of(self.settings, self.config)
        clean = environment.redactor
        self.additional = AdditionalSteps(clean)
        own_step = TaskTools(self.store, lambda: self.incarnation.worker_id, self.clock, clean.text, self.additional)
        registry = make_registry(environment, [own_step])
        self.close = registry.close
        servers = () if environment.mcp is None else environment.mcp.enabled
        self.incarnation.abilities = abilities(registry, self.settings, servers)
        self._runtime = AgentRuntime(
            store=self.store,
            notifier=self.notifier,
            inbox=self.inbox,
            artifacts=self.artifacts,
            clock=self.clock,
            settings=self.settings,
            config=self.config,
            registry=registry,
            hooks=all_hooks(environment),
            redactor=clean,
            source=WORKER_SOURCE,
            observer=self.watcher,
            pacer=self.pacer,
        )
        self._acp = AcpStepRunner(self._runtime, environment.paths, command_runner(self.settings, self.config))

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        """Run the agent of a claimed step from its last state to its end."""
        self.inbox.worker_id = worker_id = self.incarnation.worker_id
        if claim.is_resumed and self.config.mcp.servers:
            await self._withdraw_cut_off(claim)
        log = self._runtime.call_log(claim, interruption)
        task = asyncio.current_task()
        assert task is not None

        async def flush() -> None:
            await self.flush_lines()
            await log.flush()

        parking = RunParking(self.lot, worker_id, claim.lease, interruption, task, flush)
        try:
            if is_acp(claim):
                with self.lot.entered(parking):
                    return step_end(claim, await self._acp.run(claim, bound, limit, log, parking), await log.take())
            agent = await self._runtime.prepare(
                claim, bound, limit, log, waiting=parking.waiting, around=(parking.call,)
            )
        except InvalidConfigError as error:
            return claim.failed("worker_incompatible", str(error))
        except (NotFoundError, UsageError) as error:
            return claim.failed("invalid_input", str(error))
        with self.lot.entered(parking):
            end = await self._runtime.run(agent, sleep=self.lent.sleep)
        return step_end(claim, end, await log.take())

    async def _withdraw_cut_off(self, claim: Claim) -> None:
        """Close what servers asked in calls of a former life of the run: nobody waits for the answers."""
        run_id, now_us = claim.identity.run_id, self.clock.now_us()
        reason = "the call that asked was cut off"
        for request_id in await self.store.consent.withdraw_cut_off(run_id, claim.fence, reason=reason, now_us=now_us):
            await self.notifier.permission_raised(request_id, claim.identity.session_id)


def is_acp(claim: Claim) -> bool:
    return claim.identity.definition.startswith(ACP_PREFIX)


def _warm_up() -> None:
    """Import the protocol and the model library, which takes a second: off the loop, once a process.

    Raises: InvalidConfigError, this worker is installed without them.
    """
    import importlib

    with OptionalPart("soong.worker.acp"):
        importlib.import_module("soong.worker.acp.run")
        return
    raise InvalidConfigError("this worker is installed without agents over ACP; install the complete package")


def abilities(registry: ToolRegistry, settings: Settings, servers: Iterable[str] = ()) -> tuple[str, ...]:
    """Return each tool and function, the catalogue as a whole, and the projects whose marks are here.

    ``servers`` are the MCP servers that are switched on: one that is down now may be up when a step calls it.
    """
    schemas: dict[str, Json] = {tool.name: tool.input_schema for tool in registry.definitions()}
    projects = [need for path in settings.projects for need in _project_at(path)]
    return (
        *tools_needed((*schemas, *(f"mcp.{server}.*" for server in servers))),
        catalogue_of(schemas),
        *functions_needed((*known_functions(), *known_scripts(), *(f"{OWN_PREFIX}{name}" for name in known_agents()))),
        *map(app_needed, (*settings.functions, *([""] if settings.celery_app else []))),
        *projects,
    )


def _project_at(path: str) -> tuple[str, ...]:
    """Return what a worker with this folder announces; a folder without a mark proves nothing."""
    folder = Path(os.path.realpath(Path(path).expanduser()))
    found = project_id(folder)
    if not found:
        log.warning("project_unmarked", folder=str(folder))
    return project_needed(found, str(folder))
