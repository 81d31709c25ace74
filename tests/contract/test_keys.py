"""Public keys as rows, and how they end."""

import pytest
from msgspec.structs import force_setattr, replace

from soong.shared.core.errors import AlreadyConsumedError, ConflictError, NotFoundError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.access.token import Right, digest_of, make_token, read_token
from soong.shared.permissions.audit_log import AuditKind
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


async def test_a_key_ends_once_and_only_if_it_is_there(scene: ContractHarness) -> None:
    await publish(scene.store, "key_a")
    await retire(scene.store, "key_a", at_us=5)

    assert await retire(scene.store, "key_a", at_us=9) == []

    key = await scene.store.keys.signing_key("key_a")
    assert key is not None
    assert key.retired_us == 5
    assert [entry.data["at_us"] for entry in await scene.store.audit.audit_entries(kinds=[AuditKind.KEY_RETIRED])] == [
        5
    ]

    with pytest.raises(NotFoundError, match="key_none"):
        await retire(scene.store, "key_none")


@pytest.mark.spec("PER-12")
async def test_a_key_that_has_ended_signs_nothing_and_one_that_ends_later_still_signs(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    decided_us = make_decision(make_request(claim)).decided_us
    for key_id, at_us in (("key_a", decided_us - 1), ("key_b", decided_us + 1)):
        await publish(scene.store, key_id)
        await retire(scene.store, key_id, at_us=at_us)

    with pytest.raises(ConflictError, match="soong keys rotate"):
        await decided(scene, claim, "call_1", "key_a")
    assert len(await scene.store.consent.pending(scene.own.session_id)) == 1

    _, decision = await decided(scene, claim, "call_2", "key_b")
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


async def allowed(scene: ContractHarness) -> tuple[Claim, Decision]:
    """Decide a question of a held run, for call c1."""
    await publish(scene.store, "key_a")
    claim = await scene.start("a")
    _, decision = await decided(scene, claim, "c1", "key_a")
    return claim, decision


@pytest.mark.spec("PER-12.b", "PER-16.b")
async def test_a_decision_that_a_revoked_key_took_away_starts_nothing(scene: ContractHarness) -> None:
    claim, decision = await allowed(scene)
    run_id = claim.identity.run_id
    call = CallRow(run_id, "c1", "t", "e", True, "0" * 64, {}, {}, decision_id=decision.id)
    await retire(scene.store, decision.key_id, is_revoked=True)

    with pytest.raises(AlreadyConsumedError):
        await scene.store.runs.start_call(call, claim.fence, events=[NewEvent("tool_started")], now_us=scene.now_us)

    assert await scene.store.runs.calls(run_id) == []
    assert await scene.store.audit.uses() == []


@pytest.mark.spec("PER-12.b")
async def test_a_decision_starts_no_other_call(scene: ContractHarness) -> None:
    claim, decision = await allowed(scene)
    other = CallRow(claim.identity.run_id, "c2", "t", "e", True, "0" * 64, {}, {}, decision_id=decision.id)

    with pytest.raises(AlreadyConsumedError):
        await scene.store.runs.start_call(other, claim.fence, events=(), now_us=scene.now_us)

    assert await scene.store.audit.uses() == []


# -- aPI tokens as rows
NOW_US = 1_000_000


def secret_of(text: str) -> str:
    read = read_token(text)
    assert read is not None
    return read[1]


async def test_a_token_comes_back_as_it_was_made_and_an_unknown_one_cannot_be_revoked(
    store: Store, other_store: Store
) -> None:
    token, _ = make_token("ada", [Right.RUN, Right.APPROVE], now_us=NOW_US, expires_us=NOW_US + 5)

    await store.access.add_token(token)

    assert await other_store.access.token(token.id) == token
    assert await other_store.access.token("tok_unknown") is None

    with pytest.raises(NotFoundError, match="token"):
        await store.access.revoke_token("tok_unknown", now_us=NOW_US)


async def test_tokens_are_listed_in_the_order_they_were_made(store: Store) -> None:
    made = [make_token(name, [Right.READ], now_us=NOW_US)[0] for name in ("ada", "bob", "eve")]
    for token in made:
        await store.access.add_token(token)

    assert list(await store.access.tokens()) == made


async def test_an_id_is_given_once(store: Store) -> None:
    token, _ = make_token("ada", [Right.READ], now_us=NOW_US)
    await store.access.add_token(token)
    thief, _ = make_token("eve", [Right.APPROVE], now_us=NOW_US)
    force_setattr(thief, "id", token.id)

    with pytest.raises(ConflictError):
        await store.access.add_token(thief)

    assert await store.access.token(token.id) == token


async def test_a_token_is_revoked_once_and_for_good(store: Store, other_store: Store) -> None:
    token, _ = make_token("ada", [Right.READ], now_us=NOW_US)
    await store.access.add_token(token)

    assert await store.access.revoke_token(token.id, now_us=NOW_US + 1)
    assert not await other_store.access.revoke_token(token.id, now_us=NOW_US + 2)

    stands = await other_store.access.token(token.id)
    assert stands is not None
    assert stands.revoked_us == NOW_US + 1
    assert stands.problem(NOW_US + 9) == "revoked"


@pytest.mark.spec("OPS-04.d")
async def test_a_code_becomes_a_token_once(store: Store, other_store: Store) -> None:
    token, text = make_token("ada", [Right.READ], now_us=NOW_US, sign_in_by_us=NOW_US + 60)
    code, mine, thiefs = digest_of(secret_of(text)), digest_of("mine"), digest_of("a thief's")
    await store.access.add_token(token)

    taken = await store.access.sign_in(token.id, code_digest=code, digest=mine, now_us=NOW_US + 1)
    again = await other_store.access.sign_in(token.id, code_digest=code, digest=thiefs, now_us=NOW_US + 2)

    assert token.problem(NOW_US) == "the code of a sign-in"
    assert again is None
    assert taken == await other_store.access.token(token.id)
    assert taken is not None
    assert taken.is_proved_by("mine")
    assert not taken.problem(NOW_US + 3)


@pytest.mark.parametrize("why", ["late", "wrong", "revoked", "a token"])
async def test_what_is_no_good_code_becomes_no_token(store: Store, why: str) -> None:
    token, text = make_token(
        "ada", [Right.READ], now_us=NOW_US, sign_in_by_us=None if why == "a token" else NOW_US + 60
    )
    code = digest_of("a guess" if why == "wrong" else secret_of(text))
    await store.access.add_token(token)
    if why == "revoked":
        await store.access.revoke_token(token.id, now_us=NOW_US)
    then_us = NOW_US + (60 if why == "late" else 1)

    taken = await store.access.sign_in(token.id, code_digest=code, digest=digest_of("mine"), now_us=then_us)

    assert taken is None
    stands = await store.access.token(token.id)
    assert stands is not None
    assert stands.digest == token.digest
