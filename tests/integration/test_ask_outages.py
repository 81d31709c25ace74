"""An ask while the database is away: its agent continues, and nothing of it is reported as its failure."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.owner.bootstrap import owner_agents
from soong.shared.agents.definition import builtin_definitions
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import Config
from soong.shared.core.errors import UnavailableError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.store import Appended
from soong.shared.engine.tasks.functions import AgentHandle, scripted_agent
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.model.builders import open_session
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus


@scripted_agent("tests.asks.look")
async def look(_inputs: JsonObject, agent: AgentHandle) -> Json:
    await agent.call("agent.list_workers")
    return "looked"


class AwayStore(MemoryStore):
    """Does not answer the first time that a run's log is written to."""

    times_away = 1

    async def append(self, *args: Any, **named: Any) -> Appended:
        self._be_away_once()
        return await super().append(*args, **named)

    async def end_call(self, *args: Any, **named: Any) -> None:
        self._be_away_once()
        await super().end_call(*args, **named)

    def _be_away_once(self) -> None:
        if self.times_away:
            self.times_away -= 1
            raise UnavailableError("the database is away")


@pytest.mark.spec("DIS-01", "DAG-07")
async def test_an_agent_continues_when_the_database_is_back(tmp_path: Path) -> None:
    store, board, clock = AwayStore(), MemoryBus(), SystemClock()
    settings = load_settings(agent_home=tmp_path)
    service = TaskService(store, board, board, clock)
    inbox = DecisionInbox(store.consent, board, "")
    artifacts = FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    definitions = builtin_definitions()
    asks = owner_agents(settings, Config(), store, board, inbox, artifacts, service, lambda _project: definitions)
    own = await open_session(store)
    task = new_ask(
        StepSpec(id="ask", instructions="Look.", script="tests.asks.look"),
        await store.sessions.session(own.session_id),
        title="Look.",
        role=Role.ORCHESTRATOR,
        definition="orchestrator",
        model="script",
        surface=Catalogue().surface_of_ask(definitions.get("orchestrator"), Role.ORCHESTRATOR),
        now_us=clock.now_us(),
    )
    await store.tasks.create_task(task)
    ended = asyncio.Event()
    asks.on_end(lambda _session, _task: ended.set())

    for _life in range(2):
        ended.clear()
        await asks.look(own)
        await asyncio.wait_for(ended.wait(), 20)

    found = await store.tasks.task(task.id)
    run = await store.runs.run(found.root_run_id)
    assert (found.status, found.reason) == (TaskStatus.COMPLETED, "")
    assert (run.fence, store.times_away) == (2, 0)
