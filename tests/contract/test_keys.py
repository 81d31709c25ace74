"""Public keys as rows, and how they end."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyConsumedError, ConflictError, NotFoundError, UnconfirmedDecisionError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.audit_log.entry import AuditKind
from soong.shared.permissions.explain import notified_decision
from soong.shared.permissions.request import Decision, PermissionRequest, RequestState
from soong.shared.permissions.signing import ExpiredDecision
from soong.shared.storage.store import Store
from tests.contract.scene import ContractHarness
from tests.model.builders import make_decision, make_request


async def publish(store: Store, *key_ids: str) -> None:
    for number, key_id in enumerate(key_ids):
        said = {"principal": "ada", "reason": "a new host"}
        await store.keys.publish_key(key_id, bytes([number]) * 32, now_us=number, **said)


async def retire(store: Store, key_id: str, *, is_revoked: bool = False, at_us: int = 5) -> list[ExpiredDecision]:
    ended = await store.keys.retire_key(
        key_id, is_revoked=is_revoked, at_us=at_us, principal="ada", reason="it was time", now_us=6
    )
    return list(ended)


async def decided(scene: ContractHarness, claim: Claim, call: str, key_id: str) -> tuple[PermissionRequest, Decision]:
    request = await scene.raised(make_request(claim, call))
    decision = replace(make_decision(request), key_id=key_id)
    await scene.store.consent.decide(scene.own, decision, state=RequestState.DECIDED, events=(), now_us=scene.now_us)
    return request, decision


@pytest.mark.spec("PER-12")
async def test_a_key_is_listed_with_how_it_ended(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a", "key_b", "key_c")
    await retire(scene.store, "key_a")
    await retire(scene.store, "key_b")
    await retire(scene.store, "key_b", is_revoked=True, at_us=7)

    keys = await scene.store.keys.signing_keys()

    assert [(key.id, key.retired_us, key.revoked_us) for key in keys] == [
        ("key_a", 5, None),
        ("key_b", 5, 7),
        ("key_c", None, None),
    ]
    assert await scene.store.keys.signing_key("key_b") == keys[1]
    assert [key.state(6) for key in keys] == ["retired", "revoked", "active"]
    assert keys[0].state(4) == "retiring"


@pytest.mark.spec("PER-12", "OPS-12")
async def test_only_the_first_key_is_published_as_the_first(scene: ContractHarness) -> None:
    is_first = await scene.store.keys.publish_first_key("key_a", b"a" * 32, now_us=1)
    again = [await scene.store.keys.publish_first_key(name, b"b" * 32, now_us=2) for name in ("key_a", "key_b")]

    assert (is_first, again) == (True, [False, False])
    assert [(key.id, key.public_key) for key in await scene.store.keys.signing_keys()] == [("key_a", b"a" * 32)]
    assert len(await scene.store.audit.audit_entries(kinds=[AuditKind.KEY_PUBLISHED])) == 1


async def test_a_key_ends_once(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    await retire(scene.store, "key_a", at_us=5)

    assert await retire(scene.store, "key_a", at_us=9) == []

    key = await scene.store.keys.signing_key("key_a")
    assert key is not None
    assert key.retired_us == 5
    assert [entry.data["at_us"] for entry in await scene.store.audit.audit_entries(kinds=[AuditKind.KEY_RETIRED])] == [
        5
    ]


async def test_a_key_that_is_not_there_cannot_end(scene: ContractHarness) -> None:
    with pytest.raises(NotFoundError, match="key_none"):
        await retire(scene.store, "key_none")


@pytest.mark.spec("PER-12")
async def test_a_key_that_has_ended_signs_nothing(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    await retire(scene.store, "key_a", at_us=make_decision(make_request(claim)).decided_us - 1)

    with pytest.raises(ConflictError, match="soong keys rotate"):
        await decided(scene, claim, "call_1", "key_a")

    assert len(await scene.store.consent.pending(scene.own.session_id)) == 1


@pytest.mark.spec("PER-12")
async def test_a_key_that_ends_later_still_signs(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    await retire(scene.store, "key_a", at_us=make_decision(make_request(claim)).decided_us + 1)

    _, decision = await decided(scene, claim, "call_1", "key_a")

    assert await scene.store.consent.decision_of(decision.request_id) == decision


@pytest.mark.spec("PER-12", "PER-14")
async def test_revoking_a_key_takes_every_unused_decision_by_it_and_no_other(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a", "key_b")
    claim = await scene.start("a")
    run_id = claim.identity.run_id
    (unused, _), (_, used), (others, _) = [
        await decided(scene, claim, call, key) for call, key in (("c1", "key_a"), ("c2", "key_a"), ("c3", "key_b"))
    ]
    call = CallRow(run_id, "c2", "t", "e", True, "0" * 64, {}, {}, decision_id=used.id)
    await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us)

    expired = await retire(scene.store, "key_a", is_revoked=True)

    assert expired == [ExpiredDecision(scene.own.session_id, run_id, unused.id)]
    states = [(await scene.store.consent.request(key))[1] for key in (unused.id, used.request_id, others.id)]
    assert states == [RequestState.EXPIRED, RequestState.DECIDED, RequestState.DECIDED]
    events = [event for event in await scene.store.runs.events(run_id) if event.type == EventType.PERMISSION_EXPIRED]
    assert [event.data["request_id"] for event in events] == [unused.id]
    (entry,) = await scene.store.audit.audit_entries(kinds=[AuditKind.EXPIRED])
    assert (entry.data["request"], entry.data["key"]) == (unused.id, "key_a")


@pytest.mark.spec("PER-15.c")
@pytest.mark.parametrize("how", ["revoked", "unused in time"])
async def test_a_question_that_has_expired_has_left_the_list(scene: ContractHarness, how: str) -> None:
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    gone, _ = await decided(scene, claim, "call_1", "key_a")
    waiting = await scene.raised(make_request(claim, "call_2"))
    if how == "revoked":
        await retire(scene.store, "key_a", is_revoked=True)
    else:
        run_id = claim.identity.run_id
        assert await scene.store.consent.expire_decision(run_id, "call_1", claim.fence, now_us=scene.now_us)

    listed = await scene.store.consent.questions()
    everything = await scene.store.consent.questions(include_closed=True)

    assert [question.request.id for question in listed] == [waiting.id]
    assert {question.request.id: question.state for question in everything} == {
        gone.id: RequestState.EXPIRED,
        waiting.id: RequestState.PENDING,
    }
    assert [request.id for request in await scene.store.consent.pending(scene.own.session_id)] == [waiting.id]


@pytest.mark.spec("PER-12", "PER-14")
async def test_a_question_whose_decision_was_taken_away_is_asked_again(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    first, _ = await decided(scene, claim, "call_1", "key_a")
    await retire(scene.store, "key_a", is_revoked=True)

    again = await scene.raised(make_request(claim, "call_1"))

    assert again.id != first.id
    assert await scene.store.consent.decision_of(again.id) is None


@pytest.mark.spec("PER-12")
async def test_a_key_is_reported_when_it_is_published_and_when_it_ends(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    await publish(scene.store, "key_a")
    await retire(scene.store, "key_a", is_revoked=True)

    kinds = [AuditKind.KEY_PUBLISHED, AuditKind.KEY_RETIRED]
    published, ended = await scene.store.audit.audit_entries(kinds=kinds)

    assert published.data == {"key": "key_a", "public_key": "00" * 32, "principal": "ada", "reason": "a new host"}
    assert ended.data["principal"] == "ada"
    assert ended.data["reason"] == "it was time"
    assert ended.data["is_revoked"] is True


Spoil: TypeAlias = Callable[[ContractHarness, Decision, str], Awaitable[str]]


async def _another_text(_scene: ContractHarness, _decision: Decision, text: str) -> str:
    return text.replace('"reason":"', '"reason":"un')


async def _revoked(scene: ContractHarness, decision: Decision, text: str) -> str:
    await retire(scene.store, decision.key_id, is_revoked=True)
    return text


async def _retired(scene: ContractHarness, decision: Decision, text: str) -> str:
    await retire(scene.store, decision.key_id, at_us=decision.decided_us - 1)
    return text


@pytest.mark.spec("PER-12.b", "PER-16.b")
@pytest.mark.parametrize("spoil", [_another_text, _revoked, _retired], ids=["another text", "revoked", "retired"])
async def test_a_notified_decision_that_its_row_does_not_confirm_starts_nothing(
    scene: ContractHarness, spoil: Spoil
) -> None:
    claim, decision, text = await notified(scene)
    run_id = claim.identity.run_id
    call = CallRow(run_id, "c1", "t", "e", True, "0" * 64, {}, {}, decision_id=decision.id)
    said = await spoil(scene, decision, text)
    before = await scene.store.runs.events(run_id)

    with pytest.raises(UnconfirmedDecisionError):
        await scene.store.runs.start_call(
            call, claim.fence, events=[NewEvent("tool_started")], now_us=scene.now_us, notified=said
        )

    assert await scene.store.runs.events(run_id) == before
    assert await scene.store.runs.calls(run_id) == []
    assert await scene.store.audit.uses() == []


@pytest.mark.spec("PER-12.b")
async def test_a_notified_decision_starts_no_other_call(scene: ContractHarness) -> None:
    claim, decision, text = await notified(scene)
    other = CallRow(claim.identity.run_id, "c2", "t", "e", True, "0" * 64, {}, {}, decision_id=decision.id)

    with pytest.raises(UnconfirmedDecisionError):
        await scene.store.runs.start_call(other, claim.fence, events=(), now_us=scene.now_us, notified=text)


@pytest.mark.spec("PER-12.b")
async def test_a_notified_decision_is_used_once(scene: ContractHarness) -> None:
    claim, decision, text = await notified(scene)
    call = CallRow(claim.identity.run_id, "c1", "t", "e", True, "0" * 64, {}, {}, decision_id=decision.id)
    await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us, notified=text)

    with pytest.raises(AlreadyConsumedError):
        await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us, notified=text)

    (use,) = await scene.store.audit.uses()
    assert (use.decision_id, use.tool_call_id) == (decision.id, "c1")


async def notified(scene: ContractHarness) -> tuple[Claim, Decision, str]:
    """Decide a question of a held run; return the decision and its text as its worker is notified of it."""
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    request = await scene.raised(make_request(claim, "c1"))
    decision = replace(make_decision(request), key_id="key_a")
    receipt = await scene.store.consent.decide(
        scene.own, decision, state=RequestState.DECIDED, events=(), now_us=scene.now_us
    )
    assert notified_decision(receipt.text) == decision
    return claim, decision, receipt.text
