import asyncio

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import ANSWERED, AlreadyDecidedError, ConflictError, LeaseLostError, NotFoundError
from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import Choice, PermissionRequest, RequestState
from soong.shared.permissions.signing import SigningKey
from soong.shared.permissions.store import ClosedQuestion, OpenQuestions
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness
from tests.model.builders import make_answer, make_decision, make_request, make_responder

ASKED = NewEvent("permission_requested")


async def ask(scene: ContractHarness, claim: Claim, tool_call_id: str = "call_1") -> PermissionRequest:
    return await scene.raised(make_request(claim, tool_call_id), [ASKED])


async def decide(
    scene: ContractHarness, request: PermissionRequest, state: RequestState = RequestState.DECIDED
) -> None:
    await scene.store.consent.decide(
        scene.own, make_decision(request), state=state, events=[NewEvent("permission_decided")], now_us=scene.now_us
    )


# -- asking
@pytest.mark.spec("PER-06", "CARD-3", "DAG-09.c")
async def test_request_comes_back_whole_and_pending(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = replace(make_request(claim), unknown_effects=({"tool": "code.run_command", "shown": "make deploy"},))

    raised = await scene.raised(request, [ASKED])

    assert raised == request
    assert await scene.store.consent.request(request.id) == (request, RequestState.PENDING)
    assert await scene.store.consent.pending(scene.own.session_id) == [request]
    assert (await scene.event_types(claim.identity.run_id))[-1] == "permission_requested"


@pytest.mark.spec("CARD-3", "PER-12.a")
async def test_identity_of_a_request_is_its_runs_whatever_the_raiser_says(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    lie = replace(
        claim.identity,
        agent_id="agent_boss",
        role=Role.MAIN,
        definition="boss",
        parent_run_id="run_boss",
        session_id="sess_other",
        step_title="Harmless",
    )

    raised = await scene.raised(replace(make_request(claim), identity=lie))

    stored, _ = await scene.store.consent.request(raised.id)
    assert raised.identity == stored.identity == claim.identity
    assert [request.identity for request in await scene.store.consent.pending(scene.own.session_id)] == [claim.identity]
    assert await scene.store.consent.pending("sess_other") == []


@pytest.mark.spec("PER-13")
async def test_resumed_run_finds_the_question_it_has_asked_before_and_the_decision_it_has_waited_for(
    scene: ContractHarness,
) -> None:
    first = await scene.start("a")
    asked = await ask(scene, first)
    second = await scene.lost_fence(first)

    assert (await ask(scene, second)).id == asked.id
    assert len(await scene.store.consent.pending(scene.own.session_id)) == 1
    await decide(scene, asked)
    third = await scene.lost_fence(second)
    assert (await ask(scene, third)).id == asked.id
    assert await scene.store.consent.decision_of(asked.id) is not None
    assert (await scene.event_types(first.identity.run_id)).count("permission_requested") == 1


async def test_withdrawn_question_may_be_asked_again(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    first = await ask(scene, claim)
    await scene.withdraw(claim, "call_1", "timeout")

    second = await ask(scene, claim)

    assert second.id != first.id
    assert (await scene.store.consent.request(second.id))[1] is RequestState.PENDING


async def test_same_question_raised_at_once_is_stored_once(scene: ContractHarness, open_another: OpenStore) -> None:
    claim = await scene.start("a")
    stores = [await open_another() for _ in range(4)]

    raised = await asyncio.gather(
        *(store.consent.raise_request(make_request(claim), events=[ASKED], now_us=scene.now_us) for store in stores)
    )

    assert len(set(raised)) == 1
    assert len(await scene.store.consent.pending(scene.own.session_id)) == 1


@pytest.mark.spec("PER-15.c")
async def test_questions_of_all_sessions_are_listed_and_closed_ones_leave_the_list(scene: ContractHarness) -> None:
    """A question that was decided is not listed as if it could be answered (Agenta-AI/agenta#6823)."""
    await scene.task("a", "b")
    first, second = await scene.claim()
    other = await scene.another_session()
    await scene.task("a", own=other)
    foreign = await scene.claim_one()
    asked = [await ask(scene, claim) for claim in (first, second, foreign)]
    await scene.store.consent.answer(make_answer(asked[0]))
    await decide(scene, asked[0])

    waiting = await scene.store.consent.questions()
    everything = await scene.store.consent.questions(include_closed=True)

    assert [question.request for question in waiting] == asked[1:]
    assert [question.request for question in await scene.store.consent.questions(session_id=other.session_id)] == [
        asked[2]
    ]
    assert [question.state for question in everything] == [RequestState.DECIDED, *[RequestState.PENDING] * 2]
    assert everything[0].answer == make_answer(asked[0])
    assert everything[0].decision == await scene.store.consent.decision_of(asked[0].id)
    assert [question.request.id for question in await scene.store.consent.questions(limit=1)] == [asked[1].id]
    newest = await scene.store.consent.questions(include_closed=True, limit=1)
    assert [question.request.id for question in newest] == [asked[2].id]


async def test_pending_questions_are_the_sessions_own_and_oldest_first(scene: ContractHarness) -> None:
    await scene.task("a", "b")
    first, second = await scene.claim()
    other = await scene.another_session()
    await scene.task("a", own=other)
    foreign = await scene.claim_one()
    asked = [await ask(scene, first), await ask(scene, second), await ask(scene, first, "call_2")]
    await ask(scene, foreign)
    await decide(scene, asked[1])

    assert await scene.store.consent.pending(scene.own.session_id) == [asked[0], asked[2]]


# -- answering


@pytest.mark.spec("PER-15.b")
async def test_of_answers_at_once_one_wins(scene: ContractHarness, open_another: OpenStore) -> None:
    request = await ask(scene, await scene.start("a"))
    stores = [await open_another() for _ in range(4)]
    answers = [make_answer(request, principal=f"p{number}") for number in range(4)]

    outcomes = await asyncio.gather(
        *(store.consent.answer(answer) for store, answer in zip(stores, answers, strict=True)), return_exceptions=True
    )

    assert [type(outcome) for outcome in outcomes if outcome is not None] == [AlreadyDecidedError] * 3
    assert await scene.store.consent.answer_of(request.id) == answers[outcomes.index(None)]


@pytest.mark.spec("PER-14", "PER-15")
async def test_no_decision_says_that_nobody_answered_once_somebody_has(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))
    decision = make_decision(request, Choice.DENY)
    await scene.store.consent.answer(make_answer(request))

    async def decided(*, if_unanswered: bool) -> None:
        await scene.store.consent.decide(
            scene.own, decision, state=RequestState.DECIDED, events=[], now_us=scene.now_us, if_unanswered=if_unanswered
        )

    with pytest.raises(AlreadyDecidedError) as refusal:
        await decided(if_unanswered=True)
    assert refusal.value.state == ANSWERED
    assert (await scene.store.consent.request(request.id))[1] is RequestState.PENDING
    await decided(if_unanswered=False)

    assert await scene.store.consent.decision_of(request.id) == decision


@pytest.mark.parametrize("state", [RequestState.DECIDED, RequestState.EXPIRED], ids=str)
@pytest.mark.spec("PER-15")
async def test_answer_to_a_closed_question_learns_how_it_was_closed(
    scene: ContractHarness, state: RequestState
) -> None:
    request = await ask(scene, await scene.start("a"))
    await decide(scene, request, state)

    with pytest.raises(AlreadyDecidedError) as refusal:
        await scene.store.consent.answer(make_answer(request))

    assert refusal.value.state == state
    assert await scene.store.consent.answer_of(request.id) is None


@pytest.mark.spec("MCP-01.d", "PER-15")
async def test_what_calls_of_a_former_life_asked_while_they_ran_is_withdrawn_and_nothing_else(
    scene: ContractHarness,
) -> None:
    first = await scene.start("a")
    before_a_call, within = await ask(scene, first, "call_1"), await ask(scene, first, "call_2.ask-0123456789ab-1")
    claim = await scene.lost_fence(first)
    run_id = claim.identity.run_id

    with pytest.raises(LeaseLostError):
        await scene.store.consent.withdraw_cut_off(run_id, first.fence, reason="x", now_us=scene.now_us)
    closed = await scene.store.consent.withdraw_cut_off(run_id, claim.fence, reason="cut off", now_us=scene.now_us)

    assert list(closed) == [within.id]
    assert (await scene.store.consent.request(within.id))[1] is RequestState.WITHDRAWN
    assert (await scene.store.consent.request(before_a_call.id))[1] is RequestState.PENDING
    assert (await scene.event_types(run_id)).count("permission_withdrawn") == 1
    assert not await scene.store.consent.withdraw_cut_off(run_id, claim.fence, reason="x", now_us=scene.now_us)


async def test_answer_may_say_that_the_responder_failed(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))
    answer = replace(make_answer(request, None), reason="the callback raised ValueError")

    await scene.store.consent.answer(answer)

    assert await scene.store.consent.answer_of(request.id) == answer


async def test_answer_and_question_that_do_not_exist_are_named(scene: ContractHarness) -> None:
    request = make_request(await scene.start("a"), id="req_none")

    with pytest.raises(NotFoundError, match="req_none"):
        await scene.store.consent.answer(make_answer(request))
    with pytest.raises(NotFoundError, match="req_none"):
        await scene.store.consent.request("req_none")


@pytest.mark.spec("PER-15", "PER-19")
async def test_question_is_decided_once(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await decide(scene, request)
    first = await scene.store.consent.decision_of(request.id)

    with pytest.raises(AlreadyDecidedError) as refusal:
        await decide(scene, request)

    assert refusal.value.state == "decided"
    assert await scene.store.consent.decision_of(request.id) == first
    assert (await scene.store.consent.request(request.id))[1] is RequestState.DECIDED
    assert await scene.store.consent.pending(scene.own.session_id) == []
    assert (await scene.event_types(claim.identity.run_id)).count("permission_decided") == 1


# -- at one look
@pytest.mark.spec("PER-12", "PER-13")
async def test_an_owner_sees_all_that_waits_in_a_session_at_one_look(scene: ContractHarness) -> None:
    session = await scene.store.sessions.session(scene.own.session_id)
    assert await scene.store.consent.open_questions(session.id, limit=10) is None
    claim = await scene.start("a")
    asked = [await ask(scene, claim, f"call_{number}") for number in range(3)]
    answer, responder = make_answer(asked[1]), make_responder(session.id)
    await scene.store.consent.answer(answer)
    await scene.store.sessions.attach_responder(responder)

    found = await scene.store.consent.open_questions(session.id, limit=2)

    tokens = {claim.identity.run_id: claim.token}
    assert found == OpenQuestions(session, asked[:2], {asked[1].id: answer}, [responder], tokens)
    assert claim.token not in repr(found)
    assert await scene.store.consent.open_questions("sess_none", limit=2) is None
    for request in asked:
        await decide(scene, request)
    assert await scene.store.consent.open_questions(session.id, limit=10) is None


@pytest.mark.spec("PER-15", "PER-19")
async def test_how_a_question_was_closed_is_reported_with_the_key_that_its_decision_names(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    open_one, known, unknown, withdrawn = [await ask(scene, claim, f"call_{number}") for number in range(4)]
    signed, unsigned = replace(make_decision(known), key_id="key_1"), replace(make_decision(unknown), key_id="key_none")
    await scene.store.keys.publish_key("key_1", b"k" * 32, now_us=scene.now_us)
    for decision in (signed, unsigned):
        state = RequestState.DECIDED
        await scene.store.consent.decide(scene.own, decision, state=state, events=(), now_us=scene.now_us)
    await scene.withdraw(claim, "call_3", "abort")

    asked = [open_one.id, known.id, unknown.id, withdrawn.id, "req_none"]
    assert await scene.store.consent.still_pending(asked) == {open_one.id}
    assert not await scene.store.consent.still_pending([])
    assert await scene.store.consent.settled(open_one.id) is None
    assert await scene.store.consent.settled(known.id) == ClosedQuestion(
        signed, await scene.store.keys.signing_key("key_1")
    )
    assert await scene.store.consent.settled(unknown.id) == ClosedQuestion(unsigned, None)
    assert await scene.store.consent.settled(withdrawn.id) == ClosedQuestion()
    with pytest.raises(NotFoundError, match="req_none"):
        await scene.store.consent.settled("req_none")


@pytest.mark.spec("PER-13")
async def test_a_decision_says_who_holds_the_run_that_waits_for_it(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))

    decided = await scene.store.consent.decide(
        scene.own, make_decision(request), state=RequestState.DECIDED, events=(), now_us=scene.now_us
    )

    assert (decided.was_parked, decided.worker_id) == (False, scene.worker)


# -- withdrawing
@pytest.mark.spec("PER-15")
async def test_withdrawal_closes_the_question_of_that_call_only(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    first, second = await ask(scene, claim), await ask(scene, claim, "call_2")

    await scene.withdraw(claim, "call_1", "abort")

    assert (await scene.store.consent.request(first.id))[1] is RequestState.WITHDRAWN
    assert await scene.store.consent.pending(scene.own.session_id) == [second]
    assert (await scene.event_types(claim.identity.run_id))[-1] == "permission_withdrawn"


async def test_withdrawal_without_a_question_changes_nothing(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    before = await scene.event_types(claim.identity.run_id)

    await scene.withdraw(claim, "call_9", "abort")

    assert await scene.event_types(claim.identity.run_id) == before


@pytest.mark.spec("PER-15")
async def test_decided_question_is_not_withdrawn(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await decide(scene, request)

    await scene.withdraw(claim, "call_1", "abort")

    assert (await scene.store.consent.request(request.id))[1] is RequestState.DECIDED


@pytest.mark.spec("PER-15.a")
async def test_question_whose_run_has_ended_is_withdrawn(scene: ContractHarness) -> None:
    await scene.task("ended", "running")
    ended, running = await scene.claim()
    orphan, live = await ask(scene, ended), await ask(scene, running)
    await scene.complete(ended)

    found = await scene.store.consent.open_questions(scene.own.session_id, limit=10)
    assert found is not None
    assert (found.pending, found.has_orphans) == ([live], True)
    withdrawn = await scene.store.consent.withdraw_orphans(scene.own.session_id, now_us=scene.now_us)
    found = await scene.store.consent.open_questions(scene.own.session_id, limit=10)
    assert found is not None
    assert (found.pending, found.has_orphans) == ([live], False)

    assert list(withdrawn) == [orphan.id]
    assert await scene.store.consent.pending(scene.own.session_id) == [live]
    assert (await scene.event_types(ended.identity.run_id))[-1] == "permission_withdrawn"
    assert list(await scene.store.consent.withdraw_orphans(scene.own.session_id, now_us=scene.now_us)) == []


@pytest.mark.spec("PER-14", "PER-15")
async def test_what_an_ended_run_asked_is_withdrawn_before_its_row_says_so(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    consent, session_id = scene.store.consent, scene.own.session_id
    await scene.complete(claim)

    with pytest.raises(AlreadyDecidedError) as answered:
        await consent.answer(make_answer(request))
    with pytest.raises(AlreadyDecidedError) as decided:
        await decide(scene, request)

    assert (answered.value.state, decided.value.state) == ("withdrawn", "withdrawn")
    assert (await consent.answer_of(request.id), await consent.decision_of(request.id)) == (None, None)
    (question,) = await consent.questions(session_id=session_id, include_closed=True)
    assert question.state is (await consent.request(request.id))[1] is RequestState.WITHDRAWN
    assert await consent.pending(session_id) == []
    assert await consent.questions() == await consent.questions(session_id=session_id) == []


@pytest.mark.spec("PER-13")
async def test_question_of_a_run_that_waits_to_be_resumed_stays(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await scene.expire()

    assert list(await scene.store.consent.withdraw_orphans(scene.own.session_id, now_us=scene.now_us)) == []
    assert [pending.id for pending in await scene.store.consent.pending(scene.own.session_id)] == [request.id]


# -- keys
@pytest.mark.spec("PER-12")
async def test_public_key_is_published_once_and_read_by_its_id(store: Store) -> None:
    await store.keys.publish_key("key_1", b"\x00" * 31 + b"\xff", now_us=1)
    await store.keys.publish_key("key_1", b"\x00" * 31 + b"\xff", now_us=2)

    with pytest.raises(ConflictError, match="key_1"):
        await store.keys.publish_key("key_1", b"\x01" * 32, now_us=3)

    assert await store.keys.signing_key("key_1") == SigningKey("key_1", b"\x00" * 31 + b"\xff", 1)
    assert await store.keys.signing_key("key_2") is None
