"""What a client that follows a task sees of its end."""

import asyncio
from collections import Counter

import pytest

from soong.orchestrator.client.client import Client, TaskSnapshot
from soong.shared.core import timing
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from tests.contract.scene import ContractHarness, cancelled, completed, open_scene
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus
from tests.waiting import others_run

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
    await others_run(50)  # it has looked, and goes on looking
    assert not following.done()

    await scene.advance([cancelled(claim)])

    view = await following
    assert view.task.status is TaskStatus.CANCELLED
    assert view.counts == Counter({StepStatus.CANCELLED: 2})


async def test_a_step_that_does_not_stop_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CLOSE_LIMIT_S", 0.1)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    await scene.store.tasks.cancel_task(scene.own, claim.identity.task_id, reason="not needed", now_us=scene.now_us)

    view = await followed(client_of(scene), claim.identity.task_id)

    assert (view.task.status, view.held) == (TaskStatus.CANCELLED, 1)


async def test_the_end_is_seen_at_once_however_seldom_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST_PAUSE_S", 3600.0)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    client = client_of(scene)
    following = asyncio.ensure_future(followed(client, claim.identity.task_id))
    await others_run(50)  # it has looked, and waits for the next look
    await client.notifier.notify_session(claim.identity.session_id)  # of no end
    await others_run(50)
    assert not following.done()

    await scene.advance([completed(claim)])
    await scene.store.tasks.finish_task(scene.own, claim.identity.task_id, now_us=scene.now_us)
    await client.notifier.notify_session(claim.identity.session_id)

    assert (await following).task.status is TaskStatus.COMPLETED


async def test_a_new_task_that_has_ended_before_it_is_followed_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST_PAUSE_S", 3600.0)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    await scene.advance([completed(claim)])
    await scene.store.tasks.finish_task(scene.own, claim.identity.task_id, now_us=scene.now_us)

    async with asyncio.timeout(10):
        client = client_of(scene)
        opening = asyncio.create_task(client.subscriber.subscribe_session(scene.own.session_id))
        following = client.follow(claim.identity.task_id, new=opening, for_result=True)
        views = [view async for view in following]

    assert [view.task.status for view in views] == [TaskStatus.COMPLETED]


async def test_for_a_result_the_end_is_read_once_however_late_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LEAST_PAUSE_S", 0.01)
    scene = await open_scene(MemoryStore())
    claim = await scene.start("a")
    client = client_of(scene)
    opening = asyncio.create_task(client.subscriber.subscribe_session(scene.own.session_id))
    await opening
    following = asyncio.ensure_future(anext(client.follow(claim.identity.task_id, new=opening, for_result=True)))
    await asyncio.sleep(0.1)  # somebody who watches would have looked by now
    assert not following.done()

    await scene.advance([completed(claim)])
    await scene.store.tasks.finish_task(scene.own, claim.identity.task_id, now_us=scene.now_us)
    await client.notifier.notify_session(claim.identity.session_id)

    async with asyncio.timeout(10):
        view = await following
    assert view.task.status is TaskStatus.COMPLETED
    assert view.last_runs is not None  # with the end, in the same read
