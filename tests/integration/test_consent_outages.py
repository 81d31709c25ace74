"""The database goes away for a while: questions, deciding and answering wait, and nothing is lost or done twice."""

import asyncio
from collections.abc import Callable

import pytest

from soong.shared.core.errors import ConflictError, UnavailableError
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import Ownership
from soong.shared.permissions.request import Answer, Choice, Decision
from soong.shared.permissions.store import ClosedQuestion, DecisionReceipt, OpenQuestions
from tests.integration import consent
from tests.integration.consent import Callback, make_call, verdicts
from tests.model.memory import MemoryStore
from tests.waiting import until


class AwayStore(MemoryStore):
    """A database that does not answer the calls named in ``away``; ``refused`` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        self.refused: dict[str, int] = {}

    def _check(self, name: str) -> None:
        if name in self.away:
            self.refused[name] = self.refused.get(name, 0) + 1
            raise UnavailableError("the database does not answer")

    async def settled(self, request_id: str) -> ClosedQuestion | None:
        self._check("settled")
        found: ClosedQuestion | None = await super().settled(request_id)
        return found

    async def open_questions(self, session_id: str, *, limit: int) -> OpenQuestions | None:
        self._check("open_questions")
        found: OpenQuestions | None = await super().open_questions(session_id, limit=limit)
        return found

    async def answer(self, answer: Answer) -> None:
        self._check("answer")
        await super().answer(answer)

    async def decide(self, ownership: Ownership, decision: Decision, **rest: object) -> DecisionReceipt:
        if decision.tool_call_id in self.away:
            raise ConflictError(f"{decision.tool_call_id} cannot be decided")
        return await super().decide(ownership, decision, **rest)  # type: ignore[arg-type,no-any-return,unused-ignore]  # passed on

    async def withdraw(self, *given: object, **named: object) -> None:
        self._check("withdraw")
        await super().withdraw(*given, **named)  # type: ignore[arg-type,unused-ignore]  # passed on


@pytest.fixture
def store() -> AwayStore:
    return AwayStore()


async def refused(store: AwayStore, *names: str) -> None:
    """Wait until each of these calls was tried in vain."""
    tried: Callable[[], bool] = lambda: all(store.refused.get(name, 0) for name in names)  # noqa: E731
    await until(tried)


@pytest.mark.parametrize("away", ["open_questions", "answer", "settled"])
async def test_a_question_is_answered_when_the_database_is_back(store: AwayStore, away: str) -> None:
    callback = Callback()
    async with consent.open_bench(store=store) as bench:
        bench.attach(callback)
        ((claim, worker),) = await bench.claim()

        store.away = {away}
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await refused(store, away)
        assert not asking.done()
        store.away = set()
        await bench.broker.review([bench.session_id])

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed
        assert len(callback.shown) == 1
        decided = [event for event in await bench.events(claim) if event.type == EventType.PERMISSION_DECIDED]
        assert len(decided) == 1


async def test_a_terminal_outlasts_the_database(store: AwayStore) -> None:
    person = Callback()
    async with consent.open_bench(store=store) as bench:
        store.away = {"open_questions", "answer"}
        bench.attach(person)
        ((claim, worker),) = await bench.claim()
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await refused(store, "open_questions")
        store.away = {"answer"}
        await refused(store, "answer")

        store.away = set()

        (verdict,) = await verdicts(asking)
        assert verdict.is_allowed
        assert len(person.shown) == 1


async def test_a_cancelled_call_that_cannot_withdraw_leaves_its_question_to_the_owner(store: AwayStore) -> None:
    async with consent.open_bench(store=store) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await bench.pending(1)
        store.away = {"withdraw"}

        asking.cancel()
        outcome = await asyncio.gather(asking, return_exceptions=True)

        assert isinstance(outcome[0], asyncio.CancelledError)
        await bench.pending(1)


async def test_one_question_that_cannot_be_handled_does_not_hold_back_the_others(store: AwayStore) -> None:
    async with consent.open_bench(Callback([Choice.ALLOW_ONCE]), store=store) as bench:
        ((claim, worker),) = await bench.claim()
        store.away = {"call_1"}
        broken = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim, "call_1", "/work/one")))
        await bench.pending(1)
        await bench.settle()
        store.away = set()

        (whole,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim, "call_2", "/work/two")))
        (mended,) = await verdicts(broken)

        assert (whole.is_allowed, mended.is_allowed) == (True, True)


async def test_a_fault_of_ours_is_survived_and_the_next_look_goes_on(
    store: AwayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with consent.open_bench(Callback(), store=store) as bench:
        ((claim, worker),) = await bench.claim()
        decide = store.decide
        faults = iter([RuntimeError("a fault")])

        async def faulty(*given: object, **named: object) -> DecisionReceipt:
            for fault in faults:
                raise fault
            return await decide(*given, **named)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(store, "decide", faulty)

        (verdict,) = await verdicts(bench.gate(claim, worker).decide(make_call(claim)))

        assert verdict.is_allowed
