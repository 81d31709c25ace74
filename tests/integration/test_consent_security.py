"""What was forged, altered or came from elsewhere is refused, and said so in the run's log and in the audit log."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from soong.orchestrator.approvals.deployment_key import open_key
from soong.orchestrator.operations.administration import KeyRing, verify
from soong.shared.core.errors import InvalidConfigError, UsageError
from soong.shared.core.jsontext import dump, parse_strict
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.tasks.step import Claim
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.permissions.policy import Mode, Policy
from soong.shared.permissions.request import Answer, Choice, Decision, Provenance, RequestState
from soong.shared.permissions.signing import Signer
from soong.shared.permissions.store import ClosedQuestion, ConsentStore, DecisionReceipt
from soong.shared.storage.sql.consent.consent import SqlConsentStore
from soong.shared.storage.sql.engine.rows import decision_body
from soong.shared.storage.sql.store import open_store
from soong.shared.tools.result import ErrorType
from tests.contract.databases import sqlite_copy
from tests.integration import consent
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, ConsentHarness, make_call, verdicts
from tests.model.builders import make_answer, make_provenance
from tests.waiting import until


async def security(bench: ConsentHarness, claim: Claim) -> tuple[list[str], list[str]]:
    """Return what security events there are: in the run's log, and in the audit log after the owner's sweep."""
    await bench.store.audit.take_reports(bench.ownership.owner_id, now_us=bench.clock.now_us())
    logged = [str(event.data["what"]) for event in await bench.events(claim) if event.type == EventType.SECURITY]
    told = [str(entry.data["what"]) for entry in await bench.store.audit.audit_entries(kinds=[AuditKind.SECURITY])]
    return logged, told


@pytest.mark.spec("PER-12", "PER-13.h", "PER-14")
@pytest.mark.parametrize(
    ("alter", "policy", "what"),
    [
        (lambda answer: replace(answer, provenance=make_provenance(is_run=True)), Policy(), "not_a_person"),
        (lambda answer: replace(answer, provenance=Provenance()), Policy(), "not_a_person"),
        (lambda answer: replace(answer, principal="mallory"), Policy(), "foreign_principal"),
        (lambda answer: replace(answer, input_digest="0" * 64), Policy(), "wrong_digest"),
        (lambda answer: replace(answer, choice=Choice.ALLOW_FOR_SESSION), Policy(mode=Mode.STRICT), "unoffered_choice"),
    ],
    ids=["from a run", "from nowhere", "another principal", "another input", "a choice that was not offered"],
)
async def test_an_answer_that_does_not_fit_fails_and_is_a_security_event(
    open_bench: OpenBench, alter: Callable[[Answer], Answer], policy: Policy, what: str
) -> None:
    async with open_bench(policy=policy) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        (request,) = await bench.pending()

        await bench.store.consent.answer(alter(make_answer(request)))
        await bench.settle()
        (verdict,) = await verdicts(asking)

        assert (verdict.is_allowed, verdict.author, verdict.error) == (False, "system", ErrorType.PERMISSION_FAILED)
        assert await security(bench, claim) == ([what], [what])
        assert not bench.broker.grants(bench.session_id)


class AlteringConsent(SqlConsentStore):
    """Somebody who may write into the database file: ``alter`` changes a decision's row before a worker reads it."""

    alter: Callable[[dict[str, Any]], object]

    async def decide(self, *given: Any, **named: Any) -> DecisionReceipt:
        decided = await super().decide(*given, **named)
        await self._alter(given[1])
        return decided

    async def _alter(self, decision: Decision) -> None:
        body = parse_strict(decision_body(decision))
        assert isinstance(body, dict)
        altered = {"body": dump(self.alter(body)), "id": decision.id}
        change = text("UPDATE decisions SET body = :body WHERE id = :id")
        await self._database.write(lambda tx: tx.connection.execute(change, altered).rowcount)


MALFORMED: dict[str, Callable[[dict[str, Any]], object]] = {
    "an unknown verdict": lambda body: {**body, "choice": "allow_always"},
    "an unknown error": lambda body: {**body, "error": "no_error"},
    "a field too few": lambda body: {name: value for name, value in body.items() if name != "expires_us"},
    "a field too many": lambda body: {**body, "args": {"path": "/"}},
    "no object": lambda _body: ["allow_once"],
}


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("alter", MALFORMED.values(), ids=MALFORMED)
async def test_a_decision_row_that_is_none_allows_nothing_and_is_reported(
    alter: Callable[[dict[str, Any]], object], sqlite_template: Path, tmp_path: Path
) -> None:
    plain = await open_store(sqlite_copy(sqlite_template, tmp_path))
    plain.consent = altering = AlteringConsent(*plain._parts)
    altering.alter = alter
    async with consent.open_bench(Callback(), store=plain) as bench:
        ((claim, worker),) = await bench.claim()

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_STALE)
        assert await security(bench, claim) == (["malformed_decision"], ["malformed_decision"])
    await plain.close()


