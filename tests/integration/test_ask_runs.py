"""Asks that an owner runs: over outages, in forks of a conversation, and when there is room (ACP-02)."""

import asyncio
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.acp.agent import SessionConversation
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.owner.asks import AskRunner
from soong.orchestrator.owner.bootstrap import owner_agents
from soong.orchestrator.owner.service import Orchestrator
from soong.shared.agents.compaction import inherited
from soong.shared.agents.definition import builtin_definitions
from soong.shared.agents.runtime.permission_gate import DecisionInbox
from soong.shared.core.config import Config
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import Settings, load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.tasks.functions import AgentHandle, scripted_agent
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec, TaskStatus
from soong.shared.engine.tasks.step import NewTask, Task
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.integration.away_store import AwayStore
from tests.model.builders import make_session, open_session
from tests.model.memory import MemoryStore
from tests.unit.orchestrator.test_look import make_orchestrator
from tests.waiting import looks, until

LONG_S = 600.0
"""Between two sweeps: none makes up for a look that is missing."""


@scripted_agent("tests.asks.look")
async def look(_inputs: JsonObject, agent: AgentHandle) -> Json:
    await agent.call("agent.list_workers")
    return "looked"


def new_look(session: Session, follows: str = "") -> NewTask:
    return new_ask(
        StepSpec(id="ask", instructions="Look.", script="tests.asks.look"),
        session,
        title="Look.",
        role=Role.ORCHESTRATOR,
        definition="orchestrator",
        model="script",
        surface=Catalogue().surface_of_ask(builtin_definitions().get("orchestrator"), Role.ORCHESTRATOR),
        now_us=SystemClock().now_us(),
        follows=follows,
    )


def runner(store: MemoryStore, settings: Settings, board: MemoryBus | None = None) -> AskRunner:
    board, clock = board or MemoryBus(), SystemClock()
    service, inbox = TaskService(store, board, board, clock), DecisionInbox(store.consent, board, "")
    artifacts, definitions = FolderArtifacts(RootedFolder(settings.home, "artifacts")), builtin_definitions()
    return owner_agents(settings, Config(), store, inbox, artifacts, service, lambda _project: definitions)


@dataclass
class Owner:
    """An owner that runs asks of any session."""

    store: MemoryStore
    asks: AskRunner
    opened: dict[str, Ownership] = field(default_factory=dict)

    async def asked(self, session: Session, follows: str = "") -> Task:
        """Ask once more in a session, which is opened for it, and return how the ask ended."""
        own = self.opened.get(session.id) or await open_session(self.store, session)
        self.opened[session.id] = own
        task = new_look(session, follows)
        await self.store.tasks.create_task(task)
        ended = asyncio.Event()
        self.asks.on_end(lambda _session, _task: ended.set())
        await self.asks.look(own)
        await asyncio.wait_for(ended.wait(), 20)
        return await self.store.tasks.task(task.id)

    async def run_of(self, task: Task) -> Run:
        return await self.store.runs.run(task.root_run_id)

    def conversation(self, session: Session, principal: str = "local") -> SessionConversation:
        client: Any = SimpleNamespace(store=self.store, settings=SimpleNamespace(principal=principal))
        return SessionConversation(client, session.id)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    store = MemoryStore()
    return Owner(store, runner(store, load_settings(agent_home=tmp_path)))


@pytest.mark.spec("ACP-02.c")
async def test_a_fork_has_the_conversation_until_it_was_forked_and_then_its_own(owner: Owner) -> None:
    source, fork = make_session(), make_session()
    first = await owner.asked(source)
    inside = await owner.asked(source, follows=first.root_run_id)
    origin = await owner.conversation(source).last_run()
    assert origin is not None
    later = await owner.asked(source, follows=origin.id)

    asked = await owner.asked(fork, follows=origin.id)

    assert asked.status is TaskStatus.COMPLETED
    told = [node for node in await owner.store.runs.nodes(asked.root_run_id) if inherited(node)]
    before = await owner.store.runs.nodes(origin.id)
    assert len(told) == len(before) - 1, "all but its result"
    assert [one.id for one in await owner.conversation(fork).asks()] == [first.id, inside.id, asked.id]
    assert [one.id for one in await owner.conversation(source).asks()] == [first.id, inside.id, later.id]
    again = await owner.conversation(fork).last_run()
    assert again is not None
    assert again.id == asked.root_run_id


