"""The questions of parked runs: they wait like any other, and their answer lets the run continue (PER-13)."""

import asyncio

import pytest

from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.permissions.request import Choice, PermissionRequest
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, next_owner, verdicts
from tests.model.builders import make_answer, open_worker
from tests.waiting import until


async def parked(bench: ConsentHarness) -> tuple[Claim, PermissionRequest]:
    """Let a run ask, park it, and end what waited for the answer here."""
    ((claim, worker),) = await bench.claim()
    gate = bench.gate(claim, worker)
    asking = asyncio.get_running_loop().create_task(gate.decide(make_call(claim)))
    (request,) = await bench.pending()
    held = Lease(claim.step_key, claim.identity.run_id, claim.fence)
    assert await bench.store.claims.park(worker, held, [request.id], max_parked=1, now_us=bench.clock.now_us())
    gate.interruption.stop = "park"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    return claim, request


async def status(bench: ConsentHarness, claim: Claim) -> StepStatus:
    return (await bench.store.tasks.step(claim.step_key)).status


async def error(bench: ConsentHarness, claim: Claim) -> object:
    return (await bench.event(claim, EventType.PERMISSION_DECIDED)).data["error"]


@pytest.mark.spec("PER-13", "PER-12")
async def test_the_answer_to_a_parked_run_wakes_owners_and_is_used_once_by_its_next_life(
    open_bench: OpenBench,
) -> None:
    person = Callback(gate=asyncio.Event())
    async with open_bench(person) as bench:
        claim, request = await parked(bench)
        subscription = await bench.subscriber.subscribe_owner()
        assert person.gate is not None
        person.gate.set()

        assert "" in await subscription.wait(5.0)
        await subscription.close()
        worker = await open_worker(bench.store)
        again = await bench.claim_for(worker)
        (verdict,) = await verdicts(bench.gate(again, worker).decide(make_call(again)))

        assert (again.identity.run_id, again.is_resumed) == (claim.identity.run_id, True)
        assert (verdict.is_allowed, verdict.author) == (True, "person")
        assert [shown.id for shown in person.shown] == [request.id]


@pytest.mark.spec("PER-13", "PER-14")
async def test_a_parked_run_that_an_attached_person_leaves_unanswered_times_out(open_bench: OpenBench) -> None:
    async with open_bench(Callback(gate=asyncio.Event())) as bench:
        claim, _ = await parked(bench)
        await bench.settle()
        await bench.pass_time(bench.settings.permission_timeout_s - 1)
        await bench.settle()
        assert await status(bench, claim) is StepStatus.BLOCKED

        await bench.pass_time(1)
        await until(lambda: _stands(bench, claim, StepStatus.READY))

        assert await error(bench, claim) == "permission_timeout"


@pytest.mark.spec("PER-13", "PER-14")
async def test_a_parked_run_whose_session_nobody_attends_is_warned(open_bench: OpenBench) -> None:
    async with open_bench(None) as bench:
        claim, _ = await parked(bench)
        await bench.settle()

        await bench.pass_time(bench.settings.responder_wait_s)
        await until(lambda: _stands(bench, claim, StepStatus.READY))

        assert await error(bench, claim) == "permission_no_callback"


@pytest.mark.spec("PER-13")
async def test_a_parked_run_of_an_inbox_waits_for_days(open_bench: OpenBench) -> None:
    """Who was away for days finds the question, not a denied call (MoonshotAI/kimi-cli#1823, mcp_agent_mail#151)."""
    async with open_bench(None, mode=ApprovalMode.INBOX) as bench:
        claim, request = await parked(bench)
        await bench.settle()
        await bench.pass_time(3 * 86_400)
        await bench.settle()
        assert await status(bench, claim) is StepStatus.BLOCKED

        await bench.store.consent.answer(make_answer(request))
        await bench.settle()

        assert await status(bench, claim) is StepStatus.READY


@pytest.mark.spec("PER-13")
async def test_time_does_not_count_while_the_task_of_a_parked_run_is_paused(open_bench: OpenBench) -> None:
    async with open_bench(Callback(gate=asyncio.Event())) as bench:
        claim, _ = await parked(bench)
        own, task_id, now_us = bench.ownership, claim.identity.task_id, bench.clock.now_us()
        await bench.store.tasks.pause_task(own, task_id, reason="lunch", now_us=now_us)
        await bench.settle()
        await bench.pass_time(2 * bench.settings.permission_timeout_s)
        await bench.settle()
        assert await status(bench, claim) is StepStatus.BLOCKED

        await bench.store.tasks.resume_task(own, task_id, now_us=now_us)
        await bench.settle()
        assert await status(bench, claim) is StepStatus.BLOCKED
        await bench.pass_time(bench.settings.permission_timeout_s)

        await until(lambda: _stands(bench, claim, StepStatus.READY))


@pytest.mark.spec("PER-13", "PER-04")
async def test_a_new_owner_asks_the_question_of_a_parked_run_again_under_its_id(open_bench: OpenBench) -> None:
    silent, person = Callback(gate=asyncio.Event()), Callback([Choice.DENY])
    async with open_bench(silent) as bench:
        claim, request = await parked(bench)

        await bench.detach()
        await next_owner(bench)
        bench.attach(person)
        await bench.settle()
        await until(lambda: _stands(bench, claim, StepStatus.READY))

        assert [shown.id for shown in person.shown] == [request.id]
        assert await error(bench, claim) == "permission_denied"


@pytest.mark.spec("PER-13", "PER-15")
async def test_the_question_of_a_cancelled_parked_run_is_shown_no_longer(open_bench: OpenBench) -> None:
    """A prompt for a dead child goes away by itself (code-yeongyu/oh-my-openagent#4447)."""
    person = Callback(gate=asyncio.Event())
    async with open_bench(person) as bench:
        claim, _ = await parked(bench)
        await until(lambda: person.at_once == 1)

        now_us = bench.clock.now_us()
        await bench.store.tasks.cancel_task(bench.ownership, claim.identity.task_id, reason="enough", now_us=now_us)
        await bench.settle()

        await until(lambda: person.at_once == 0)
        assert await bench.store.consent.pending(bench.session_id) == []


async def _stands(bench: ConsentHarness, claim: Claim, wanted: StepStatus) -> bool:
    return await status(bench, claim) is wanted
