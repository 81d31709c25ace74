"""One step from a client's plan to the end that a worker's runner gives it, in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.operations.preparation import prepared
from soong.orchestrator.operations.submissions import SubmissionBody, new_ids
from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.core.config import parse_config
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.step import Claim, NewTask, StepEnd
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.sandbox.redact import redactor
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.worker.agent_step import AgentStepRunner
from soong.worker.heartbeat import Incarnation
from soong.worker.run import FunctionStepRunner, StepRunner
from tests.model.builders import make_owner, take_turn
from tests.model.memory import MemoryStore

CLOCK = SystemClock()


@dataclass
class RunnerSite:
    """A project, a client's home and a worker's home over one store; the worker is a runner in this process."""

    root: Path
    store: Any = field(default_factory=MemoryStore)
    worker_config: str = ""
    worker_settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: Sequence[str] = ()

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def artifacts(self) -> FolderArtifacts:
        return FolderArtifacts(RootedFolder(self.root, "artifacts"))

    async def submit(self, plan: JsonObject, inputs: Mapping[str, Json] = {}, allow: Sequence[str] = ()) -> NewTask:
        """Write the task of a plan, whose session asks nobody."""
        settings = load_settings(agent_home=self.root / "client")
        given: Any = {"plan": plan, "inputs": inputs, "project": str(self.project), "allow": allow}
        body = SubmissionBody.model_construct(**given, approval_mode="deny", model="script")
        made = prepared(body, "local", new_ids(), Catalogue.of(settings), settings)
        owner = make_owner()
        await self.store.sessions.register_owner(owner)
        await self.store.sessions.open_session(replace(made.session, owner_id=owner.id, owner_epoch=1))
        await self.store.tasks.create_task(made.task)
        return made.task

    async def work(self) -> tuple[Claim, StepEnd]:
        """Claim the step, run it and write its end, as a slot does."""
        claim, runner, worker_id = await self.claimed()
        end = await runner.run(claim, StopSignal())
        await take_turn(self.store, worker_id, (end,), claim=0, capabilities=(), now_us=CLOCK.now_us())
        return claim, end

    async def claimed(self, more_config: str = "") -> tuple[Claim, StepRunner, str]:
        """Register a worker and claim the step; return what runs it, and the worker's id."""
        incarnation, board = Incarnation(self.store.sessions, CLOCK, "w@here", 1, ("default",), ()), MemoryBus()
        agents = AgentStepRunner(
            store=self.store,
            notifier=board,
            inbox=DecisionInbox(self.store.consent, board, incarnation.worker_id),
            incarnation=incarnation,
            artifacts=self.artifacts,
            clock=CLOCK,
            settings=load_settings(agent_home=self.root / "worker", **self.worker_settings),
            config=parse_config(self.worker_config + more_config),
        )  # which announces the tools that it has
        worker_id = await incarnation.register()
        capabilities = incarnation.capabilities
        turn = await take_turn(self.store, worker_id, (), claim=1, capabilities=capabilities, now_us=CLOCK.now_us())
        (claim,) = turn.claims
        return claim, StepRunner(FunctionStepRunner(), agents, agents, redactor(self.secrets)), worker_id
