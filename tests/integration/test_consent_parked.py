"""The questions of parked runs: they wait like any other, and their answer lets the run continue (PER-13)."""

import asyncio
import math
from typing import Any

import pytest

from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.permissions.request import Choice, Decision, PermissionRequest
from soong.shared.permissions.store import DecisionReceipt
from tests.integration import consent
from tests.integration.away_store import AwayStore
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, verdicts
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
async def test_the_answer_to_a_parked_run_wakes_owners_and_is_used_once_by_its_next_life(open_bench: OpenBench) -> None:
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


async def _stands(bench: ConsentHarness, claim: Claim, wanted: StepStatus) -> bool:
    return await status(bench, claim) is wanted


# -- the database goes away for a while: questions, deciding and answering wait, and nothing is lost or done twice
@pytest.fixture
def store() -> AwayStore:
    return AwayStore()


@pytest.mark.parametrize("away", ["open_questions", "answer", "settled"])
async def test_a_question_is_answered_when_the_database_is_back(store: AwayStore, away: str) -> None:
    callback = Callback()
    async with consent.open_bench(store=store) as bench:
        bench.attach(callback)
        ((claim, worker),) = await bench.claim()

        store.names, store.away = {away}, math.inf
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await until(lambda: store.refused[away] > 0)
        assert not asking.done()
        store.away = 0
        await bench.broker.review([bench.session_id])

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed
        assert len(callback.shown) == 1
        decided = [event for event in await bench.events(claim) if event.type == EventType.PERMISSION_DECIDED]
        assert len(decided) == 1


async def test_a_cancelled_call_that_cannot_withdraw_leaves_its_question_to_the_owner(store: AwayStore) -> None:
    async with consent.open_bench(store=store) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await bench.pending(1)
        store.names, store.away = {"withdraw"}, math.inf

        asking.cancel()
        outcome = await asyncio.gather(asking, return_exceptions=True)

        assert isinstance(outcome[0], asyncio.CancelledError)
        await bench.pending(1)


async def test_one_question_that_cannot_be_handled_does_not_hold_back_the_others(
    store: AwayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, broken_calls = store.decide, {"call_1"}

    async def refuse_broken(ownership: Ownership, decision: Decision, **rest: Any) -> DecisionReceipt:
        if decision.tool_call_id in broken_calls:
            raise ConflictError(f"{decision.tool_call_id} cannot be decided")
        return await decide(ownership, decision, **rest)

    monkeypatch.setattr(store, "decide", refuse_broken)
    async with consent.open_bench(Callback([Choice.ALLOW_ONCE]), store=store) as bench:
        ((claim, worker),) = await bench.claim()
        broken = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim, "call_1", "/work/one")))
        await bench.pending(1)
        await bench.settle()
        broken_calls.clear()

        (whole,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim, "call_2", "/work/two")))
        (restored,) = await verdicts(broken)

        assert (whole.is_allowed, restored.is_allowed) == (True, True)


async def test_a_fault_of_ours_is_survived_and_the_next_look_goes_on(
    store: AwayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consent.open_bench(Callback(), store=store) as bench:
        ((claim, worker),) = await bench.claim()
        decide = store.decide
        faults = iter([RuntimeError("a fault")])

        async def faulty(*given: object, **named: object) -> DecisionReceipt:
            for fault in faults:
                raise fault
            return await decide(*given, **named)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(store, "decide", faulty)

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert verdict.is_allowed