# -- keys
async def with_key_file(bench: ConsentHarness, path: Path, callback: Callback | None = None) -> KeyRing:
    """Let the bench's broker sign with a key file, as an orchestrator does; return what operators hold."""
    keyring = KeyRing(bench.store.keys, path, bench.clock, "ada")
    await keyring.adopt(reason="the bench had another")
    bench.broker._context = replace(bench.broker._context, key=await open_key(bench.store, path, bench.clock))
    if callback is not None:
        bench.attach(callback)
    return keyring


@dataclass
class KeyedBench:
    """A bench that signs with a key file, a run that asks, and the id of the key that signed for its first call."""

    bench: ConsentHarness
    keyring: KeyRing
    callback: Callback
    claim: Claim
    worker: str
    first: str = ""

    async def is_allowed(self, call_id: str) -> bool:
        (verdict,) = await verdicts(self.bench.gate(self.claim, self.worker).decide(make_call(self.claim, call_id)))
        return verdict.is_allowed

    async def signed(self, call_id: str) -> tuple[str, bool]:
        """Return which key signed the decision of a call, and whether that allows it."""
        is_allowed = await self.is_allowed(call_id)
        decisions: list[Decision] = []

        async def is_committed() -> bool:  # its worker heard of it before that, and compares it when it uses it
            questions = await self.bench.store.consent.questions(session_id=self.bench.session_id, include_closed=True)
            decisions.extend(decision for decision in (questions[-1].decision,) if decision is not None)
            return bool(decisions)

        await until(is_committed)
        return decisions[0].key_id, is_allowed

    def exchange(self) -> Signer:
        """Put another key into the file."""
        theirs = Signer.generate()
        theirs.save(self.keyring.file)
        return theirs


@pytest.fixture
async def keyed(open_bench: OpenBench, tmp_path: Path) -> AsyncIterator[KeyedBench]:
    async with open_bench() as bench:
        callback = Callback()
        keyring = await with_key_file(bench, tmp_path / "signing.key", callback)
        ((claim, worker),) = await bench.claim()
        made = KeyedBench(bench, keyring, callback, claim, worker)
        made.first, _ = await made.signed("call_1")
        yield made


@pytest.mark.spec("PER-12")
async def test_a_rotated_key_signs_at_once_without_a_restart_and_the_old_ones_decisions_stay_good(
    keyed: KeyedBench,
) -> None:
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first

    ended = await keyring.rotate(reason="once a year")
    second, is_allowed = await keyed.signed("call_2")
    again = await keyed.is_allowed("call_1")

    assert (ended.key_id, ended.successor, is_allowed) == (first, second, True)
    assert first != second
    assert again, "what the old key signed is used"
    states = {key.id: key.state(bench.clock.now_us()) for key in await keyring.store.signing_keys()}
    assert states == {first: "retiring", second: "active"}
    assert (await verify(bench.store.audit, bench.store.keys)).holds


@dataclass(slots=True)
class RepeatingStore:
    """Repeats the message of a decision while its row is read, as one that was sent twice may come."""

    consent: ConsentStore
    notifier: Notifier
    worker: str

    async def settled(self, request_id: str) -> ClosedQuestion | None:
        found = await self.consent.settled(request_id)
        if found is not None and found.decision is not None:
            await self.notifier.permission_decided(request_id, self.worker)
            await asyncio.sleep(0.05)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consent, name)


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("is_repeated", [False, True], ids=["", "its message is repeated"])
async def test_what_a_retired_key_signs_later_is_refused_and_asked_again(keyed: KeyedBench, is_repeated: bool) -> None:
    """An owner whose clock is behind, or which has not seen the new file."""
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first
    early = bench.clock.now_us() - 1
    keyring.file.unlink()
    await keyring.adopt(reason="a new one")
    await bench.store.keys.retire_key(
        first, is_revoked=False, at_us=early, principal="ada", reason="", now_us=bench.clock.now_us()
    )
    if is_repeated:
        inbox = bench.inboxes[keyed.worker]
        inbox.store = cast(ConsentStore, RepeatingStore(inbox.store, bench.notifier, keyed.worker))

    assert await keyed.is_allowed("call_1")

    assert len(keyed.callback.shown) == 2
    assert await security(bench, keyed.claim) == (["retired_key"], ["retired_key"])


@pytest.mark.spec("PER-12", "PER-14")
async def test_a_stolen_key_voids_every_unused_decision_by_it_and_their_calls_are_asked_again(
    keyed: KeyedBench,
) -> None:
    bench, keyring, stolen = keyed.bench, keyed.keyring, keyed.first

    ended = await keyring.retire(stolen, is_revoked=True, reason="found in a log")
    assert await keyed.is_allowed("call_1")

    assert len(keyed.callback.shown) == 2, "the person was asked again"
    questions = await bench.store.consent.questions(session_id=bench.session_id, include_closed=True)
    assert [question.state for question in questions] == [RequestState.EXPIRED, RequestState.DECIDED]
    assert [one.request_id for one in ended.expired] == [questions[0].request.id]
    decision = questions[1].decision
    assert decision is not None
    assert decision.key_id == ended.successor


