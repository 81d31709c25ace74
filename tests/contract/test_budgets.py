"""Budgets and charges: requests at once overspend by one estimate at most, and nothing leaks (DIS-11)."""

import asyncio
import time

import pytest

from soong.shared.core.clock import utc_date
from soong.shared.core.errors import LeaseLostError
from soong.shared.engine.runs.budgets import DAY, Budget, BudgetSpentError, BudgetState, Charge, session_scope
from soong.shared.engine.tasks.step import Claim
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness

pytestmark = pytest.mark.spec("DIS-11")

DAY_US = 86_400_000_000
TODAY, TOMORROW = (utc_date(time.time_ns() // 1000 + days * DAY_US) for days in (0, 1))
CENT = Charge(1000, 10_000)


async def reserve(scene: ContractHarness, claim: Claim, number: int, charge: Charge = CENT) -> float | None:
    run_id = claim.identity.run_id
    return await scene.store.budgets.reserve(run_id, claim.fence, number, charge, day=TODAY)


async def settle(scene: ContractHarness, claim: Claim, number: int, charge: Charge = CENT) -> None:
    await scene.store.budgets.settle(claim.identity.run_id, claim.fence, number, charge)


async def limit(scene: ContractHarness, claim: Claim, *, tokens: int | None = None, cents: int | None = None) -> str:
    scope = session_scope(claim.identity.session_id)
    await scene.store.budgets.set_budget(scope, Budget(tokens, None if cents is None else cents * 10_000))
    return scope


async def state(scene: ContractHarness, scope: str, day: str = TODAY) -> BudgetState:
    return (await scene.store.budgets.budgets([scope], day=day))[scope]


async def test_without_a_budget_nothing_is_charged(scene: ContractHarness) -> None:
    claim = await scene.start("a")

    assert await reserve(scene, claim, 1) is None
    scope = await limit(scene, claim, cents=5)

    assert await state(scene, scope) == BudgetState(scope, Budget(None, 50_000), Charge(), Charge())


@pytest.mark.spec("DIS-11.a")
async def test_a_request_is_charged_with_its_estimate_and_then_with_what_it_used(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=5, tokens=100_000)

    share = await reserve(scene, claim, 1)
    reserved = await state(scene, scope)
    await settle(scene, claim, 1, Charge(500, 7_000))

    assert share == pytest.approx(0.2)
    assert (reserved.used, reserved.reserved) == (Charge(), CENT)
    used = await state(scene, scope)
    assert (used.used, used.reserved) == (Charge(500, 7_000), Charge())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"cents": 2}, "has used 0.02 of its budget of 0.02 USD"),
        ({"tokens": 1500}, "2,000 of its budget of 1,500 tokens"),
    ],
    ids=["money", "tokens"],
)
async def test_a_budget_that_is_used_up_permits_no_request(
    scene: ContractHarness, limits: dict[str, int], words: str
) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, **limits)
    for number in (1, 2):
        await reserve(scene, claim, number)
        await settle(scene, claim, number)

    with pytest.raises(BudgetSpentError, match=words):
        await reserve(scene, claim, 3)

    await limit(scene, claim, cents=1000)
    assert await reserve(scene, claim, 3) == pytest.approx(0.003)
    assert (await state(scene, scope)).used == Charge(2000, 20_000)


@pytest.mark.spec("DIS-11.b")
async def test_a_budget_of_zero_permits_nothing_and_none_permits_everything(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=0)
    with pytest.raises(BudgetSpentError, match="budget of 0 USD"):
        await reserve(scene, claim, 1, Charge(0, 0))

    await scene.store.budgets.set_budget(scope, Budget())

    assert await reserve(scene, claim, 1) is None
    assert await scene.store.budgets.budgets([scope], day=TODAY) == {}


async def test_money_without_a_price_is_refused_and_tokens_are_not(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await limit(scene, claim, tokens=10_000)
    assert await reserve(scene, claim, 1, Charge(10, None)) == pytest.approx(0.001)

    await limit(scene, claim, cents=1)

    with pytest.raises(BudgetSpentError, match="no price is known"):
        await reserve(scene, claim, 2, Charge(10, None))


@pytest.mark.spec("DIS-11.a")
async def test_the_day_is_one_for_all_sessions(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await scene.store.budgets.set_budget(DAY, Budget(None, 10_000))
    await reserve(scene, claim, 1)

    with pytest.raises(BudgetSpentError, match="the day has used"):
        await reserve(scene, claim, 2)
    await scene.store.budgets.reserve(claim.identity.run_id, claim.fence, 2, CENT, day=TOMORROW)

    assert (await state(scene, DAY)).reserved == CENT
    assert (await state(scene, DAY, TOMORROW)).reserved == CENT


async def test_twenty_requests_at_once_overspend_by_one_estimate(
    scene: ContractHarness, open_another: OpenStore
) -> None:
    names = [f"s{number}" for number in range(20)]
    await scene.task(*names)
    claims = await scene.claim(20)
    scope = await limit(scene, claims[0], cents=5)
    stores = [await open_another() for _ in range(4)]
    refused = 0

    async def ask(place: int, claim: Claim) -> None:
        nonlocal refused
        for number in range(1, 4):
            store = stores[place % 4].budgets
            try:
                await store.reserve(claim.identity.run_id, claim.fence, number, Charge(10, 15_000), day=TODAY)
            except BudgetSpentError:
                refused += 1
                return
            await store.settle(claim.identity.run_id, claim.fence, number, Charge(10, 15_000))

    await asyncio.gather(*(ask(place, claim) for place, claim in enumerate(claims)))

    found = await state(scene, scope)
    assert refused == 20
    assert found.reserved == Charge()
    assert found.used == Charge(40, 60_000)


async def test_what_a_dead_process_reserved_is_used_at_its_estimate(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    scope = await limit(scene, claim, cents=1)
    await reserve(scene, claim, 1)
    with pytest.raises(BudgetSpentError):
        await reserve(scene, claim, 2)

    await scene.release(claim)
    again = await scene.claim_one()

    found = await state(scene, scope)
    assert (found.reserved, found.used) == (Charge(), CENT)
    with pytest.raises(BudgetSpentError, match=r"has used 0\.01 of its budget of 0\.01 USD$"):
        await reserve(scene, again, 1)
    await limit(scene, claim, cents=100)
    await reserve(scene, again, 1)
    with pytest.raises(LeaseLostError):
        await reserve(scene, claim, 3, Charge())
    with pytest.raises(LeaseLostError):
        await settle(scene, claim, 1)
    await settle(scene, again, 1)
    used = (await state(scene, scope)).used
    assert (used.tokens, used.microusd) == (2 * CENT.tokens, 20_000)
