"""Questions outlive whoever asks, decides and answers (PER-13, PER-15; DAG-07)."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from soong.shared.engine.tasks.step import Claim, Lease
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Choice, RequestState
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, next_owner, verdicts
from tests.model.builders import make_answer, open_worker
from tests.model.memory.notifier import MemoryBus
from tests.waiting import others_run, until


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
        assert callback.gate is not None
        callback.gate.set()

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

        stale.cancel()
        await asyncio.gather(stale, return_exceptions=True)
        assert callback.gate is not None
        callback.gate.set()

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

        assert silent.gate is not None
        silent.gate.set()
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
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
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
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


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
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

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
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

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
