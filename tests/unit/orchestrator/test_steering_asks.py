"""A command for an ask holds for the tasks of its agent, also for one that it makes while that is carried out."""

from typing import Any

import pytest

from soong.orchestrator.owner.commands import Commands
from soong.shared.core.timing import SystemClock
from soong.shared.engine.sessions.session import Command, CommandKind
from soong.shared.engine.tasks.spec import TaskStatus
from soong.shared.engine.tasks.step import NewTask
from tests.contract.scene import open_scene
from tests.contract.test_asks import ask, planned_by, take_up
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus


class Hasty(MemoryStore):
    """Its agent makes one more task right before its own is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.ask_id = ""
        self.late: NewTask | None = None

    async def pause_task(self, *given: Any, **named: Any) -> frozenset[str]:
        await self._made(given[1])
        return await super().pause_task(*given, **named)

    async def cancel_task(self, *given: Any, **named: Any) -> frozenset[str]:
        await self._made(given[1])
        return await super().cancel_task(*given, **named)

    async def _made(self, task_id: str) -> None:
        if task_id == self.ask_id and self.late is not None:
            late, self.late = self.late, None
            await self.create_task(late)


@pytest.mark.spec("DAG-06", "DAG-08")
@pytest.mark.parametrize(
    ("kind", "status"), [(CommandKind.PAUSE, TaskStatus.PAUSED), (CommandKind.CANCEL, TaskStatus.CANCELLED)]
)
async def test_a_task_that_comes_meanwhile_is_stopped_too(kind: CommandKind, status: TaskStatus) -> None:
    store = Hasty()
    scene = await open_scene(store)
    store.ask_id = await ask(scene)
    claim = await take_up(scene, store.ask_id)
    early, store.late = planned_by(claim), planned_by(claim)
    late = store.late
    await store.create_task(early)
    command = Command("cmd_1", scene.own.session_id, kind, store.ask_id, "local", scene.now_us)
    await store.sessions.send_command(command)

    await Commands(store, store, store, MemoryBus(), SystemClock()).carry_out(scene.own)

    statuses = {task.id: task.status for task in await store.tasks.list_tasks()}
    assert statuses == {store.ask_id: status, early.id: status, late.id: status}
    assert (await store.sessions.command("cmd_1"))[0].refusal == ""
