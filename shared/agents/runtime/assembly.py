"""Puts an agent's run together from its rows, and runs it: on a worker for a step, in an owner for an ask.

The run's row alone holds the agent's rights: its tools are those of the stored surface, its rules those of its session,
and the process where it runs may only tighten both. This is where the ports of the agent loop and of the tool pipeline
meet the store.
"""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec.structs import replace

from soong.shared.agents.definition import DEFINITION, AgentDefinition
from soong.shared.agents.model import SCRIPT, is_warm, resolve_model, warm_up
from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.run_models import (
    Fallbacks,
    LocalPacer,
    Pacer,
    Pacing,
    RateLimits,
    RunModel,
    Sleep,
    provider_key,
)
from soong.shared.agents.runtime.call_log import RunCallLog, StopSignal, StoredTranscript
from soong.shared.agents.runtime.permission_gate import DecisionInbox, GateStore, RunGate
from soong.shared.agents.runtime.prepared import AgentObserver, ModelRules, PreparedAgent, PreparedCalls, agent_task
from soong.shared.core.config import Config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import step_id_of
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.core.startup import settle_gc
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.budgets import BudgetStore
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.functions import StepContext
from soong.shared.engine.tasks.plan.plan import OWN_PREFIX
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.configured import configured_write_roots, policy_of, run_dirs_of, surface_request
from soong.shared.permissions.policy import Policy, foreign
from soong.shared.permissions.rules import describes_untrusted
from soong.shared.sandbox.own_folder import WORKSPACE
from soong.shared.sandbox.programs import DEFAULT_NAMES
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.threads import unbroken
from soong.shared.tools.deferred import DeferredTools, stored_deferred, with_search
from soong.shared.tools.definition import RunDirs, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.limits import TimeLimit, UntimedGate
from soong.shared.tools.pipeline import Around, PipelineConfig, RunScope, ToolPipeline
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.registry import ToolRegistry
from soong.shared.tools.surface import Surface, narrow

_logger = get_logger(__name__)

OWN_LOOP: Final = "soong.shared.agents.own.loop"
"""The loop of agents of other libraries; with it come the model library and the adapters."""

Waiting = Callable[[str], AbstractContextManager[object]]


class AgentStore(GateStore, Protocol):
    """The store's port for the runs of agents."""

    @property
    def budgets(self) -> BudgetStore: ...


