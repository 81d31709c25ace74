"""The audit log: written with what it tells or not at all, in chains, by owners and clients but not by workers."""

import asyncio

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import AlreadyConsumedError, AlreadyDecidedError, NotOwnerError
from soong.shared.engine.runs.events import EventType, NewEvent
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import ApprovalMode, Ownership
from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.access.token import Right, make_token
from soong.shared.permissions.audit_log import AuditEntry, AuditKind, AuditNote, Verifier
from soong.shared.permissions.request import Choice, PermissionRequest, RequestState
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness
from tests.model.builders import make_answer, make_decision, make_request, make_session, make_task

DECIDED = NewEvent(EventType.PERMISSION_DECIDED, {"rule": "", "channel": "terminal", "author": "person"})


async def ask(scene: ContractHarness, claim: Claim, call: str = "call_1") -> PermissionRequest:
    return await scene.raised(make_request(claim, call))


async def decide(scene: ContractHarness, request: PermissionRequest, choice: Choice, *events: NewEvent) -> None:
    decision = make_decision(request, choice)
    said = events or (DECIDED,)
    await scene.store.consent.decide(scene.own, decision, state=RequestState.DECIDED, events=said, now_us=scene.now_us)


async def told(store: Store, *kinds: AuditKind) -> list[AuditEntry]:
    return list(await store.audit.audit_entries(kinds=kinds))


@pytest.mark.spec("PER-19")
async def test_a_session_is_reported_with_the_rules_that_nobody_will_be_asked_about(scene: ContractHarness) -> None:
    session = make_session(policy={"v": 2, "rules": [{"effect": "allow", "tools": "code.write_file"}]})

    await scene.store.sessions.open_session(session)
    await scene.store.sessions.open_session(session)

    (entry,) = await scene.store.audit.audit_entries(session_id=session.id)
    assert (entry.kind, entry.time_us) == (AuditKind.SESSION_OPENED, session.created_us)
    assert entry.data["policy"] == session.policy
    assert entry.data["principal"] == session.principal


@pytest.mark.spec("PER-19")
async def test_an_answer_is_reported_with_its_principal_channel_choice_and_digest(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))

    await scene.store.consent.answer(make_answer(request, Choice.DENY, principal="ada"))

    (entry,) = await told(scene.store, AuditKind.ANSWER)
    assert entry.session_id == scene.own.session_id
    expected = {
        "principal": "ada",
        "channel": "terminal",
        "choice": "deny",
        "request": request.id,
        "input_digest": request.input_digest,
        "run": request.identity.run_id,
    }
    assert expected.items() <= entry.data.items()


@pytest.mark.spec("PER-15")
async def test_an_answer_that_is_written_again_is_the_same_and_that_of_another_is_reported_as_second(
    scene: ContractHarness,
) -> None:
    request = await ask(scene, await scene.start("a"))
    for _ in range(2):  # its commit was not confirmed
        await scene.store.consent.answer(make_answer(request, Choice.DENY, principal="ada"))
    assert await told(scene.store, AuditKind.SECURITY) == []

    with pytest.raises(AlreadyDecidedError):
        await scene.store.consent.answer(make_answer(request, principal="bob"))

    assert [entry.data["principal"] for entry in await told(scene.store, AuditKind.ANSWER)] == ["ada"]
    (entry,) = await told(scene.store, AuditKind.SECURITY)
    assert (entry.data["what"], entry.data["principal"]) == ("second_answer", "bob")


@pytest.mark.spec("PER-15")
async def test_an_answer_to_a_closed_question_is_a_security_event_in_both_logs(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await decide(scene, request, Choice.DENY)

    with pytest.raises(AlreadyDecidedError):
        await scene.store.consent.answer(make_answer(request, principal="eve"))

    (entry,) = await told(scene.store, AuditKind.SECURITY)
    assert (entry.data["what"], entry.data["state"], entry.data["principal"]) == ("late_answer", "decided", "eve")
    events = await scene.store.runs.events(claim.identity.run_id)
    assert (events[-1].type, events[-1].data["what"]) == (EventType.SECURITY, "late_answer")


@pytest.mark.spec("PER-19")
async def test_a_decision_is_reported_with_its_author_its_expiry_and_its_key(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))

    await decide(scene, request, Choice.ALLOW_ONCE)

    (entry,) = await told(scene.store, AuditKind.DECISION)
    decision = await scene.store.consent.decision_of(request.id)
    assert decision is not None
    expected = {
        "author": "person",
        "channel": "terminal",
        "choice": "allow_once",
        "decision": decision.id,
        "expires_us": decision.expires_us,
        "key": decision.key_id,
        "signature": decision.signature,
    }
    assert expected.items() <= entry.data.items()


