"""What a client that follows a task sees of its end."""

import asyncio
from collections import Counter

import pytest

import soong.orchestrator.client.client
from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from tests.contract.scene import ContractHarness, cancelled, open_scene
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus

pytestmark = pytest.mark.spec("DAG-06")


def client_of(scene: ContractHarness) -> Client:
    board = MemoryBus()
    return Client(scene.store, board, board, scene.clock, load_settings())


async def followed(client: Client, task_id: str) -> TaskSnapshot:
    async with asyncio.timeout(10):
        return [view async for view in client.follow(task_id)][-1]


async def test_the_last_look_comes_when_what_the_end_stopped_has_stopped() -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a", "b")
    task_id = claim.identity.task_id
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="not needed", now_us=scene.now_us)
    following = asyncio.ensure_future(followed(client_of(scene), task_id))
    await asyncio.sleep(0.05)  # it has looked, and goes on looking
    assert not following.done()

    await scene.advance([cancelled(claim)])

    view = await following
    assert view.task.status is TaskStatus.CANCELLED
    assert view.counts == Counter({StepStatus.CANCELLED: 2})


async def test_a_step_that_does_not_stop_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soong.orchestrator.client.client, "STOPPING_S", 0.1)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    await scene.store.tasks.cancel_task(scene.own, claim.identity.task_id, reason="not needed", now_us=scene.now_us)

    view = await followed(client_of(scene), claim.identity.task_id)

    assert (view.task.status, view.held) == (TaskStatus.CANCELLED, 1)