@dataclass(slots=True)
class AgentRuntime:
    """The parts that the agents of one process share. ``source`` names its configuration if that takes something away.

    Raises (when it is made): InvalidConfigError, so that the process does not start and no run fails for it.
    """

    store: AgentStore
    notifier: Notifier
    inbox: DecisionInbox
    artifacts: ArtifactStore
    clock: Clock
    settings: Settings
    config: Config
    registry: ToolRegistry
    hooks: Hooks
    redactor: Redactor
    source: str
    observer: AgentObserver = field(default_factory=AgentObserver)
    pacer: Pacer = field(default_factory=LocalPacer)
    offers: Callable[[ToolDefinition], bool] = lambda _tool: True
    """Whether this process calls a tool for agents at all."""
    _config: PipelineConfig = field(init=False)
    _user_home: str = field(init=False)
    _write_roots: tuple[Path, ...] = field(init=False)
    _runs: Path = field(init=False)
    _models: ModelRules = field(init=False)
    _policy: Policy = field(init=False)
    """That of this process, which narrows each run's."""

    def __post_init__(self) -> None:
        self._user_home = str(Path.home())
        own = policy_of(self.config, source=self.source)
        if self.config.paths.read_roots is None:
            own = replace(own, read_roots=("/",))  # a worker that names none narrows nothing
        self._write_roots = configured_write_roots(self.config)
        self._runs = self.settings.runs
        self._models = ModelRules(self.config)
        self._policy = own
        self._config = PipelineConfig(
            default_timeout=timedelta(milliseconds=self.settings.tool_timeout_ms),
            max_timeout=timedelta(milliseconds=self.settings.tool_max_timeout_ms),
            max_result_chars=self.settings.max_result_chars,
        )

    def call_log(self, claim: Claim, interruption: StopSignal) -> RunCallLog:
        """Return the record of a run's calls, to be passed to :meth:`prepare`."""
        return RunCallLog(
            self.store.runs,
            self.artifacts,
            self.clock,
            claim.identity.run_id,
            claim.fence,
            interruption,
            self.redactor,
            notifier=self.notifier,
            on_error=partial(self.observer.tool_failed, claim.identity),
        )

    async def prepare(
        self,
        claim: Claim,
        bound: BoundStep,
        limit: TimeLimit,
        log: RunCallLog,
        *,
        waiting: Waiting = nullcontext,
        around: Sequence[Around] = (),
    ) -> PreparedAgent:
        """Return the run of a claim, ready to begin.

        ``waiting`` is entered while a call waits for a request, ``around`` around each call.
        Raises: InvalidConfigError, this process cannot run it: it lacks the model's package or its key; NotFoundError,
        UsageError, its stored form cannot be run anywhere; LeaseLostError, the run is no longer ours.
        """
        if claim.identity.definition.startswith(OWN_PREFIX):
            model = await self._own_model(claim)
            claim = replace(claim, identity=replace(claim.identity, model=model.agent.model_name))
            own = self._fallbacks(claim, AgentDefinition.from_json(claim.surface.get(DEFINITION)))
            fallbacks = own if model.agent.has_fallbacks else Fallbacks()
        else:
            fallbacks = self._fallbacks(claim, AgentDefinition.from_json(claim.surface.get(DEFINITION)))
            model = await self._first_model(claim, fallbacks)
        calls = self.prepare_calls(claim, bound, limit, log, waiting=waiting, around=around)
        if describes_untrusted(calls.task.tools):
            run_id, now_us = claim.identity.run_id, self.clock.now_us()
            await self.store.runs.append(run_id, claim.fence, now_us=now_us, taints=True)
        continues = claim.attempt > 1 and await calls.transcript.continues(calls.task)
        task = replace(calls.task, is_resumed=continues or claim.is_resumed)
        return PreparedAgent(
            task, calls.executor, calls.log, calls.transcript, calls.run_dirs, model=model, fallbacks=fallbacks
        )

    def prepare_calls(
        self,
        claim: Claim,
        bound: BoundStep,
        limit: TimeLimit,
        log: RunCallLog,
        *,
        waiting: Waiting = nullcontext,
        around: Sequence[Around] = (),
        own_tools: Callable[[Sequence[ToolDefinition]], Sequence[ToolDefinition]] | None = None,
    ) -> PreparedCalls:
        """Return what a run of a claim calls with. ``own_tools`` are its agent's own, in addition to its surface.

        Raises: UsageError, when what is stored of it cannot be run anywhere.
        """
        tools, deferred = self._tools(claim)
        definition = AgentDefinition.from_json(claim.surface.get(DEFINITION))
        policy = Policy.from_json(claim.policy)
        policy = (foreign(policy) if claim.identity.origin.is_foreign else policy).narrowed_by(self._policy)
        run_dirs = self._run_dirs(claim, policy)
        pipeline = ToolPipeline(
            tools if own_tools is None else (*tools, *own_tools(tools)),
            RunScope(claim.identity, claim.fence, run_dirs),
            UntimedGate(self._gate(claim, policy, log, waiting), limit),
            log,
            hooks=self.hooks,
            artifacts=self.artifacts,
            redactor=self.redactor,
            clock=self.clock,
            config=self._config,
            deferred=deferred,
            around=(log.interruption.calls.entered, *around),
        )
        run_id = claim.identity.run_id
        transcript = StoredTranscript(self.store.runs, log, self.clock, run_id, claim.fence, self.redactor)
        task = agent_task(
            claim.identity,
            bound,
            definition,
            tools,
            deferred,
            run_dirs={"project": str(run_dirs.project), "cwd": str(run_dirs.cwd)},
            output_schema=claim.spec.output,
            settings=self.settings,
            rules=self._models,
            is_resumed=claim.is_resumed,
            is_limited=claim.spec.is_limited,
        )
        return PreparedCalls(task, pipeline, log, transcript, run_dirs)

    async def run(self, agent: PreparedAgent, *, sleep: Sleep = asyncio.sleep) -> AgentEnd:
        """Run an agent from its last state to its end. ``sleep`` waits for its provider.
        Raises: LeaseLostError, the run is no longer ours; asyncio.CancelledError, it was interrupted.
        """
        from soong.shared.agents.loop import run_agent  # the model library costs half a second; only agents pay it
        from soong.shared.agents.requests import StoredBudget
        from soong.shared.agents.runtime.broadcast import AnswerBroadcast  # as above

        interruption, log = agent.log.interruption, agent.log
        transcript = agent.transcript
        budgets = StoredBudget(self.store.budgets, self.clock, transcript.run_id, transcript.fence)
        view = AnswerBroadcast(self.notifier, self.redactor, agent.task.identity.run_id)
        is_own = agent.task.identity.definition.startswith(OWN_PREFIX)
        try:
            return await run_agent(
                agent.task,
                agent.model,
                agent.executor,
                transcript,
                log,
                self.clock,
                sleep=sleep,
                incidents=interruption.incidents,
                view=view,
                budgets=budgets,
                pacing=self._pacing(agent.task.identity.model or self.settings.model, agent.model),
                fallbacks=agent.fallbacks,
                loop_type=importlib.import_module(OWN_LOOP).OwnAgentLoop if is_own else None,
            )
        except asyncio.CancelledError:
            if not interruption.goes_on_elsewhere:
                await unbroken(log.flush())  # the notes of the aborted calls after their ends
            raise
        finally:
            await view.close()

    def _gate(self, claim: Claim, policy: Policy, log: RunCallLog, waiting: Waiting) -> RunGate:
        return RunGate(
            self.store,
            self.notifier,
            self.inbox,
            self.clock,
            policy,
            claim.token,
            self.redactor,
            self._user_home,
            log.interruption,
            env=(*DEFAULT_NAMES, *self.config.commands.env),
            note=log.note,
            flush=log.flush,
            on_asked=partial(self.observer.approval_waiting, claim.identity),
            on_settled=partial(self.observer.approval_settled, claim.identity),
            waiting=waiting,
            # The loop adds to it what it finds; every later question of the run tells it (DAG-09).
            unknown=log.interruption.incidents.unknown_effects,
        )

    def _tools(self, claim: Claim) -> tuple[tuple[ToolDefinition, ...], DeferredTools]:
        """Return the stored surface's tools, without those that this process's own configuration takes away.

        One that this process lacks is left out: a call of it is an error of that call, not of the run.
        """
        names = Surface.from_json(claim.surface).tools
        known = [name for name in names if self.registry.get(name) is not None]
        if len(known) < len(names):
            missing = sorted(set(names) - set(known))
            _logger.warning("tools_missing", run=claim.identity.run_id, tools=missing, process=self.source)
        limits = surface_request(self.config, claim.identity.role, source=self.source)
        tools = tuple(tool for tool in narrow(self.registry.select(known), limits) if self.offers(tool))
        deferred = stored_deferred(claim.surface, tools)
        return with_search(tools, deferred), deferred

    # -- models
    async def _own_model(self, claim: Claim) -> Any:
        """Return the model of an agent of another library, which has the agent. Raises as :meth:`prepare`."""
        name, identity = claim.identity.model, claim.identity
        is_own = name in ("", SCRIPT) or name.startswith(OWN_PREFIX)
        model = None if is_own else await self._resolved(name, step_key=claim.step_key)
        folder = self._runs / identity.run_id / WORKSPACE
        context = StepContext(identity, claim.attempt, claim.step_key, folder, Path(claim.project))

        def opened() -> Any:
            importlib.import_module(OWN_LOOP)
            return open_agent(identity.definition.removeprefix(OWN_PREFIX), context, model)

        from soong.shared.agents.own.registration import open_agent  # as in run()

        return (await asyncio.to_thread(opened)).model

    async def _first_model(self, claim: Claim, fallbacks: Fallbacks) -> Any:
        """Return the run's own model; one that cannot be asked here says so to the run where it has fallbacks.

        Raises: InvalidConfigError.
        """
        name = claim.identity.model or self.settings.model
        try:
            return await self._resolved(name, claim.spec.script, claim.step_key)
        except InvalidConfigError as error:
            if not fallbacks.names:
                raise
            from soong.shared.agents.scripted_model import UnusableModel  # as in run()

            return UnusableModel(name, str(error))

    async def _resolved(self, name: str, script: str = "", step_key: str = "") -> Any:
        if not is_warm(name):
            # Seconds of imports: on the loop they would hold up every other run and the tick of the heartbeat.
            await asyncio.to_thread(warm_up, name)
            settle_gc()
        return resolve_model(name, script, step_id_of(step_key))

    def _fallbacks(self, claim: Claim, definition: AgentDefinition) -> Fallbacks:
        name = claim.identity.model or self.settings.model
        if name == SCRIPT:
            return Fallbacks()
        names = definition.fallback_models
        if names is None:
            configured = (one.fallback for one in self._models.configured(name) if one.fallback)
            names = next(configured, ())
        return Fallbacks(tuple(dict.fromkeys(one for one in names if one != name)), self._run_model, self._models.price)

    async def _run_model(self, name: str) -> RunModel:
        """Return a model as a fallback. Raises: InvalidConfigError."""
        model = await self._resolved(name)
        return RunModel(name, model, self._models.price(name), self._models.window(name), self._pacing(name, model))

    def _pacing(self, name: str, model: Any) -> Pacing | None:
        if name == SCRIPT:
            return None
        own = next(self._models.configured(name), None)
        limits = RateLimits() if own is None else RateLimits(own.requests_per_minute, own.tokens_per_minute)
        longest_s = self.settings.max_retry_after_s
        return Pacing(self.pacer, provider_key(model), limits, name=name, longest_s=longest_s)

    def _run_dirs(self, claim: Claim, policy: Policy) -> RunDirs:
        return run_dirs_of(
            Path(claim.project),
            Path(claim.cwd),
            self._runs / claim.identity.run_id,
            policy,
            self.registry.definitions(),
            write_roots=self._write_roots,
            home=self._user_home,
            step=claim.identity.step_key,
        )


def step_end(claim: Claim, end: AgentEnd, kept: Sequence[NewEvent]) -> StepEnd:
    """Return the end of a claim whose agent ended; ``kept`` are events of its calls that are not written yet."""
    error, events = end.error, (*kept, *end.events)
    if error is None:
        return claim.completed(end.output, outcome=end.outcome, usage=end.usage, nodes=end.nodes, events=events)
    failed = claim.failed(error.type, error.message, retryable=error.retryable, reason=end.end_reason)
    return replace(failed, usage=end.usage, nodes=end.nodes, events=events)
