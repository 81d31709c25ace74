"""Every way of not getting a yes is told apart, and the call gets its answer all the same (PER-05, PER-14)."""

import asyncio

import pytest

from soong.orchestrator.terminal.question_text import list_text
from soong.shared.core.identity import Role
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.permissions.audit_log import AuditKind
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Answer, Choice, PermissionDecision, PermissionRequest, RequestState
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.permissions.store import OpenQuestions
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from tests.integration import consent
from tests.integration.conftest import OpenBench
from tests.integration.consent import (
    CONFIGURED_SECRET,
    Callback,
    ConsentHarness,
    documents_of,
    make_call,
    next_owner,
    verdicts,
)
from tests.model.builders import make_answer, make_responder
from tests.model.memory import MemoryStore
from tests.waiting import dropped, until


async def ask(bench: ConsentHarness) -> "tuple[asyncio.Task[Verdict], PermissionRequest]":
    """Raise a question and wait until it is on the broker."""
    ((claim, worker),) = await bench.claim()
    bench.claims.append(claim)
    asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
    (request,) = await bench.pending()
    await bench.settle()
    return asking, request


async def ask_at_once(bench: ConsentHarness) -> "asyncio.Task[Verdict]":
    """Raise a question that may be settled before anybody could look at it."""
    ((claim, worker),) = await bench.claim()
    bench.claims.append(claim)
    return asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))


async def ended(bench: ConsentHarness, asking: "asyncio.Task[Verdict]", error: ErrorType) -> Verdict:
    """Wait for the verdict; hold it and the run's log to ``error``."""
    async with asyncio.timeout(10):
        verdict = await asking
    assert (verdict.is_allowed, verdict.author, verdict.error) == (False, "system", error)
    failed = await bench.event(bench.claims[-1], EventType.PERMISSION_FAILED)
    assert (failed.data["reason"], failed.data["message"]) == (str(error), verdict.reason)
    decided = await bench.event(bench.claims[-1], EventType.PERMISSION_DECIDED)
    assert decided.data["error"] == str(error)
    return verdict


@pytest.mark.spec("PER-05.a", "PER-14.b/no-callback")
async def test_with_nobody_attached_it_is_denied_as_no_callback_after_the_wait(open_bench: OpenBench) -> None:
    """anthropics/claude-code#36042, openai/codex#23664: background children were blocked by prompts nobody saw.

    Nobody there is a no of its own kind (QwenLM/qwen-code#4928).
    """
    async with open_bench() as bench:
        asking, _ = await ask(bench)

        await bench.pass_time(bench.settings.responder_wait_s - 1)
        await bench.settle()
        assert not asking.done()
        await bench.pass_time(1)

        verdict = await ended(bench, asking, ErrorType.PERMISSION_NO_CALLBACK)
        assert "30 s" in verdict.reason


RAISED = {
    "an exception": (RuntimeError("no terminal"), "the callback raised RuntimeError: no terminal"),
    "a base exception": (BaseExceptionGroup("panic", [GeneratorExit("in Rust")]), "raised BaseExceptionGroup: panic"),
    "a cancellation": (asyncio.CancelledError(), "cancelled"),
}


@pytest.mark.spec("PER-05.c", "PER-14.b/callback-error")
@pytest.mark.parametrize(("raised", "words"), RAISED.values(), ids=RAISED)
async def test_a_callback_that_raises_is_denied_as_failed_and_its_words_reach_the_reason(
    open_bench: OpenBench, raised: BaseException, words: str
) -> None:
    async def raising(_request: PermissionRequest) -> PermissionDecision:
        raise raised

    async with open_bench(raising) as bench:
        verdict = await ended(bench, await ask_at_once(bench), ErrorType.PERMISSION_FAILED)

        assert words in verdict.reason


@pytest.mark.spec("PER-05", "PER-14")
@pytest.mark.parametrize("nonsense", [None, True, "allow_once", PermissionDecision("yes")], ids=repr)  # type: ignore[arg-type]  # that is the point
async def test_a_callback_that_returns_no_decision_is_denied_as_failed(open_bench: OpenBench, nonsense: object) -> None:
    async def careless(_request: PermissionRequest) -> PermissionDecision:
        return nonsense  # type: ignore[return-value]  # as an untyped callback would

    async with open_bench(careless) as bench:
        verdict = await ended(bench, await ask_at_once(bench), ErrorType.PERMISSION_FAILED)

        assert "not a PermissionDecision" in verdict.reason


