"""A session that continues the conversation of another: whose it may be, and what comes along (ACP-02)."""

import asyncio
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
from soong.shared.agents.compaction import inherited
from soong.shared.agents.definition import builtin_definitions
from soong.shared.agents.runtime.decision_inbox import DecisionInbox
from soong.shared.core.clock import SystemClock
from soong.shared.core.config import Config
from soong.shared.core.identity import Role
from soong.shared.core.settings import load_settings
from soong.shared.engine.runs.record import Run
from soong.shared.engine.sessions.session import Ownership, Session
from soong.shared.engine.tasks.new_tasks import new_ask
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.status import TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from tests.integration.test_ask_outages import look
from tests.model.builders import make_session, open_session
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus

assert look is not None, "the scripted agent that these asks run"


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
        task = new_ask(
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
    store, board, clock = MemoryStore(), MemoryBus(), SystemClock()
    service = TaskService(store, board, board, clock)
    inbox = DecisionInbox(store.consent, board, "")
    artifacts = FolderArtifacts(RootedFolder(tmp_path, "artifacts"))
    settings, definitions = load_settings(agent_home=tmp_path), builtin_definitions()
    asks = owner_agents(settings, Config(), store, board, inbox, artifacts, service, lambda _project: definitions)
    return Owner(store, asks)


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
