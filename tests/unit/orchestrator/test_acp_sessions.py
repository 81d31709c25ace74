"""A front end over ACP lists the sessions of its principal, which it can open (ACP-02)."""

from pathlib import Path

import pytest
from acp.exceptions import RequestError
from msgspec.structs import replace

from soong.orchestrator.acp.agent import OrchestratorAgent
from soong.orchestrator.client.client import Client
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.asks import ask_document
from soong.shared.engine.tasks.spec import StepSpec, TaskKind
from soong.shared.permissions.request import Provenance
from tests.model.builders import make_session, make_task, open_session
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore


@pytest.mark.spec("ACP-02", "PER-01")
async def test_only_sessions_of_the_callers_principal_are_listed(tmp_path: Path) -> None:
    store, board = MemoryStore(), MemoryBus()
    settings = load_settings(agent_home=tmp_path, principal="ann")
    client = Client(store, board, board, SystemClock(), settings)
    for principal in ("ann", "bob"):
        session = make_session(f"sess_{principal}", principal=principal, project=str(tmp_path), cwd=str(tmp_path))
        ownership = await open_session(store, session)
        task = make_task(ownership.session_id)
        await store.tasks.create_task(replace(task, kind=TaskKind.ASK, plan=ask_document(StepSpec(id="ask"))))

    async def connected() -> DirectCalls:
        parts = ServiceParts(client, None, None)  # type: ignore[arg-type]  # what nobody asks for here
        caller = local_caller("ann", Provenance(), "acp", client.clock.now_us())
        return DirectCalls(make_routes(parts), caller)

    agent = OrchestratorAgent(settings, "", connected)
    listed = await agent.list_sessions()

    assert [one.session_id for one in listed.sessions] == ["sess_ann"]
    with pytest.raises(RequestError):
        await agent.load_session(str(tmp_path), "sess_bob")
