import asyncio

import pytest
from msgspec.structs import replace

from soong.orchestrator.approvals.full_input import EXACT, REDACTED, read_full_input
from soong.orchestrator.approvals.responders import ResponderLease
from soong.shared.core import timing
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import JsonObject, digest
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.wire.bus import MemoryBus
from soong.shared.permissions.policy import Mode, Policy
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest, RequestState
from soong.shared.sandbox.redact import MARK
from soong.shared.tools.limits import EarlyCall
from soong.shared.tools.result import ErrorType
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, make_call, open_bench, verdicts
from tests.integration.consent import open_bench as open_consent
from tests.model.builders import make_answer
from tests.model.memory import MemoryStore
from tests.waiting import dropped, others_run, until

TEXT = "line\n" * 2_000


@pytest.mark.spec("CARD-3.b", "PER-01.a", "PER-06.c")
async def test_a_workers_question_reaches_the_callback_with_its_lineage_from_rows(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        (first, first_worker), (second, second_worker) = await bench.claim(2)
        lies = replace(second.identity, role=Role.MAIN, agent_id="agent_of_another", parent_run_id="", step_title="x")

        await verdicts(
            bench.gate(first, first_worker).decide(make_call(first)),
            bench.gate(second, second_worker).decide(make_call(second, folder="/work/two", identity=lies)),
        )

        shown = {request.identity.run_id: request for request in callback.shown}
        for claim in (first, second):
            assert shown[claim.identity.run_id].identity == claim.identity
        request = shown[first.identity.run_id]
        assert (request.tool, request.permission, request.risk, request.scope, request.shown, request.preview) == (
            "code.write_file",
            "write",
            "write",
            "/work/out",
            "/work/out/report.md",
            "5 bytes",
        )
        assert request.arguments == {"path": "/work/out/report.md", "content": "words"}
        assert request.proof == ""


@pytest.mark.spec("PER-07.a", "PER-07.b", "PER-07.c")
async def test_of_two_workers_that_ask_for_one_scope_one_is_asked_when_it_is_allowed_for_the_session(
    open_bench: OpenBench,
) -> None:
    """openai/codex#23324: a child neither used what had been approved nor reached the person who could approve."""
    callback = Callback([Choice.ALLOW_FOR_SESSION])
    async with open_bench(callback) as bench:
        claims = await bench.claim(2)

        answers = await verdicts(*(bench.gate(claim, worker).decide(make_call(claim)) for claim, worker in claims))
        (late, worker) = (await bench.claim(1))[0]
        (later,) = await verdicts(bench.gate(late, worker).decide(make_call(late)))

        assert len(callback.shown) == 1
        assert sorted(answer.author for answer in answers) == ["grant", "person"]
        assert (later.is_allowed, later.author, later.rule) == (True, "grant", "grant code.write_file:/work/out")
        assert [grant.scope for grant in bench.broker.grants(bench.session_id)] == ["/work/out"]


@pytest.mark.spec("PER-07.b", "PER-07.c")
async def test_after_a_no_exactly_the_next_of_equal_questions_is_asked(open_bench: OpenBench) -> None:
    """The time for an answer begins when a question is asked, and not while it waits for its turn."""
    callback = Callback([Choice.DENY, Choice.DENY], gate=asyncio.Event())
    async with open_bench(callback) as bench:
        claims = await bench.claim(3)
        asking = [asyncio.ensure_future(bench.gate(c, w).decide(make_call(c))) for c, w in claims]
        await bench.pending(3)

        def asked() -> list[str]:
            open_here = bench.broker._of(bench.session_id).open
            return [request_id for request_id, entry in open_here.items() if entry.asked_s is not None]

        await until(lambda: len(asked()) == 1)
        assert callback.gate is not None
        await until(lambda: callback.at_once == 1)
        (shown,) = callback.shown
        assert asked() == [shown.id]
        callback.gate.set()
        callback.gate = asyncio.Event()
        await until(lambda: len(callback.shown) == 2)
        await bench.settle()

        assert asked() == [callback.shown[1].id]
        callback.gate.set()
        callback.gate = None
        assert not any(answer.is_allowed for answer in await verdicts(*asking))


async def test_questions_about_different_scopes_do_not_wait_for_each_other(open_bench: OpenBench) -> None:
    first = Callback(gate=asyncio.Event())
    async with open_bench(first) as bench:
        claims = await bench.claim(3)
        asking = [
            asyncio.ensure_future(bench.gate(c, w).decide(make_call(c, folder=f"/work/{n}")))
            for n, (c, w) in enumerate(claims)
        ]
        await bench.pending(3)
        await until(lambda: first.at_once == 1)
        (shown,) = first.shown

        for request in await bench.pending(3):
            if request.id != shown.id:
                await bench.store.consent.answer(make_answer(request, Choice.ALLOW_ONCE))
        await bench.broker.review([bench.session_id])
        await bench.pending(1)
        first.answer()

        assert all(answer.is_allowed for answer in await verdicts(*asking))
        assert first.shown == [shown]


@pytest.mark.spec("PER-20.b")
async def test_strict_mode_offers_no_session_grant_and_refuses_one_that_is_answered_anyway(
    open_bench: OpenBench,
) -> None:
    callback = Callback([Choice.ALLOW_FOR_SESSION])
    async with open_bench(callback, policy=Policy(mode=Mode.STRICT)) as bench:
        ((claim, worker),) = await bench.claim()

        (answer,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert not callback.shown[0].offers_session
        assert answer.error is ErrorType.PERMISSION_FAILED
        assert "only allow_once and deny" in answer.reason


@pytest.mark.spec("PER-08.c")
@pytest.mark.parametrize("folder", ["/", "/home/someone", "/home"])
async def test_no_session_grant_is_offered_for_the_whole_disk_or_a_home(open_bench: OpenBench, folder: str) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()

        await verdicts(bench.gate(claim, worker).decide(make_call(claim, folder=folder)))

        assert not callback.shown[0].offers_session


async def test_a_lost_hint_costs_a_second_and_no_answer(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        ((claim, _),) = await bench.claim()

        # The inbox listens under another worker's name: no hint about the decision ever reaches it.
        (answer,) = await verdicts(bench.gate(claim, "wrk_deaf").decide(make_call(claim)))

        assert answer.is_allowed


@pytest.mark.spec("PER-06", "EVT-05")
@pytest.mark.parametrize(("secret", "note"), [("", EXACT), ("ghp_" + "a" * 36, REDACTED)], ids=["exact", "redacted"])
async def test_what_a_hook_made_of_a_call_can_be_read_whole_however_long_it_is(
    open_bench: OpenBench, secret: str, note: str
) -> None:
    async with open_bench() as bench:
        ((claim, worker),) = await bench.claim()
        made: JsonObject = {"path": "/work/out/report.md", "content": f"{secret}\n{TEXT}"}
        call = make_call(claim, permission_input=made, input_digest=digest(made), is_rewritten=True)
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(call))
        (request,) = await bench.pending(1)

        whole = await read_full_input(bench.store.runs, request)

        assert request.arguments != made
        assert (whole.input["content"], whole.note) == (f"{secret and MARK}\n{TEXT}", note)
        assert (whole.is_complete, whole.is_exact) == (True, not secret)
        asking.cancel()


async def test_a_call_that_no_hook_changed_is_not_written_into_its_event_again(open_bench: OpenBench) -> None:
    async with open_bench(Callback()) as bench:
        ((claim, worker),) = await bench.claim()
        made: JsonObject = {"path": "/work/out/report.md", "content": TEXT}

        await bench.gate(claim, worker).decide(make_call(claim, permission_input=made, input_digest=digest(made)))

        assert "input" not in (await bench.event(claim, EventType.PERMISSION_REQUESTED)).data


@pytest.mark.spec("EXE-10.a", "PER-01.a")
async def test_nobody_is_asked_about_a_call_before_its_answer_has_arrived(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        (kept, kept_worker), (broken, broken_worker) = await bench.claim(2)
        first, second = EarlyCall(), EarlyCall()
        asking = first.start(bench.gate(kept, kept_worker).decide(make_call(kept)))
        silent = second.start(bench.gate(broken, broken_worker).decide(make_call(broken)))
        await bench.settle()
        assert await bench.store.consent.questions() == []

        first.keep()
        second.discard()

        assert (await asking).is_allowed
        assert (await silent).error is ErrorType.PERMISSION_WITHDRAWN
        assert [request.identity.run_id for request in callback.shown] == [kept.identity.run_id]


@pytest.mark.spec("PER-13")
async def test_a_client_shows_what_was_raised_while_it_showed_another_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications alone have the owner and the client look."""
    monkeypatch.setattr(timing, "POLL_ROWS_S", 3600.0)
    callback = Callback(gate=asyncio.Event())
    async with open_consent(callback) as bench:
        first, second = await bench.claim(2)
        asking = [asyncio.ensure_future(bench.gate(*first).decide(make_call(first[0])))]
        await until(lambda: callback.at_once == 1)
        asking.append(asyncio.ensure_future(bench.gate(*second).decide(make_call(second[0], folder="/work/two"))))
        await bench.pending(2)
        callback.answer()

        assert all(verdict.is_allowed for verdict in await verdicts(*asking))


@pytest.mark.spec("PER-12", "PER-13")
async def test_a_question_an_answer_and_a_decision_are_each_notified_once_and_after_their_commit(
    open_bench: OpenBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    async with open_bench(Callback(gate=gate)) as bench:
        ((claim, worker),) = await bench.claim()
        consent, found = bench.store.consent, list[tuple[RequestState, bool]]()
        raised, decided = bench.notifier.permission_raised, bench.notifier.permission_decided

        async def note(request_id: str) -> None:
            found.append(((await consent.request(request_id))[1], await consent.answer_of(request_id) is not None))

        async def note_raised(request_id: str, session_id: str) -> None:
            await note(request_id)
            gate.set()
            await raised(request_id, session_id)

        async def note_decided(request_id: str, worker_id: str) -> None:
            await note(request_id)
            await decided(request_id, worker_id)

        monkeypatch.setattr(bench.notifier, "permission_raised", note_raised)
        monkeypatch.setattr(bench.notifier, "permission_decided", note_decided)
        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert verdict.is_allowed
        assert found == [(RequestState.PENDING, False), (RequestState.PENDING, True), (RequestState.DECIDED, True)]


async def test_an_attendance_that_changes_as_it_ends() -> None:
    attendance = ResponderLease(MemoryStore(), MemoryBus(), "ada", "cli", 3600.0)
    running = asyncio.ensure_future(attendance.run())
    await others_run(5)

    attendance.attend(["sess_1"])
    running.cancel()

    await asyncio.wait([running], timeout=5)
    assert running.cancelled()


async def test_a_broker_that_is_woken_as_it_closes() -> None:
    asked = asyncio.Event()

    async def silent(request: PermissionRequest) -> PermissionDecision:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError(request)

    async with open_bench(silent) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await asked.wait()
        broker = bench.broker._of(bench.session_id)
        looks = broker.looks
        await until(lambda: broker.looks > looks)
        await others_run(5)

        broker.wake()
        closing = asyncio.ensure_future(broker.close())

        await asyncio.wait([closing], timeout=5)
        assert closing.done()
        await dropped(asking)
