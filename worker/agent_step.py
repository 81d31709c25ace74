"""Agent steps: puts a child agent together from its claim and turns its end into the step's end.

What the agent may do is in its run's row only: its tools are those of the stored surface, its rules
those of its session. This is where the ports of the agent loop and of the pipeline meet the store.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from soong.shared.agents.definition import (
    DEFINITION,
    AgentDefinition,
    AgentDefinitionRegistry,
    AgentLimits,
    builtin_definitions,
)
from soong.shared.agents.model import is_warm, resolve_model, warm_up
from soong.shared.agents.ports import AgentEnd, AgentTask
from soong.shared.core.clock import Clock
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UsageError
from soong.shared.core.settings import Settings, secret_values
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.configured import WORKER_SOURCE, configured_write_roots, policy_of, surface_request
from soong.shared.permissions.policy import Policy, policy_for
from soong.shared.permissions.scope import is_too_wide
from soong.shared.permissions.withheld import withheld_by_rule
from soong.shared.permissions.writable import writable_by_rule
from soong.shared.sandbox.programs import DEFAULT_NAMES
from soong.shared.sandbox.redact import Redactor, redactor
from soong.shared.storage.store import Store
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.execution import unbroken
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.hooks.sdk import registered_hooks
from soong.shared.tools.pipeline import PipelineConfig, RunScope, ToolPipeline
from soong.shared.tools.ports import ArtifactStore, Gate
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.surface import Surface, narrow
from soong.shared.toolsets.sources import ToolEnvironment, make_registry
from soong.shared.toolsets.tasks import TaskTools
from soong.worker.additional_steps import AdditionalSteps
from soong.worker.call_log import RunCallLog
from soong.worker.capabilities import abilities
from soong.worker.incarnation import Incarnation
from soong.worker.parking import ParkingCoordinator, RunParking, WatchedCalls
from soong.worker.permission_gate import DecisionInbox, WorkerGate
from soong.worker.stop_signal import StopSignal
from soong.worker.telemetry import AgentObserver, NullObserver
from soong.worker.time_limit import TimeLimit, UntimedGate
from soong.worker.transcript import WorkerTranscript


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
    definitions: AgentDefinitionRegistry = field(default_factory=builtin_definitions)
    watcher: AgentObserver = field(default_factory=NullObserver)
    additional: AdditionalSteps = field(init=False)
    """The additional steps of runs; the slots of the same process end it with them."""
    lot: ParkingCoordinator = field(init=False)
    _registry: ToolRegistry = field(init=False)
    _config: PipelineConfig = field(init=False)
    _redactor: Redactor = field(init=False)
    _user_home: str = field(init=False)
    _policy: Policy = field(init=False)
    _write_roots: tuple[Path, ...] = field(init=False)
    _hooks: Hooks = field(init=False)

    def __post_init__(self) -> None:
        self.lot = ParkingCoordinator(
            self.store.claims, self.clock, self.settings.park_after_s, self.settings.max_parked
        )
        self._user_home = str(Path.home())
        # A configuration that cannot be used keeps the worker from starting, not a run from going on.
        self._policy = policy_of(self.config, source=WORKER_SOURCE)
        self._write_roots = configured_write_roots(self.config)
        self._redactor = redactor(secret_values(self.settings, self.config.commands.secret_env))
        self._config = PipelineConfig(
            default_timeout=timedelta(milliseconds=self.settings.tool_timeout_ms),
            max_timeout=timedelta(milliseconds=self.settings.tool_max_timeout_ms),
            max_result_chars=self.settings.max_result_chars,
        )
        self.additional = AdditionalSteps(self._redactor)
        environment = ToolEnvironment.of(self.settings, self.config)
        self._registry = make_registry(
            environment, [TaskTools(self.store, self._worker_id, self.clock, self._redactor.text, self.additional)]
        )
        self.incarnation.abilities = abilities(self._registry, self.settings)
        configured = hooks_of(
            self.config.hooks,
            environment.runner,
            home=self.settings.home,
            commands=self.config.commands,
            redactor=self._redactor,
        )
        self._hooks = registered_hooks() + configured

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        """Run the agent of a claimed step from its last state to its end."""
        try:
            tools = self._tools(claim)
            name = claim.identity.model or self.settings.model
            if not is_warm(name):
                # Seconds of imports: on the loop they would hold up every other run and the tick of the heartbeat.
                await asyncio.to_thread(warm_up, name)
            model = resolve_model(name, claim.spec.script)
            policy = policy_for(Policy.from_json(claim.policy), claim.identity).narrowed_by(self._policy)
            run_dirs = self._run_dirs(claim, policy)
            task = self._task(claim, bound, tools, run_dirs)
        except InvalidConfigError as error:
            return claim.failed("worker_incompatible", str(error))
        except (NotFoundError, UsageError) as error:
            return claim.failed("invalid_input", str(error))
        from soong.shared.agents.loop import run_agent  # the model library costs half a second; only agent steps pay it

        self.inbox.worker_id = self.incarnation.worker_id
        run_id, fence = claim.identity.run_id, claim.fence
        log = self._log(claim, interruption)
        parking = self._parking(claim, log, interruption)
        gate = self._gate(claim, policy, log, interruption, parking)
        scope = RunScope(claim.identity, claim.fence, run_dirs)
        calls = WatchedCalls(self._pipeline(tools, scope, UntimedGate(gate, limit), log), parking)
        transcript = WorkerTranscript(self.store.runs, log, self.clock, run_id, fence, self._redactor)
        try:
            with self.lot.entered(parking):
                end = await run_agent(task, model, calls, transcript, log, self.clock, incidents=interruption.incidents)
        except asyncio.CancelledError:
            if not interruption.goes_on_elsewhere:
                await unbroken(log.flush())  # what the aborted calls noted after their ends
            raise
        return _step_end(claim, end, await log.take())

    def _log(self, claim: Claim, interruption: StopSignal) -> RunCallLog:
        return RunCallLog(
            self.store.runs,
            self.artifacts,
            self.clock,
            claim.identity.run_id,
            claim.fence,
            interruption,
            self._redactor,
            notifier=self.notifier,
            on_error=partial(self.watcher.tool_failed, claim.identity),
        )

    def _parking(self, claim: Claim, log: RunCallLog, interruption: StopSignal) -> RunParking:
        task = asyncio.current_task()
        assert task is not None
        held = claim.lease
        return RunParking(self.lot, self.incarnation.worker_id, held, interruption, task, log.flush)

    def _gate(
        self, claim: Claim, policy: Policy, log: RunCallLog, interruption: StopSignal, parking: RunParking
    ) -> WorkerGate:
        return WorkerGate(
            self.store,
            self.notifier,
            self.inbox,
            self.clock,
            policy,
            claim.token,
            self._redactor,
            self._user_home,
            interruption,
            env=(*DEFAULT_NAMES, *self.config.commands.env),
            note=log.note,
            noted=log.take,
            on_asked=partial(self.watcher.approval_waiting, claim.identity),
            on_settled=partial(self.watcher.approval_settled, claim.identity),
            waiting=parking.waiting,
            # The loop adds to it what it finds; every later question of the run tells it (DAG-09).
            unknown=interruption.incidents.unknown_effects,
        )

    def _tools(self, claim: Claim) -> tuple[ToolDefinition, ...]:
        """Return the stored surface's tools, without those that this worker's own configuration takes away.

        Raises:
            InvalidConfigError: this worker lacks one of them.
        """
        names = Surface.from_json(claim.surface).tools
        missing = [name for name in names if self._registry.get(name) is None]
        if missing:
            raise InvalidConfigError(f"this worker has no tool {', '.join(missing)}: its version is not the run's")
        limits = surface_request(self.config, claim.identity.role, source=WORKER_SOURCE)
        return narrow(self._registry.select(names), limits)

    def _task(self, claim: Claim, bound: BoundStep, tools: Sequence[ToolDefinition], run_dirs: RunDirs) -> AgentTask:
        stored = claim.surface.get(DEFINITION)
        known = self.definitions.get(claim.identity.definition) if stored is None else None
        definition = known or AgentDefinition.from_json(stored)
        limits: dict[str, int] = {
            "max_turns": self.settings.max_turns,
            "max_repeated_failures": self.settings.max_repeated_failures,
            "parallel_reads": self.settings.parallel_reads,
            **definition.limits,
        }
        return AgentTask(
            identity=claim.identity,
            system=definition.instructions,
            instructions=bound.instructions,
            inputs=bound.inputs,
            tools=tools,
            run_dirs={"project": str(run_dirs.project), "cwd": str(run_dirs.cwd)},
            output_schema=claim.spec.output,
            limits=AgentLimits(**limits),
            options=definition.options,
            is_resumed=claim.is_resumed,
        )

    def _run_dirs(self, claim: Claim, policy: Policy) -> RunDirs:
        run_dir = self.settings.runs / claim.identity.run_id
        project, cwd = Path(claim.project), Path(claim.cwd)
        # A person who plans from their home has not thereby opened all of it.
        own = (project,) if is_too_wide(claim.cwd, self._user_home) else (project, cwd)
        roots = (*own, run_dir / "workspace", run_dir / "deliverables", *self._write_roots)
        by_rule = writable_by_rule(policy, self._registry.definitions())
        withheld = withheld_by_rule(policy, self._registry.definitions(), claim.identity.step_key)
        return RunDirs(
            project,
            cwd,
            run_dir,
            roots,
            writable_by_rule=by_rule,
            read_roots=policy.read_folders,
            withheld=withheld,
        )

    def _pipeline(self, tools: Sequence[ToolDefinition], scope: RunScope, gate: Gate, log: RunCallLog) -> ToolPipeline:
        return ToolPipeline(
            tools,
            scope,
            gate,
            log,
            hooks=self._hooks,
            artifacts=self.artifacts,
            redactor=self._redactor,
            clock=self.clock,
            config=self._config,
        )

    def _worker_id(self) -> str:
        return self.incarnation.worker_id


def _step_end(claim: Claim, end: AgentEnd, kept: Sequence[NewEvent]) -> StepEnd:
    error = end.error
    if error is None:
        ended = claim.completed(end.output, outcome=end.outcome)
    else:
        ended = claim.failed(error.type, error.message, retryable=error.retryable, reason=end.end_reason)
    return replace(ended, usage=end.usage, nodes=end.nodes, events=(*kept, *end.events))