@pytest.mark.spec("PER-04", "PER-19")
async def test_a_grant_is_reported_when_it_is_given_and_when_it_is_used(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    given, used = await ask(scene, claim), await ask(scene, claim, "call_2")
    await decide(scene, given, Choice.ALLOW_FOR_SESSION)
    by_grant = replace(make_decision(used), author="grant")
    events = [NewEvent(EventType.PERMISSION_DECIDED, {"grant": "dec_1"})]

    await scene.store.consent.decide(
        scene.own, by_grant, state=RequestState.DECIDED, events=events, now_us=scene.now_us
    )

    first, second = await told(scene.store, AuditKind.GRANT_GIVEN, AuditKind.GRANT_USED)
    assert (first.kind, first.data["scope"], first.data["principal"]) == ("grant_given", given.scope, "local")
    assert (second.kind, second.data["grant"], second.data["decision"]) == ("grant_used", "dec_1", by_grant.id)


@pytest.mark.spec("PER-12")
async def test_a_decision_that_is_refused_leaves_no_entry_of_it_and_a_stale_owner_is_notified(
    scene: ContractHarness,
) -> None:
    request = await ask(scene, await scene.start("a"))
    stale = Ownership(scene.own.session_id, scene.own.owner_id, scene.own.epoch - 1)

    with pytest.raises(NotOwnerError):
        await scene.store.consent.decide(
            stale, make_decision(request), state=RequestState.DECIDED, events=[DECIDED], now_us=scene.now_us
        )

    assert await told(scene.store, AuditKind.DECISION) == []
    (entry,) = await told(scene.store, AuditKind.SECURITY)
    assert (entry.data["what"], entry.data["epoch"]) == ("stale_owner", stale.epoch)


@pytest.mark.spec("PER-12")
async def test_what_the_owner_finds_wrong_is_reported_with_its_decision(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))

    await decide(scene, request, Choice.DENY, NewEvent(EventType.SECURITY, {"what": "forged_request"}), DECIDED)

    security, decision = await told(scene.store, AuditKind.SECURITY, AuditKind.DECISION)
    assert (security.data["what"], decision.data["choice"]) == ("forged_request", "deny")


@pytest.mark.spec("PER-12")
async def test_what_a_worker_refused_reaches_the_audit_log_once_by_the_owner_of_its_session(
    scene: ContractHarness,
) -> None:
    claim = await scene.start("a")
    event = NewEvent(EventType.SECURITY, {"what": "unknown_key"})
    await scene.store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=scene.now_us)

    owners = ("own_other", scene.own.owner_id, scene.own.owner_id)
    taken = [await scene.store.audit.take_reports(owner_id, now_us=scene.now_us) for owner_id in owners]

    assert taken == [0, 1, 0]
    (entry,) = await told(scene.store, AuditKind.SECURITY)
    assert (entry.data["what"], entry.data["reported_by"]) == ("unknown_key", "worker")
    assert (entry.session_id, entry.data["run"]) == (scene.own.session_id, claim.identity.run_id)


@pytest.mark.spec("PER-12")
async def test_reports_of_a_closed_session_without_an_owner_are_taken_by_any_once(scene: ContractHarness) -> None:
    session = make_session(closes_with_task=True, approval_mode=ApprovalMode.DENY)
    await scene.store.tasks.submit(session, make_task(session.id, "a"))
    claim = await scene.claim_one()
    event = NewEvent(EventType.SECURITY, {"what": "unknown_key"})
    await scene.store.runs.append(claim.identity.run_id, claim.fence, events=[event], now_us=scene.now_us)
    await scene.complete(claim)
    await scene.end_session(session.id)

    taken = [await scene.store.audit.take_reports(owner, now_us=scene.now_us) for owner in ("own_1", "own_2")]

    assert taken == [1, 0]
    (entry,) = await told(scene.store, AuditKind.SECURITY)
    assert (entry.data["what"], entry.session_id) == ("unknown_key", session.id)


