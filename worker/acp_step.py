"""Steps whose agent is a program of others: runs it and turns its end into the step's end (ACP-01)."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from soong.shared.agents.acp_agents import acp_agent
from soong.shared.agents.ports import AgentEnd
from soong.shared.agents.runtime.assembly import AgentRuntime
from soong.shared.agents.runtime.call_log import RunCallLog
from soong.shared.agents.runtime.running_calls import AbortableCalls
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim
from soong.shared.sandbox.duplex import ProcessLauncher
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import HandlerOutput, ToolContext
from soong.shared.tools.time_limit import TimeLimit
from soong.worker.parking import RunParking, WatchedCalls

_MODULE: Final = "soong.worker.acp.run"


def is_acp(claim: Claim) -> bool:
    """Say whether the agent of a claim is such a program."""
    return claim.identity.definition.startswith(ACP_PREFIX)


@dataclass(slots=True)
class AcpStepRunner:
    """Runs the agents of others of one worker process. ``launcher`` starts their programs."""

    runtime: AgentRuntime
    paths: PathPolicy
    launcher: ProcessLauncher

    async def run(
        self, claim: Claim, bound: BoundStep, limit: TimeLimit, log: RunCallLog, parking: RunParking
    ) -> AgentEnd:
        """Run the agent of a claimed step from its last state to its end.

        Raises:
            InvalidConfigError: this worker does not have the program.
            NotFoundError: it knows no agent of that name.
            LeaseLostError: the run is no longer ours.
            asyncio.CancelledError: it was interrupted.
        """
        await asyncio.to_thread(_warm_up)
        from soong.shared.agents.runtime.broadcast import AnswerBroadcast
        from soong.shared.agents.runtime.stored_budget import StoredBudget
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
            own_tools=lambda tools: own_tools(agent, tools, self.paths, own, start),
        )
        view = AnswerBroadcast(runtime.notifier, runtime.redactor, claim.identity.run_id)
        budgets = StoredBudget(runtime.store.budgets, runtime.clock, claim.identity.run_id, claim.fence)
        executor = AbortableCalls(WatchedCalls(prepared.executor, parking), log.interruption.calls)
        runs.append(AcpRun(agent, prepared, executor, self.launcher, self.paths, runtime.clock, view, budgets))
        try:
            return await runs[0].run()
        finally:
            await view.close()


def _warm_up() -> None:
    """Import the protocol and the model library, which takes a second: off the loop, once a process."""
    import importlib

    importlib.import_module(_MODULE)
