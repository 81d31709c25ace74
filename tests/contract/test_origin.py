"""Who had a run made stands in its row and in what its worker is told, however it comes about."""

import pytest
from msgspec.structs import replace

from soong.shared.core.identity import OWN, Origin
from soong.shared.engine.runs.record import NewRun
from soong.shared.engine.tasks.step import NewStep
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness
from tests.model.builders import make_request, make_retry, make_task

pytestmark = pytest.mark.spec("CARD-3", "DIS-05")

ROOT = Origin("root", is_foreign=True)
ADA = Origin("ada")


def dispatched(step: NewStep, origin: Origin) -> NewStep:
    assert step.run is not None
    return replace(step, run=made_by(step.run, origin))


def made_by(run: NewRun, origin: Origin) -> NewRun:
    return replace(run, identity=replace(run.identity, origin=origin))


async def test_a_worker_learns_who_had_each_of_its_runs_made(scene: ContractHarness, other_store: Store) -> None:
    task = make_task(scene.own.session_id, "a", "b", "c")
    origins = dict(zip("abc", (OWN, ADA, ROOT), strict=True))
    steps = tuple(dispatched(step, origins[step.step_id]) for step in task.steps)
    await scene.store.tasks.create_task(replace(task, steps=steps))

    claims = {claim.step_key.rpartition("/")[2]: claim for claim in await scene.claim()}

    assert {step_id: claim.identity.origin for step_id, claim in claims.items()} == origins
    for claim in claims.values():
        assert (await other_store.runs.run(claim.identity.run_id)).identity == claim.identity


async def test_a_question_names_who_had_its_run_made(scene: ContractHarness) -> None:
    task = make_task(scene.own.session_id, "a")
    await scene.store.tasks.create_task(replace(task, steps=(dispatched(task.steps[0], ROOT),)))
    claim = await scene.claim_one()

    await scene.raised(make_request(claim))

    found = await scene.store.consent.open_questions(scene.own.session_id, limit=10)
    assert found is not None
    assert [one.identity.origin for one in found.pending] == [ROOT]
    assert [one.request.identity.origin for one in await scene.store.consent.questions()] == [ROOT]


async def test_a_retry_belongs_to_who_asks_for_it_and_so_is_what_its_maps_expand_to(scene: ContractHarness) -> None:
    task_id = await scene.task("a")
    await scene.store.tasks.cancel_task(scene.own, task_id, reason="", now_us=scene.now_us)
    task = await scene.store.tasks.task(task_id)
    last = await scene.store.runs.run((await scene.store.tasks.step(f"{task_id}/a")).run_id)

    run = made_by(make_retry(last), ROOT)
    await scene.store.tasks.retry_task(scene.own, task_id, [run], origin=ROOT, now_us=scene.now_us)

    assert (await scene.claim_one()).identity.origin == ROOT
    assert (await scene.store.runs.run(task.root_run_id)).identity.origin == ROOT
    assert (await scene.store.runs.run(last.id)).identity.origin == OWN
