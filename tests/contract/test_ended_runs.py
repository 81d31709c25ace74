"""Runs that have ended in tasks that have not: what an owner writes folders of meanwhile."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from msgspec.structs import replace

from soong.shared.engine.runs.record import Run, Usage
from tests.contract.scene import ContractHarness, completed, failed

USED = Usage(requests=1)


async def found(
    scene: ContractHarness, *, after: tuple[int, str] = (0, ""), before_us: int = 0, limit: int = 100, owner: str = ""
) -> Sequence[Run]:
    return await scene.store.runs.ended_in_open_tasks(
        owner or scene.own.owner_id, after=after, before_us=before_us or scene.later_us, limit=limit
    )


def place(run: Run) -> tuple[int, str]:
    return run.ended_us or 0, run.id


@pytest.mark.spec("EVT-03.d")
async def test_ended_runs_of_open_tasks_are_found_in_the_order_of_their_ends(scene: ContractHarness) -> None:
    await scene.task("a", "b", "c", "d", "e")
    first, unused, bad, other, _ = await scene.claim(5)
    scene.clock.advance(timedelta(seconds=1))
    await scene.advance([replace(completed(other), usage=USED)])
    scene.clock.advance(timedelta(seconds=1))
    await scene.advance([replace(completed(first), usage=USED), completed(unused), failed(bad)])

    runs = await found(scene)

    assert [run.id for run in runs] == [other.identity.run_id, *sorted([first.identity.run_id, bad.identity.run_id])]
    assert runs[0] == await scene.store.runs.run(other.identity.run_id)
    for number, run in enumerate(runs):
        assert list(await found(scene, after=place(run))) == list(runs[number + 1 :])
    assert list(await found(scene, limit=1)) == [runs[0]]
    assert list(await found(scene, before_us=scene.now_us)) == [runs[0]]
    assert list(await found(scene, owner="own_other")) == []


@pytest.mark.spec("EVT-03.d")
async def test_ended_runs_of_a_task_that_has_ended_are_not_among_them(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    claim = await scene.claim_one()
    await scene.advance([replace(completed(claim), usage=USED)])
    before = [run.id for run in await found(scene)]

    await scene.finish(task_id)

    assert (before, list(await found(scene))) == ([claim.identity.run_id], [])
