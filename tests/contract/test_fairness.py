from collections import Counter

import pytest

from tests.contract.scene import ContractHarness, completed
from tests.model.builders import make_step

pytestmark = pytest.mark.spec("DIS-10", "DIS-03")


@pytest.mark.spec("DIS-10.b")
@pytest.mark.parametrize("slots", [1, 8])
async def test_thousand_steps_of_one_session_do_not_hold_back_one_of_another(
    scene: ContractHarness, slots: int
) -> None:
    await scene.task(*(f"s{number}" for number in range(1000)))
    claims = await scene.claim(slots)
    other = await scene.another_session()
    await scene.task("single", own=other)

    taken: list[str] = []
    while other.session_id not in taken:
        # A worker with all slots busy: each end frees one, as a claim loop does.
        first, *rest = claims
        advance = await scene.advance([completed(first)], claim=1)
        claims = (*rest, *advance.claims)
        taken += [claim.identity.session_id for claim in advance.claims]

    assert len(taken) <= slots + 1


@pytest.mark.spec("DIS-03.e", "DIS-10.a")
async def test_sessions_take_turns_claim_by_claim(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("a", "b", "c")
    await scene.task("a", "b", "c", own=other)

    order = [(await scene.claim_one()).identity.session_id for _ in range(6)]

    assert set(order[:2]) == {scene.own.session_id, other.session_id}
    assert order == order[:2] * 3


async def test_one_batch_is_shared_evenly(scene: ContractHarness) -> None:
    for own in (scene.own, await scene.another_session(), await scene.another_session()):
        await scene.task(*(f"s{number}" for number in range(10)), own=own)

    claims = await scene.claim(9)

    assert sorted(Counter(claim.identity.session_id for claim in claims).values()) == [3, 3, 3]


async def test_what_one_session_cannot_use_goes_to_the_others(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("single")
    await scene.task(*(f"s{number}" for number in range(10)), own=other)

    claims = await scene.claim(8)

    assert Counter(claim.identity.session_id for claim in claims) == {scene.own.session_id: 1, other.session_id: 7}


@pytest.mark.spec("DIS-10.a")
async def test_priority_orders_within_a_session_and_not_between_sessions(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task(*(make_step(f"urgent{number}", priority=100) for number in range(3)))
    await scene.task("patient", own=other)

    first_two = [(await scene.claim_one()).identity.session_id for _ in range(2)]

    assert set(first_two) == {scene.own.session_id, other.session_id}


async def test_chain_has_no_right_to_its_slot(scene: ContractHarness) -> None:
    other = await scene.another_session()
    claim = await scene.start("a", make_step("b", depends_on=("a",)))
    await scene.task("waiting", own=other)

    (following,) = (await scene.advance([completed(claim)], claim=1)).claims

    assert following.identity.session_id == other.session_id
