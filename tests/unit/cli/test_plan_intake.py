"""What a service answers to a plan that a command hands over, when its database does not answer (OPS-01)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from soong.orchestrator.cli.plan_intake import PlanIntake
from soong.orchestrator.client.client import Client
from soong.orchestrator.embedded.control import ControlReply, SocketPeer
from soong.orchestrator.embedded.plan_request import PlanRequest, environment_digest
from soong.shared.core.clock import SystemClock
from soong.shared.core.errors import ConflictError, SoongError, UnavailableError
from soong.shared.core.ids import new_id
from soong.shared.core.settings import load_settings
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.step import NewTask
from tests.model.memory.notifier import MemoryBus
from tests.model.memory.store import MemoryStore


class StumblingStore(MemoryStore):
    """Reports ``error`` while it has one, after having written the submission when ``is_written``."""

    def __init__(self, error: SoongError, *, is_written: bool) -> None:
        super().__init__()
        self.error: SoongError | None = error
        self.is_written = is_written

    async def submit(self, session: Session, task: NewTask) -> None:
        if self.is_written or self.error is None:
            await super().submit(session, task)
        if self.error is not None:
            raise self.error


@pytest.fixture
def request_of_command(tmp_path: Path) -> PlanRequest:
    return PlanRequest(
        plan="title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 1}}\n",
        source="plan.yaml",
        inputs={},
        project=str(tmp_path),
        cwd=str(tmp_path),
        approval_mode="deny",
        model=None,
        allow=(),
        budget=(),
        settings=(),
        max_concurrent=0,
        session_id=new_id("sess"),
        task_id=new_id("task"),
        is_json=True,
        is_detached=True,
        program="soong",
        home=str(tmp_path),
        environment=environment_digest(os.environ),
    )


async def handed_over(store: MemoryStore, request: PlanRequest) -> list[ControlReply]:
    board = MemoryBus()
    settings = load_settings(agent_home=Path(request.home))
    intake = PlanIntake(Client(store, board, board, SystemClock(), settings))
    replies: list[ControlReply] = []
    message: dict[str, Any] = json.loads(request.line())
    watch = os.pidfd_open(os.getpid())
    await intake.run(message, SocketPeer(os.getpid(), watch), replies.append)
    os.close(watch)
    return replies


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize("is_written", [True, False])
async def test_a_submission_in_doubt_gets_no_reply_and_is_written_once(
    request_of_command: PlanRequest, *, is_written: bool
) -> None:
    store = StumblingStore(UnavailableError("the commit was not confirmed"), is_written=is_written)

    first = await handed_over(store, request_of_command)
    store.error = None
    second = await handed_over(store, request_of_command)

    assert first == []
    assert [reply["ok"] for reply in second] == [True]
    assert [task.id for task in await store.tasks.list_tasks()] == [request_of_command.task_id]


async def test_a_refused_submission_is_left_to_its_command_as_not_written(request_of_command: PlanRequest) -> None:
    store = StumblingStore(ConflictError("the task is in another session"), is_written=False)

    assert await handed_over(store, request_of_command) == [{"ok": False}]