@pytest.mark.spec("PER-15")
async def test_a_question_that_its_worker_took_back_is_reported(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await scene.withdraw(claim, "call_1", "cancelled")

    await scene.store.audit.take_reports(scene.own.owner_id, now_us=scene.now_us)

    (entry,) = await told(scene.store, AuditKind.WITHDRAWN)
    assert (entry.data["request"], entry.data["reason"]) == (request.id, "cancelled")


@pytest.mark.spec("PER-12")
async def test_a_second_use_of_a_decision_starts_nothing_and_is_reported(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    first = CallRow(claim.identity.run_id, "call_1", "t", "e1", True, "0" * 64, {}, {}, decision_id="dec_1")
    await scene.store.runs.start_call(first, claim.fence, events=(), now_us=scene.now_us)

    again = replace(first, tool_call_id="call_2")
    with pytest.raises(AlreadyConsumedError):
        await scene.store.runs.start_call(again, claim.fence, events=(), now_us=scene.now_us)

    assert [call.tool_call_id for call in await scene.store.runs.calls(claim.identity.run_id)] == ["call_1"]
    event = (await scene.store.runs.events(claim.identity.run_id))[-1]
    assert (event.type, event.data["what"]) == (EventType.SECURITY, "second_use")


@pytest.mark.spec("PER-12")
async def test_uses_are_reported_with_the_decision_and_the_input_of_their_call(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    request = await ask(scene, claim)
    await decide(scene, request, Choice.ALLOW_ONCE)
    decision = await scene.store.consent.decision_of(request.id)
    assert decision is not None
    for number, used in enumerate((decision.id, "dec_none")):
        call = CallRow(claim.identity.run_id, f"call_{number + 1}", "t", f"e{number}", True, "1" * 64, {}, {}, used)
        await scene.store.runs.start_call(call, claim.fence, events=(), now_us=scene.now_us)

    uses = {use.decision_id: use for use in await scene.store.audit.uses()}

    assert uses[decision.id].decision == decision
    assert uses[decision.id].input_digest == "1" * 64
    assert uses["dec_none"].decision is None
    assert len(await scene.store.audit.uses(after=min(uses))) == 1


async def test_a_token_is_reported_when_it_is_made_and_ended_without_its_secret(scene: ContractHarness) -> None:
    token, text = make_token("ada", [Right.APPROVE], now_us=scene.now_us)

    await scene.store.access.add_token(token)
    await scene.store.access.revoke_token(token.id, now_us=scene.now_us)
    await scene.store.access.revoke_token(token.id, now_us=scene.now_us)

    made, revoked = await told(scene.store, AuditKind.TOKEN_MADE, AuditKind.TOKEN_REVOKED)
    assert (made.data["principal"], made.data["rights"]) == ("ada", ["approve"])
    assert revoked.data["token"] == token.id
    assert text.removeprefix(f"soong_{token.id}_") not in str([made, revoked])
    assert token.digest not in str([made, revoked])


@pytest.mark.spec("EVT-05")
async def test_what_people_wrote_is_reported_without_secrets(scene: ContractHarness) -> None:
    request = await ask(scene, await scene.start("a"))
    secret = "ghp_" + "a" * 36

    await scene.store.consent.answer(replace(make_answer(request), reason=f"use {secret}"))

    (entry,) = await told(scene.store, AuditKind.ANSWER)
    assert entry.data["reason"] == "use [redacted]"


async def test_entries_come_in_order_by_page_by_session_and_since_an_instant(scene: ContractHarness) -> None:
    for number in range(5):
        note = AuditNote(AuditKind.SECURITY, {"number": number}, session_id=f"sess_{number % 2}")
        await scene.store.audit.note([note], now_us=1000 + number)
    kinds = [AuditKind.SECURITY]

    first = await scene.store.audit.audit_entries(kinds=kinds, limit=2)
    rest = await scene.store.audit.audit_entries(kinds=kinds, after=first[-1].ordinal)

    assert [entry.data["number"] for entry in (*first, *rest)] == [0, 1, 2, 3, 4]
    assert [entry.data["number"] for entry in await scene.store.audit.audit_entries(session_id="sess_1")] == [1, 3]
    assert [entry.data["number"] for entry in await scene.store.audit.audit_entries(kinds=kinds, since_us=1003)] == [
        3,
        4,
    ]


async def test_processes_that_write_at_once_make_a_log_that_holds(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    stores = [await open_another() for _ in range(3)]

    async def write(store: Store, place: int) -> None:
        for number in range(20):
            await store.audit.note([AuditNote(AuditKind.SECURITY, {"place": place, "number": number})], now_us=number)

    await asyncio.gather(*(write(store, place) for place, store in enumerate(stores)))

    verifier = Verifier()
    assert verifier.check(await scene.store.audit.audit_entries()) is None
    noted = [entry.data for entry in await told(scene.store, AuditKind.SECURITY)]
    assert sorted((data["place"], data["number"]) for data in noted) == [
        (place, number) for place in range(3) for number in range(20)
    ]
