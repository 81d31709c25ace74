"""Whoever follows a task reads which worker died, how, and what becomes of its steps."""

import pytest

from soong.orchestrator.cli.display import LostLeases
from tests.contract.scene import ContractHarness, open_scene
from tests.model.memory import MemoryStore
from tests.unit.cli.views import view_of

DIED = "worker-2@vm died (SIGKILL, killed, perhaps out of memory)"


async def expired(scene: ContractHarness, *, most: int = 3) -> None:
    await scene.store.claims.expire_worker(scene.worker, 0, max_lost_leases=most, now_us=scene.now_us, because=DIED)


@pytest.mark.spec("DAG-05")
@pytest.mark.parametrize(
    ("number", "most", "consequence"),
    [(1, 3, "; 1 step starts again"), (3, 3, "; 3 steps start again"), (2, 1, "")],
    ids=["one", "several", "failed"],
)
async def test_a_lost_worker_is_reported_once_with_its_steps(number: int, most: int, consequence: str) -> None:
    store, losses = MemoryStore(), LostLeases()
    scene = await open_scene(store)
    task_id = await scene.task(*"abc"[:number])
    await scene.claim()

    told = [losses.news(await view_of(store, task_id))]
    await expired(scene, most=most)
    told += [losses.news(await view_of(store, task_id)) for _ in range(2)]

    assert told == [[], [f"{DIED}{consequence}"], []]


async def test_what_was_lost_before_is_not_reported() -> None:
    store = MemoryStore()
    scene = await open_scene(store)
    task_id = (await scene.start("a")).identity.task_id
    await expired(scene)

    assert LostLeases().news(await view_of(store, task_id)) == []
    assert LostLeases({}).news(await view_of(store, task_id)) == [f"{DIED}; 1 step starts again"]
