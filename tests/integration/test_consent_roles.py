"""One path of consent for every role: no agent asks another way, and every decision reaches the run that asked."""

import asyncio

import pytest
from msgspec.structs import replace

from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import Choice
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, next_owner, verdicts
from tests.model.builders import make_answer, make_step, make_task, open_worker
from tests.waiting import until


async def claim_as(bench: ConsentHarness, role: Role) -> tuple[Claim, str]:
    """Claim a step whose run is of a role, in a process of its own."""
    task = make_task(bench.session_id, make_step())
    (step,) = task.steps
    assert step.run is not None
    identity = replace(step.run.identity, role=role, definition=str(role))
    await bench.store.tasks.create_task(replace(task, steps=(replace(step, run=replace(step.run, identity=identity)),)))
    worker_id = await open_worker(bench.store)
    return await bench.claim_for(worker_id), worker_id


@pytest.mark.spec("PER-01.b", "PER-13", "CARD-3")
@pytest.mark.parametrize("choice", list(Choice))
@pytest.mark.parametrize("role", list(Role))
async def test_every_role_asks_the_same_callback_and_every_decision_resumes(
    open_bench: OpenBench, role: Role, choice: Choice
) -> None:
    """anthropics/claude-code#34095: asked at times, denied in silence at others; google/adk-web#121."""
    silent, later = Callback(gate=asyncio.Event()), Callback([Choice.DENY])
    async with open_bench(silent) as bench:
        claim, worker_id = await claim_as(bench, role)
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker_id).decide(make_call(claim)))
        (request,) = await bench.pending()
        await until(lambda: silent.at_once == 1)
        await bench.broker.close()
        await bench.store.consent.answer(make_answer(request, choice))
        await bench.detach()
        await next_owner(bench)
        bench.attach(later)
        await bench.settle()

        (verdict,) = await verdicts(asking)

        decided = (await bench.event(claim, EventType.PERMISSION_DECIDED)).data
        assert (request.identity.role, request.identity.run_id) == (role, claim.identity.run_id)
        assert verdict.is_allowed is (choice is not Choice.DENY)
        assert (decided["choice"], decided["author"], decided["request_id"]) == (str(choice), "person", request.id)
        assert [shown.identity for shown in silent.shown] == [request.identity]
        assert later.shown == []