@pytest.mark.spec("ACP-02.c", "PER-21")
async def test_what_came_from_outside_is_as_untrusted_in_a_fork(owner: Owner) -> None:
    source = make_session()
    asked = await owner.asked(source)
    run = await owner.run_of(asked)
    owner.store.rows.runs[run.id] = replace(run, is_tainted=True)

    forked = await owner.asked(make_session(), follows=run.id)

    assert (await owner.run_of(forked)).is_tainted


@pytest.mark.spec("ACP-02.c")
@pytest.mark.parametrize(
    "other",
    [{"principal": "mallory"}, {"project": "/other", "cwd": "/other"}, {"cwd": "/project/inside"}],
    ids=["another user", "another project", "another folder"],
)
async def test_a_session_does_not_get_the_conversation_of_another_user_or_folder(
    owner: Owner, other: dict[str, str]
) -> None:
    asked = await owner.asked(make_session())
    thief = make_session(**other)  # type: ignore[arg-type]  # fields of it

    stolen = await owner.asked(thief, follows=asked.root_run_id)

    assert stolen.status is TaskStatus.FAILED
    nodes = await owner.store.runs.nodes(stolen.root_run_id)
    assert not any(map(inherited, nodes))
    if "principal" in other:
        conversation = owner.conversation(thief, "mallory")
        assert [one.id for one in await conversation.asks()] == [stolen.id]
        assert await conversation.last_run() is None


@pytest.mark.spec("DIS-01", "DAG-07")
async def test_an_agent_continues_when_the_database_is_back(tmp_path: Path) -> None:
    store = AwayStore("append", "end_call", away=1)  # the first write of the run's log
    asks, own = runner(store, load_settings(agent_home=tmp_path)), await open_session(store)
    task = new_look(await store.sessions.session(own.session_id))
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
    assert (run.fence, store.away) == (2, 0)


class DoorStore(MemoryStore):
    """Keeps the end of each ask until its door is opened."""

    doors: list[asyncio.Event]

    async def end_ask(self, *args: Any, **named: Any) -> frozenset[str]:
        self.doors.append(asyncio.Event())
        await self.doors[-1].wait()
        return await super().end_ask(*args, **named)


@pytest.mark.spec("DIS-03")
async def test_room_is_given_to_the_session_that_waits_for_it(tmp_path: Path) -> None:
    store = DoorStore()
    store.doors = []
    tasks = []
    for number in range(3):
        session = make_session(f"sess_{number}")
        await store.sessions.open_session(session)
        tasks.append(new_look(session))
        await store.tasks.create_task(tasks[-1])
    board, settings = MemoryBus(), load_settings(agent_home=tmp_path, max_asks=1, sweep_s=LONG_S)
    parts = dataclasses.replace(
        make_orchestrator(store, board).parts, clock=SystemClock(), agents=runner(store, settings, board)
    )
    orchestrator = Orchestrator(parts, settings)

    await orchestrator.start()
    for number, task in enumerate(tasks):
        await until(lambda: len(store.doors) > number, 20)  # noqa: B023  # awaited within its turn
        await asyncio.sleep(0.1)
        assert len(store.doors) == number + 1
        store.doors[number].set()
        async for _ in looks(20):
            if (await store.tasks.task(task.id)).status.is_terminal:
                break
    await orchestrator.stop()

    ends = [await store.tasks.task(task.id) for task in tasks]
    assert [(end.status, end.reason) for end in ends] == [(TaskStatus.COMPLETED, "")] * 3
