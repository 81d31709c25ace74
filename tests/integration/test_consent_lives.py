"""Questions outlive whoever asks, decides and answers, those of parked runs too (PER-13, PER-15; DAG-07)."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Choice, Decision, PermissionRequest, RequestState
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.permissions.store import DecisionReceipt
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from tests.integration import consent
from tests.integration.away_store import AwayStore
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, next_owner, verdicts
from tests.model.builders import make_answer, open_worker
from tests.waiting import dropped, others_run, until


async def resumed(bench: ConsentHarness, claim: Claim, worker: str) -> tuple[Claim, str]:
    """Hand the run back and let another worker take it up."""
    await bench.store.claims.release(
        worker, [Lease(claim.step_key, claim.identity.run_id, claim.fence)], reason="test", now_us=1
    )
    successor = await open_worker(bench.store)
    return await bench.claim_for(successor), successor


def start(bench: ConsentHarness, claim: Claim, worker: str) -> "asyncio.Task[Verdict]":
    return asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))


@pytest.mark.spec("PER-13")
async def test_a_resumed_run_uses_the_decision_its_former_life_was_given(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        (before,) = await verdicts(start(bench, claim, worker))

        again, successor = await resumed(bench, claim, worker)
        (after,) = await verdicts(start(bench, again, successor))

        assert again.fence > claim.fence
        assert (after.is_allowed, after.decision_id) == (True, before.decision_id)
        assert len(callback.shown) == 1


@pytest.mark.spec("PER-13")
async def test_a_resumed_run_waits_for_the_question_that_its_former_life_asked(open_bench: OpenBench) -> None:
    callback = Callback(gate=asyncio.Event())
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        dead = start(bench, claim, worker)
        (request,) = await bench.pending()
        await bench.inboxes[worker].close()  # its process is gone: nobody withdraws anything

        again, successor = await resumed(bench, claim, worker)
        asking = start(bench, again, successor)
        await until(lambda: callback.at_once == 1)
        callback.answer()

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed
        assert [shown.id for shown in callback.shown] == [request.id]
        await asyncio.gather(dead, return_exceptions=True)


@pytest.mark.spec("PER-13", "DAG-07")
async def test_a_life_that_ends_does_not_end_the_waiting_of_the_next_one_in_the_same_process(
    open_bench: OpenBench,
) -> None:
    """A worker that gave up a lease and has not noticed takes the same run up again: two wait for one request."""
    callback = Callback(gate=asyncio.Event())
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        stale = start(bench, claim, worker)
        await bench.pending()
        again, successor = await resumed(bench, claim, worker)
        bench.inboxes[successor] = bench.inboxes[worker]
        asking = start(bench, again, successor)
        await until(lambda: callback.at_once == 1)
        await others_run()

        await dropped(stale)
        callback.answer()

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed
        assert stale.cancelled()


@pytest.mark.spec("PER-04.d", "PER-04.e")
async def test_a_new_owner_has_no_grants_and_asks_again(open_bench: OpenBench) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION])
    async with open_bench(callback) as bench:
        (first, first_worker), (second, second_worker) = await bench.claim(2)
        await verdicts(start(bench, first, first_worker))

        await bench.detach()
        await next_owner(bench)
        bench.attach(callback)
        await verdicts(start(bench, second, second_worker))

        assert len(callback.shown) == 2


async def test_an_owner_that_lost_its_session_decides_nothing_more(open_bench: OpenBench) -> None:
    silent = Callback(gate=asyncio.Event())
    async with open_bench(silent) as bench:
        ((claim, worker),) = await bench.claim()
        asking = start(bench, claim, worker)
        await until(lambda: silent.at_once == 1)
        former, session = bench.broker, bench.ownership
        await bench.store.sessions.release_owner(session.owner_id)
        successor = await bench.store.sessions.session(bench.session_id)
        assert successor.owner_id == ""

        silent.answer()
        await until(lambda: silent.at_once == 0)
        await former.review([bench.session_id])
        approvals = former._of(bench.session_id)
        await until(lambda: approvals.task is None or approvals.task.done())

        assert not asking.done()
        (question,) = await bench.store.consent.questions(session_id=bench.session_id)
        assert question.decision is None
        asking.cancel()


async def test_a_terminal_that_was_taken_for_gone_attaches_again(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        bench.settings = bench.settings.model_copy(update={"responder_lease_s": 0.3})
        bench.attach(Callback())
        await until(lambda: _has_responders(bench, 1))
        (first,) = await bench.store.sessions.responders(bench.session_id)

        await bench.store.sessions.detach_responder(first.id)

        await until(lambda: _has_responders(bench, 1))
        (second,) = await bench.store.sessions.responders(bench.session_id)
        assert second.id != first.id


async def _has_responders(bench: ConsentHarness, count: int) -> bool:
    found: Sequence[object] = await bench.store.sessions.responders(bench.session_id)
    return len(found) == count


async def test_detaching_a_callback_hands_its_question_to_the_next(open_bench: OpenBench) -> None:
    silent, callback = Callback(gate=asyncio.Event()), Callback()
    async with open_bench(silent) as bench:
        ((claim, worker),) = await bench.claim()
        asking = start(bench, claim, worker)
        await until(lambda: silent.at_once == 1)

        await bench.detach()
        await until(lambda: silent.at_once == 0)
        bench.attach(callback)

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed


async def test_a_question_of_another_session_is_none_of_the_brokers(open_bench: OpenBench) -> None:
    async with open_bench(Callback()) as bench, open_bench(store=bench.store, signer=bench.signer) as other:
        ((claim, worker),) = await other.claim()
        asking = start(other, claim, worker)
        await other.pending()

        await bench.settle()

        assert not asking.done()
        await dropped(asking)
        assert replace(claim).identity.session_id != bench.session_id


@pytest.mark.spec("PER-07", "PER-15")
async def test_who_picks_a_question_behind_the_one_that_is_shown_has_answered_that_one(open_bench: OpenBench) -> None:
    """Any client of the session can answer any question that it lists (openai/codex#45167)."""
    silent = Callback(gate=asyncio.Event())
    async with open_bench(silent) as bench:
        (first, first_worker), (second, second_worker) = await bench.claim(2)
        waiting = start(bench, first, first_worker)
        await bench.pending()
        await until(lambda: silent.at_once == 1)
        asking = start(bench, second, second_worker)
        _, behind = await bench.pending(2)
        answer = replace(make_answer(behind, Choice.DENY), reason="not that one")

        await bench.store.consent.answer(answer)
        await bench.broker.review([bench.session_id])

        (verdict,) = await verdicts(asking)
        assert (verdict.error, verdict.reason) == (ErrorType.PERMISSION_DENIED, "not that one")
        assert [request.id for request in silent.shown] == [(await bench.pending())[0].id]
        assert not waiting.done()
        await dropped(waiting)


@pytest.mark.spec("MCP-01.d", "PER-13", "PER-15")
async def test_a_question_of_a_call_under_way_does_not_let_its_run_park_and_goes_with_the_call(
    open_bench: OpenBench,
) -> None:
    silent, waits = Callback(gate=asyncio.Event()), list[str]()

    @contextmanager
    def waiting(request_id: str) -> Iterator[None]:
        waits.append(request_id)
        yield

    async with open_bench(silent) as bench:
        ((claim, worker),) = await bench.claim()
        gate = replace(bench.gate(claim, worker), waiting=waiting)
        asking = asyncio.create_task(gate.decide(make_call(claim, is_under_way=True, hook_result="ask")))
        (request,) = await bench.pending()
        gate.interruption.stop = "park"
        await dropped(asking)

        assert waits == []
        _, state = await bench.store.consent.request(request.id)
        assert state is RequestState.WITHDRAWN


@pytest.mark.spec("PER-15")
async def test_a_call_that_is_cancelled_while_its_question_is_written_leaves_none_behind(open_bench: OpenBench) -> None:
    is_written = asyncio.Event()

    class SlowBus(MemoryBus):
        async def permission_raised(self, request_id: str, session_id: str) -> None:
            await super().permission_raised(request_id, session_id)
            if not is_written.is_set():
                is_written.set()
                await asyncio.Event().wait()  # others see the question; its own writer has not continued yet

    async with open_bench(Callback(gate=asyncio.Event())) as bench:
        ((claim, worker),) = await bench.claim()
        gate = replace(bench.gate(claim, worker), notifier=SlowBus())
        asking = asyncio.create_task(gate.decide(make_call(claim)))
        await is_written.wait()
        (request,) = await bench.pending()
        await dropped(asking)

        _, state = await bench.store.consent.request(request.id)
        assert state is RequestState.WITHDRAWN


@pytest.mark.spec("MCP-01.m", "PER-02")
async def test_what_a_hook_has_answered_is_asked_of_nobody_and_refused_by_a_rule(open_bench: OpenBench) -> None:
    person = Callback()
    async with open_bench(person) as bench:
        ((claim, worker),) = await bench.claim()
        call = make_call(claim, is_under_way=True, hook_result="ask", is_answered=True)

        answered = await bench.gate(claim, worker).decide(call)
        refused = await bench.gate(claim, worker, Policy((Rule(Effect.DENY, "code.*"),))).decide(call)

        assert (answered.is_allowed, answered.author, answered.decision_id) == (True, "system", "")
        assert (refused.is_allowed, refused.error) == (False, ErrorType.PERMISSION_DENIED)
        assert list(await bench.store.consent.questions(session_id=bench.session_id, include_closed=True)) == []
        assert person.shown == []


async def parked(bench: ConsentHarness) -> tuple[Claim, PermissionRequest]:
    """Let a run ask, park it, and end what waited for the answer here."""
    ((claim, worker),) = await bench.claim()
    gate = bench.gate(claim, worker)
    asking = asyncio.get_running_loop().create_task(gate.decide(make_call(claim)))
    (request,) = await bench.pending()
    held = Lease(claim.step_key, claim.identity.run_id, claim.fence)
    assert await bench.store.claims.park(worker, held, [request.id], max_parked=1, now_us=bench.clock.now_us())
    gate.interruption.stop = "park"
    await dropped(asking)
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
        person.answer()

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
