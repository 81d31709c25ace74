"""Asks that wait for room: the end of one makes it, whichever session waits (SOONG_MAX_ASKS)."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.owner.bootstrap import owner_agents
from soong.orchestrator.owner.service import Orchestrator
from soong.shared.agents.definition import builtin_definitions
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import Config
from soong.shared.core.identity import Role
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.integration.test_ask_outages import look
from tests.model.builders import make_session
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus
from tests.unit.orchestrator.test_look import make_orchestrator
from tests.waiting import looks, until

LONG_S = 600.0
"""Between two sweeps: none makes up for a look that is missing."""
assert look is not None, "the scripted agent that these asks run"


class DoorStore(MemoryStore):
    """Keeps the end of each ask until its door is opened."""

    doors: list[asyncio.Event]

    async def end_ask(self, *args: Any, **named: Any) -> frozenset[str]:
        self.doors.append(asyncio.Event())
        await self.doors[-1].wait()
        return await super().end_ask(*args, **named)


async def ask_in(store: MemoryStore, session_id: str) -> str:
    """Open a session, which nobody owns, with an ask in it; return the id of its task."""
    session = make_session(session_id)
    await store.sessions.open_session(session)
    task = new_ask(
        StepSpec(id="ask", instructions="Look.", script="tests.asks.look"),
        session,
        title="Look.",
        role=Role.ORCHESTRATOR,
        definition="orchestrator",
        model="script",
        surface=Catalogue().surface_of_ask(builtin_definitions().get("orchestrator"), Role.ORCHESTRATOR),
        now_us=SystemClock().now_us(),
    )
    await store.tasks.create_task(task)
    return task.id


def orchestrator_for_one_ask(store: MemoryStore, home: Path) -> Orchestrator:
    board, clock = MemoryBus(), SystemClock()
    settings = load_settings(agent_home=home, max_asks=1, sweep_s=LONG_S)
    service = TaskService(store, board, board, clock)
    inbox = DecisionInbox(store.consent, board, "")
    artifacts = FolderArtifacts(RootedFolder(home, "artifacts"))
    asks = owner_agents(
        settings, Config(), store, board, inbox, artifacts, service, lambda _project: builtin_definitions()
    )
    return Orchestrator(replace(make_orchestrator(store, board).parts, clock=clock, agents=asks), settings)


@pytest.mark.spec("DIS-03")
async def test_room_is_given_to_the_session_that_waits_for_it(tmp_path: Path) -> None:
    store = DoorStore()
    store.doors = []
    tasks = [await ask_in(store, f"sess_{number}") for number in range(3)]
    orchestrator = orchestrator_for_one_ask(store, tmp_path)

    await orchestrator.start()
    for number, task_id in enumerate(tasks):
        await until(lambda: len(store.doors) > number, 20)  # noqa: B023  # awaited within its turn
        await asyncio.sleep(0.1)
        assert len(store.doors) == number + 1
        store.doors[number].set()
        async for _ in looks(20):
            if (await store.tasks.task(task_id)).status.is_terminal:
                break
    await orchestrator.stop()

    ends = [await store.tasks.task(task_id) for task_id in tasks]
    assert [(end.status, end.reason) for end in ends] == [(TaskStatus.COMPLETED, "")] * 3
