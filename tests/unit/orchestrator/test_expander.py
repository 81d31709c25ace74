import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from soong.orchestrator.owner.scheduler import MAX_STARTS, Expander
from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.spec import StepKind, StepStatus
from soong.shared.engine.tasks.step import Step
from tests.contract.scene import ContractHarness, open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore

pytestmark = pytest.mark.spec("OPS-12", "DAG-05")


class FaultyStore(MemoryStore):
    """A store in which the last write of an expansion ends as the test says, and answers to its first are lost."""

    fault: BaseException | None = None
    lost_answers = 0

    async def begin_expansion(self, *given: Any, **named: Any) -> int:
        starts = await super().begin_expansion(*given, **named)
        if self.lost_answers:
            self.lost_answers -= 1
            raise UnavailableError("the database did not confirm a commit")
        return starts

    async def expand(self, *given: Any, **named: Any) -> bool:
        if self.fault is not None:
            raise self.fault
        return await super().expand(*given, **named)


async def expanding() -> tuple[ContractHarness, FaultyStore, str]:
    store = FaultyStore()
    scene = await open_scene(store)
    spec: JsonObject = {"over": [1, 2], "step": {"kind": "python", "call": "builtin.echo"}}
    task_id = await scene.task(make_step("m", kind=StepKind.MAP, spec=spec))
    return scene, store, f"{task_id}/m"


def owner(scene: ContractHarness) -> Callable[[], Awaitable[int]]:
    """Return the looks of a new owner's expander."""
    expander = Expander(scene.store.tasks, scene.store.runs, scene.clock)
    return lambda: expander.expand_all(scene.own)


async def step_of(scene: ContractHarness, key: str) -> Step:
    return await scene.store.tasks.step(key)


async def test_an_expansion_that_fails_for_an_unknown_reason_is_begun_twice_and_then_failed() -> None:
    scene, store, key = await expanding()
    store.fault = MemoryError()
    look = owner(scene)

    for _ in range(MAX_STARTS):
        with pytest.raises(MemoryError):
            await look()
    await look()

    step = await step_of(scene, key)
    assert step.status is StepStatus.FAILED
    assert step.error is not None
    assert step.error.type == "poisoned"


async def test_a_database_that_is_away_counts_once_however_often_it_is_asked() -> None:
    scene, store, key = await expanding()
    store.fault = UnavailableError("away")
    look = owner(scene)
    for _ in range(5):
        with pytest.raises(UnavailableError):
            await look()

    store.fault = None
    await look()

    assert (await step_of(scene, key)).status is not StepStatus.EXPANDING
    assert (await step_of(scene, key)).error is None


async def test_a_beginning_that_nobody_confirmed_ended_nobody() -> None:
    scene, store, key = await expanding()
    store.lost_answers = MAX_STARTS + 1
    look = owner(scene)
    for _ in range(MAX_STARTS + 1):
        with pytest.raises(UnavailableError):
            await look()

    await look()

    assert (await step_of(scene, key)).status is not StepStatus.EXPANDING
    assert (await step_of(scene, key)).error is None


async def test_an_owner_that_is_asked_to_stop_does_not_count() -> None:
    scene, store, key = await expanding()
    for _ in range(MAX_STARTS + 1):
        store.fault = asyncio.CancelledError()
        with pytest.raises(asyncio.CancelledError):
            await owner(scene)()

    store.fault = None
    await owner(scene)()

    assert (await step_of(scene, key)).error is None
