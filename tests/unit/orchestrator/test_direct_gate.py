"""Consent for calls without a model: every way of getting a yes, and every way of not getting one told apart."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from soong.orchestrator.direct.gate import DirectGate
from soong.shared.engine.runs.events import NewEvent
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.request import Choice, PermissionCallback, PermissionDecision, PermissionRequest
from soong.shared.permissions.rules import parse_allow
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import Target
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType
from tests.model.clock import START_US, FakeClock
from tests.unit.permissions.calls import make_call, make_path


@dataclass
class Person:
    """A callback that keeps what it was asked and gives its answers one after another."""

    answers: list[Any]
    asked: list[PermissionRequest] = field(default_factory=list)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.asked.append(request)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, BaseException):
            raise answer
        return PermissionDecision(answer, "said so") if isinstance(answer, Choice) else answer


@dataclass
class GateHarness:
    gate: DirectGate
    events: list[NewEvent]

    async def decide(self, call: GateCall) -> Verdict:
        return await self.gate.decide(call)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def make_broker(callback: PermissionCallback | None = None, *allow: str, policy: Policy | None = None) -> GateHarness:
    events: list[NewEvent] = []

    async def record(new: Sequence[NewEvent]) -> None:
        events.extend(new)

    mode = ApprovalMode.DENY if callback is None else ApprovalMode.PROMPT
    gate = DirectGate(
        session=Session("sess_1", "/project", "/project", mode, START_US),
        policy=(policy or Policy()).with_rules(parse_allow(text) for text in allow),
        callback=callback,
        channel="test",
        record=record,
        clock=FakeClock(),
        timeout=timedelta(milliseconds=30),
        decision_ttl=timedelta(hours=1),
        home="/home/ada",
        redactor=redactor(["hunter2hunter2"]),
    )
    return GateHarness(gate, events)


@pytest.mark.spec("PER-03", "PER-19")
async def test_a_persons_yes_runs_one_call_and_is_recorded() -> None:
    person = Person([Choice.ALLOW_ONCE, Choice.DENY])
    broker = make_broker(person)

    first, second = await broker.decide(make_call()), await broker.decide(make_call())

    assert (first.is_allowed, first.author, first.reason) == (True, "person", "said so")
    assert (second.is_allowed, second.error, second.reason) == (False, ErrorType.PERMISSION_DENIED, "said so")
    assert broker.types == ["permission_requested", "permission_decided"] * 2
    assert first.decision_id == broker.events[1].data["decision_id"]


@pytest.mark.spec("PER-04.c")
async def test_a_deny_is_not_remembered() -> None:
    broker = make_broker(Person([Choice.DENY, Choice.ALLOW_ONCE]))

    assert not (await broker.decide(make_call())).is_allowed
    assert (await broker.decide(make_call())).is_allowed


@pytest.mark.spec("PER-07")
async def test_of_equal_questions_at_once_one_is_asked_and_its_grant_answers_all() -> None:
    person = Person([Choice.ALLOW_FOR_SESSION])
    broker = make_broker(person)

    verdicts = await asyncio.gather(*(broker.decide(make_call()) for _ in range(5)))

    assert [verdict.is_allowed for verdict in verdicts] == [True] * 5
    assert len(person.asked) == 1


@pytest.mark.spec("PER-21")
async def test_a_grant_carries_nothing_out_after_strangers_text_was_read() -> None:
    person = Person([Choice.ALLOW_FOR_SESSION, Choice.DENY])
    broker = make_broker(person)
    fetch = make_call(
        "web.fetch",
        tags=frozenset({"network"}),
        target=Target(kind="host", scope="example.org", shown="example.org", host="example.org"),
    )

    await broker.decide(fetch)
    before = await broker.decide(fetch)
    broker.gate.is_tainted = lambda: True
    after = await broker.decide(fetch)

    assert (before.author, after.error) == ("grant", ErrorType.PERMISSION_DENIED)


WRONG_ANSWERS = {
    "raises": (RuntimeError("the pager is down"), "RuntimeError: the pager is down"),
    "its own timeout": (TimeoutError(), "TimeoutError"),
    "cancels itself": (asyncio.CancelledError(), "cancelled from within"),
    "returns nothing": (None, "returned None"),
    "returns a word": ("allow_once", "returned 'allow_once'"),
    "an unknown choice": (PermissionDecision("always"), "not a PermissionDecision"),  # type: ignore[arg-type]
}


@pytest.mark.spec("PER-05", "PER-14")
@pytest.mark.parametrize(("answer", "told"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
async def test_a_callback_that_fails_denies_and_says_how(answer: object, told: str) -> None:
    broker = make_broker(Person([answer]))

    verdict = await broker.decide(make_call())

    assert (verdict.is_allowed, verdict.error, verdict.author) == (False, ErrorType.PERMISSION_FAILED, "system")
    assert told in verdict.reason
    assert broker.types == ["permission_requested", "permission_failed", "permission_decided"]


@pytest.mark.spec("PER-08")
async def test_a_grant_that_was_not_offered_is_a_failed_answer() -> None:
    broker = make_broker(Person([Choice.ALLOW_FOR_SESSION]))

    verdict = await broker.decide(make_call(target=make_path("/x")))

    assert verdict.error is ErrorType.PERMISSION_FAILED
    assert len(broker.gate.grants) == 0


@pytest.mark.spec("PER-05", "PER-14")
@pytest.mark.parametrize("is_stubborn", [False, True], ids=["ends", "swallows its cancellation"])
async def test_a_callback_that_does_not_answer_in_time_denies_and_a_late_yes_counts_for_nothing(
    is_stubborn: bool,
) -> None:
    async def late(_request: PermissionRequest) -> PermissionDecision:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not is_stubborn:
                raise
        return PermissionDecision(Choice.ALLOW_FOR_SESSION)

    broker = make_broker(late)

    verdict = await broker.decide(make_call())

    assert (verdict.is_allowed, verdict.error) == (False, ErrorType.PERMISSION_TIMEOUT)
    assert len(broker.gate.grants) == 0


@pytest.mark.spec("PER-14")
async def test_a_question_whose_call_is_cancelled_is_withdrawn() -> None:
    is_asked, was_cancelled = asyncio.Event(), asyncio.Event()

    async def waiting(_request: PermissionRequest) -> PermissionDecision:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()
        raise AssertionError

    broker = make_broker(waiting)
    broker.gate.timeout = timedelta(minutes=1)
    asking = asyncio.create_task(broker.decide(make_call()))
    await is_asked.wait()

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert was_cancelled.is_set()
    assert broker.types == ["permission_requested", "permission_withdrawn"]