@pytest.mark.spec("PER-05.b", "PER-14.b/timeout", "PER-14.c/event", "PER-14.c/audit")
async def test_an_attached_callback_that_stays_silent_is_denied_as_timeout_and_stopped(open_bench: OpenBench) -> None:
    silent = Callback(gate=asyncio.Event())
    async with open_bench(silent) as bench:
        asking, _ = await ask(bench)
        await until(lambda: silent.at_once == 1)

        await bench.pass_time(bench.settings.permission_timeout_s - 1)
        await bench.settle()
        assert not asking.done()
        await bench.pass_time(1)

        await ended(bench, asking, ErrorType.PERMISSION_TIMEOUT)
        await until(lambda: silent.at_once == 0)
        decided = await bench.event(bench.claims[-1], EventType.PERMISSION_DECIDED)
        (noted,) = await bench.store.audit.audit_entries(kinds=[AuditKind.DECISION])
        assert (decided.data["author"], decided.data["error"]) == ("system", "permission_timeout")
        assert (noted.data["author"], noted.data["error"]) == ("system", "permission_timeout")
        assert await bench.store.audit.audit_entries(kinds=[AuditKind.ANSWER]) == []


class LateStore(MemoryStore):
    """Somebody answers just after the owner has read what waits."""

    late: Answer | None = None

    async def open_questions(self, session_id: str, *, limit: int) -> OpenQuestions | None:
        found: OpenQuestions | None = await super().open_questions(session_id, limit=limit)
        if self.late is not None:
            await self.answer(self.late)
        return found


@pytest.mark.spec("PER-05", "PER-15")
async def test_an_answer_that_comes_while_the_owner_finds_the_time_over_still_counts() -> None:
    store, silent = LateStore(), Callback(gate=asyncio.Event())
    async with consent.open_bench(silent, store=store) as bench:
        asking, request = await ask(bench)
        await until(lambda: silent.at_once == 1)

        store.late = make_answer(request)
        await bench.pass_time(bench.settings.permission_timeout_s)

        (verdict,) = await verdicts(asking)
        assert (verdict.is_allowed, verdict.author) == (True, "person")


@pytest.mark.spec("EVT-05", "PER-19")
@pytest.mark.parametrize(
    ("secret", "seen"),
    [
        pytest.param("ghp_" + "a" * 36, "[redacted]", id="known by its form"),
        pytest.param(CONFIGURED_SECRET, CONFIGURED_SECRET, id="configured"),
    ],
)
async def test_a_secret_in_a_persons_reason_reaches_no_log(open_bench: OpenBench, secret: str, seen: str) -> None:
    async def callback(_request: PermissionRequest) -> PermissionDecision:
        return PermissionDecision(Choice.DENY, f"use {secret}", {"note": secret})

    async with open_bench(callback) as bench:
        (verdict,) = await verdicts(await ask_at_once(bench))

        event = await bench.event(bench.claims[0], EventType.PERMISSION_DECIDED)
        assert (event.data["reason"], event.data["metadata"]) == ("use [redacted]", {"note": "[redacted]"})
        assert event.data["request_id"]
        assert verdict.reason == f"use {seen}"  # the row of an answer is without what is known by its form


@pytest.mark.spec("PER-14.b/denied")
async def test_a_persons_no_is_denied_as_such_and_is_no_failure_of_asking(open_bench: OpenBench) -> None:
    async with open_bench(Callback([Choice.DENY])) as bench:
        asking = await ask_at_once(bench)

        (verdict,) = await verdicts(asking)

        assert (verdict.author, verdict.error) == ("person", ErrorType.PERMISSION_DENIED)
        decided = await bench.event(bench.claims[0], EventType.PERMISSION_DECIDED)
        assert (decided.data["author"], decided.data["error"]) == ("person", "permission_denied")
        assert EventType.PERMISSION_FAILED not in {event.type for event in await bench.events(bench.claims[0])}


@pytest.mark.spec("PER-14.b/asker-gone", "PER-15.a")
async def test_a_question_whose_asker_is_gone_is_withdrawn_with_that_reason(open_bench: OpenBench) -> None:
    callback = Callback(gate=asyncio.Event())
    async with open_bench(callback) as bench:
        asking, request = await ask(bench)
        await until(lambda: callback.at_once == 1)

        await dropped(asking)

        withdrawn = await bench.event(bench.claims[0], EventType.PERMISSION_WITHDRAWN)
        assert (withdrawn.data["request_id"], withdrawn.data["reason"]) == (request.id, "its call was cancelled")
        assert (await bench.store.consent.request(request.id))[1] is RequestState.WITHDRAWN
        assert await bench.pending(0) == []
        await until(lambda: callback.at_once == 0)
        found = {event.type for event in await bench.events(bench.claims[0])}
        assert not found & {EventType.PERMISSION_DECIDED, EventType.PERMISSION_FAILED}


@pytest.mark.spec("PER-14")
async def test_a_session_without_anybody_to_ask_denies_at_once(open_bench: OpenBench) -> None:
    async with open_bench(Callback(), mode=ApprovalMode.DENY) as bench:
        asking = await ask_at_once(bench)

        verdict = await ended(bench, asking, ErrorType.PERMISSION_NO_CALLBACK)

        assert "--allow" in verdict.reason