async def test_a_key_file_that_is_taken_away_goes_on_signing_and_a_new_one_leaves_old_decisions_good(
    keyed: KeyedBench,
) -> None:
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first
    keyring.file.unlink()

    still, is_allowed = await keyed.signed("call_2")
    with pytest.raises(InvalidConfigError, match="is missing, and 1 keys are published"):
        await open_key(bench.store, keyring.file, bench.clock)
    await keyring.adopt(reason="the old one is lost")
    key = await open_key(bench.store, keyring.file, bench.clock)  # the owner starts again
    await bench.broker.close()
    bench.broker._context = replace(bench.broker._context, key=key)
    again = await keyed.is_allowed("call_1")

    assert (still, is_allowed, again) == (first, True, True)
    assert keyring.current() not in ("", first)


async def key_events(bench: ConsentHarness) -> list[tuple[str, str]]:
    """Return what the audit log says of keys that were refused: which, and why."""
    entries = await bench.store.audit.audit_entries(kinds=["security"])
    return [
        (str(entry.data["key"]), str(entry.data["problem"]))
        for entry in entries
        if entry.data["what"] == "unpublished_key"
    ]


@pytest.mark.spec("PER-12", "OPS-12")
async def test_an_exchanged_key_file_is_neither_published_nor_signed_with_and_reported_once(keyed: KeyedBench) -> None:
    """A process that can write the key file, and no table, gets no key of its own published."""
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first
    theirs = keyed.exchange()

    signed = [await keyed.signed(f"call_{number}") for number in (2, 3)]

    assert signed == [(first, True)] * 2, "what was published goes on signing"
    assert [key.id for key in await keyring.store.signing_keys()] == [first]
    ((told, problem),) = await key_events(bench)
    assert told == theirs.key_id
    assert "soong keys adopt" in problem


@pytest.mark.spec("PER-12", "OPS-12")
async def test_an_owner_does_not_start_with_a_key_that_was_not_published(open_bench: OpenBench, tmp_path: Path) -> None:
    async with open_bench() as bench:
        keyring = await with_key_file(bench, tmp_path / "signing.key")
        theirs = Signer.generate()
        theirs.save(keyring.file)

        with pytest.raises(InvalidConfigError, match=f"{theirs.key_id} is not among the published keys"):
            await open_key(bench.store, keyring.file, bench.clock)

        assert theirs.key_id not in {key.id for key in await keyring.store.signing_keys()}
        assert [key for key, _ in await key_events(bench)] == [theirs.key_id]


@pytest.mark.spec("PER-12")
async def test_a_key_from_a_secret_store_signs_once_an_operator_has_adopted_it(keyed: KeyedBench) -> None:
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first
    new = keyed.exchange()  # the secret store exchanges it
    before, _ = await keyed.signed("call_2")

    adopted = await keyring.adopt(reason="from the vault")
    after, is_allowed = await keyed.signed("call_3")

    assert (before, after, adopted, is_allowed) == (first, new.key_id, new.key_id, True)
    entries = await bench.store.audit.audit_entries(kinds=["key_published"])
    assert entries[-1].data["key"] == new.key_id
    assert (entries[-1].data["principal"], entries[-1].data["reason"]) == ("ada", "from the vault")


@pytest.mark.spec("PER-12", "OPS-12")
async def test_rotating_replaces_a_key_that_was_never_published_and_does_not_publish_it(keyed: KeyedBench) -> None:
    keyring, first = keyed.keyring, keyed.first
    theirs = keyed.exchange()

    ended = await keyring.rotate(reason="somebody wrote the file")
    now, _ = await keyed.signed("call_2")

    assert (ended.key_id, ended.replaced, ended.successor) == ("", theirs.key_id, now)
    assert {key.id for key in await keyring.store.signing_keys()} == {first, now}


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("is_revoked", [False, True], ids=["retired", "revoked"])
async def test_a_key_that_has_ended_comes_back_by_no_exchange_of_the_file(keyed: KeyedBench, is_revoked: bool) -> None:
    bench, keyring, ended = keyed.bench, keyed.keyring, keyed.first
    copy = keyring.file.read_bytes()
    await keyring.retire(ended, is_revoked=is_revoked, reason="")
    good, _ = await keyed.signed("call_2")
    keyring.file.unlink()
    keyring.file.write_bytes(copy)
    keyring.file.chmod(0o600)
    await bench.pass_time(1)

    after, is_allowed = await keyed.signed("call_3")

    assert (after, is_allowed) == (good, True)
    with pytest.raises(UsageError, match="soong keys rotate"):
        await keyring.adopt(reason="")
    with pytest.raises(InvalidConfigError, match="soong keys rotate"):
        await open_key(bench.store, keyring.file, bench.clock)


@pytest.mark.spec("PER-12", "OPS-12")
async def test_a_key_file_that_cannot_be_used_any_more_stops_nobody_and_is_reported(keyed: KeyedBench) -> None:
    bench, keyring, first = keyed.bench, keyed.keyring, keyed.first
    keyed.exchange()
    keyring.file.chmod(0o644)

    signed = [await keyed.signed(f"call_{number}") for number in (2, 3)]

    assert signed == [(first, True)] * 2
    ((_, problem),) = await key_events(bench)
    assert "chmod 600" in problem