@pytest.mark.spec("PER-14")
async def test_a_responder_that_goes_away_and_does_not_come_back_is_no_callback(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        responder = make_responder(bench.session_id)
        await bench.store.sessions.attach_responder(responder)
        asking, _ = await ask(bench)

        await bench.pass_time(bench.settings.responder_lease_s)  # its beat has not moved: it is away from now on
        await bench.settle()
        await bench.pass_time(bench.settings.responder_wait_s - 1)
        await bench.settle()
        assert not asking.done()
        await bench.pass_time(1)

        await ended(bench, asking, ErrorType.PERMISSION_NO_CALLBACK)
        assert not await bench.store.sessions.responders(bench.session_id)


async def test_a_responder_that_beats_keeps_the_question_open(open_bench: OpenBench) -> None:
    async with open_bench() as bench:
        responder = make_responder(bench.session_id)
        await bench.store.sessions.attach_responder(responder)
        asking, _ = await ask(bench)

        for _ in range(10):
            await bench.store.sessions.beat_responder(responder.id)
            await bench.pass_time(10)
            await bench.settle()

        assert not asking.done()
        asking.cancel()


@pytest.mark.spec("PER-10")
async def test_a_deny_rule_wins_over_a_callback_that_would_say_yes(open_bench: OpenBench) -> None:
    callback = Callback()
    policy = Policy((Rule(Effect.DENY, "code.write_*", source="runtime"), Rule(Effect.ALLOW, "code.write_file")))
    async with open_bench(callback, policy=policy) as bench:
        ((claim, worker),) = await bench.claim()

        # The worker obeys the policy by itself; a worker with an older policy is refused by the owner.
        own, older = await verdicts(
            bench.gate(claim, worker).decide(make_call(claim)),
            bench.gate(claim, worker, Policy()).decide(make_call(claim, "call_2")),
        )

        assert (own.author, own.error) == ("rule", ErrorType.PERMISSION_DENIED)
        assert (older.author, older.error) == ("rule", ErrorType.PERMISSION_DENIED)
        assert not callback.shown


@pytest.mark.spec("PER-06", "PER-13.a")
async def test_a_question_that_is_asked_again_has_lost_nothing(open_bench: OpenBench) -> None:
    """langchain-ai/deepagentsjs#130, #131: an interrupt of a child arrived without what it was about."""
    first, second = Callback(gate=asyncio.Event()), Callback()
    async with open_bench(first) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        await until(lambda: first.at_once == 1)

        await bench.detach()
        await next_owner(bench)
        bench.attach(second)
        await bench.settle()
        await verdicts(asking)

        (shown,), (again,) = first.shown, second.shown
        assert again == shown
        assert again.arguments == {"path": "/work/out/report.md", "content": "words"}


@pytest.mark.spec("PER-06", "CARD-3")
async def test_a_question_names_the_child_and_the_model_that_it_is_from(open_bench: OpenBench) -> None:
    """anomalyco/opencode#20280: which sub-agent asks, and which provider's model it is, could not be seen."""
    async with open_bench() as bench:
        claim, worker = await bench.claim_as(definition="reviewer", model="anthropic:claude-small")
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker).decide(make_call(claim)))
        (request,) = await bench.pending()

        text = list_text(documents_of(await bench.store.consent.questions()), bench.clock.now_us())

        identity = claim.identity
        assert request.identity == identity
        assert (identity.definition, identity.model) == ("reviewer", "anthropic:claude-small")
        for word in ("reviewer", "anthropic:claude-small", identity.agent_id, identity.step_title):
            assert word in text
        await dropped(asking)


# -- one path of consent for every role: no agent asks another way, and every decision reaches the run that asked
@pytest.mark.spec("PER-01.b", "PER-13.a", "CARD-3")
@pytest.mark.parametrize("choice", list(Choice))
@pytest.mark.parametrize("role", list(Role))
async def test_every_role_asks_the_same_callback_and_every_decision_resumes(
    open_bench: OpenBench, role: Role, choice: Choice
) -> None:
    """anthropics/claude-code#34095: asked at times, denied in silence at others; google/adk-web#121.

    All three decisions resume in the run that asked (google/adk-python#3649, langchain-ai/deepagents#554).
    """
    silent, later = Callback(gate=asyncio.Event()), Callback([Choice.DENY])
    async with open_bench(silent) as bench:
        claim, worker_id = await bench.claim_as(role=role, definition=str(role))
        asking = asyncio.get_running_loop().create_task(bench.gate(claim, worker_id).decide(make_call(claim)))
        (request,) = await bench.pending()
        await until(lambda: silent.at_once == 1)
        await bench.broker.close()
        await bench.store.consent.answer(make_answer(request, choice))
        await bench.detach()
        await next_owner(bench)
        bench.attach(later)
        await bench.settle()

        (verdict,) = await verdicts(asking)

        decided = (await bench.event(claim, EventType.PERMISSION_DECIDED)).data
        assert (request.identity.role, request.identity.run_id) == (role, claim.identity.run_id)
        assert verdict.is_allowed is (choice is not Choice.DENY)
        assert (decided["choice"], decided["author"], decided["request_id"]) == (str(choice), "person", request.id)
        assert [shown.identity for shown in silent.shown] == [request.identity]
        assert later.shown == []
