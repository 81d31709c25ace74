"""Limits on live leases, held across processes (DIS-03), and turns between sessions (DIS-10)."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from soong.shared.engine.tasks.step import ConcurrencyLimit, NewStep
from soong.shared.storage.store import Store
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness, completed, held
from tests.model.builders import make_step, take_turn
from tests.waiting import others_run


@pytest.mark.spec("DIS-03.b", "DIS-03.d", "DIS-10.c", "DIS-03")
@pytest.mark.parametrize("kind", ["session", "definition", "model", "pool"])
async def test_limit_limits_live_leases_of_its_scope(scene: ContractHarness, kind: str) -> None:
    name = scene.own.session_id if kind == "session" else "default" if kind == "pool" else "x"
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(f"{kind}:{name}", 2)])
    await scene.task(*(make_step(f"s{number}", definition="x", model="x") for number in range(5)))

    first = await scene.claim()
    after_one_end = (await scene.advance([completed(first[0])], claim=5)).claims

    assert (len(first), len(after_one_end)) == (2, 1)


@pytest.mark.spec("DIS-03")
@pytest.mark.parametrize(
    ("scope", "step"),
    [
        ("session:sess_other", make_step("a")),
        ("definition:x", make_step("a", definition="y")),
        ("model:x", make_step("a", model="y")),
        ("pool:x", make_step("a")),
    ],
    ids=["session", "definition", "model", "pool"],
)
async def test_limit_of_another_scope_does_not_limit(scene: ContractHarness, scope: str, step: NewStep) -> None:
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(scope, 1)])
    await scene.task(step)
    await scene.task(step)

    assert len(await scene.claim()) == 2


@pytest.mark.spec("DIS-03")
async def test_the_narrowest_of_several_limits_counts(scene: ContractHarness) -> None:
    await scene.store.claims.set_concurrency_limits(
        [ConcurrencyLimit("pool:default", 4), ConcurrencyLimit("definition:x", 1)]
    )
    await scene.task(*(make_step(f"x{number}", definition="x") for number in range(3)))
    await scene.task(*(make_step(f"y{number}", definition="y") for number in range(5)))

    claims = await scene.claim()

    assert len(claims) == 4
    assert sum(claim.step_key.rpartition("/")[2].startswith("x") for claim in claims) == 1


@pytest.mark.spec("DIS-03")
async def test_capped_steps_do_not_stand_in_the_way_of_others_and_a_limit_below_one_is_none(
    scene: ContractHarness,
) -> None:
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("model:slow", 1)])
    await scene.task(*(make_step(f"slow{number}", model="slow", priority=9) for number in range(3)), "quick")

    claims = [await scene.claim(1) for _ in range(3)]
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("model:slow", 0)])

    assert [len(claim) for claim in claims] == [1, 1, 0]
    assert len(await scene.claim()) == 2


@pytest.mark.spec("DIS-03")
async def test_a_lowered_limit_ends_nothing_and_lets_nothing_begin_until_it_is_kept(scene: ContractHarness) -> None:
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("pool:default", 3)])
    await scene.task(*(f"s{number}" for number in range(6)))
    first = await scene.claim()
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("pool:default", 1)])

    begun = [len((await scene.advance([completed(claim)], claim=5)).claims) for claim in first]

    assert (len(first), begun) == (3, [0, 0, 1])


@pytest.mark.spec("DIS-10.e", "DIS-03")
async def test_lease_that_ends_in_whatever_way_frees_its_place(scene: ContractHarness) -> None:
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit("pool:default", 1)])
    claim = await scene.start("a", "b")

    await scene.release(claim)
    again = await scene.claim_one()
    assert await scene.claim() == ()
    await scene.expire()

    assert len(await scene.claim(worker=await scene.another_worker())) == 1
    assert again.fence > claim.fence


@dataclass
class Crowd:
    """Claimers that count each other: how many spoke to the store at once, how many held a lease at once."""

    speaking: int = 0
    holding: int = 0
    most_speaking: int = 0
    most_holding: int = 0
    done: list[str] = field(default_factory=list)

    async def work(self, scene: ContractHarness, store: Store, worker_id: str, total: int) -> None:
        while len(self.done) < total:
            self.speaking += 1
            self.most_speaking = max(self.most_speaking, self.speaking)
            advance = await take_turn(store, worker_id, claim=2, now_us=scene.now_us)
            self.speaking -= 1
            self.holding += len(advance.claims)
            self.most_holding = max(self.most_holding, self.holding)
            await others_run()
            # Counted as free before the store can know it: what others hold is never overstated.
            self.holding -= len(advance.claims)
            await store.claims.release(
                worker_id, [held(claim) for claim in advance.claims[1:]], reason="spare", now_us=scene.now_us
            )
            ends = [completed(claim) for claim in advance.claims[:1]]
            self.done += [end.step_key for end in ends]
            await take_turn(store, worker_id, ends, claim=0, now_us=scene.now_us)


@pytest.mark.spec("CARD-2.c", "DIS-03")
async def test_sixteen_claimers_never_exceed_a_limit_of_five(scene: ContractHarness, open_another: OpenStore) -> None:
    total = 40
    await scene.store.claims.set_concurrency_limits([ConcurrencyLimit(f"session:{scene.own.session_id}", 5)])
    await scene.task(*(f"s{number}" for number in range(total)))
    workers = [await scene.another_worker() for _ in range(16)]
    # One of its own for each, as processes have: two claims written together would lock out of order.
    stores: Sequence[Store] = [await open_another() for _ in workers]
    crowd = Crowd()

    await asyncio.gather(
        *(crowd.work(scene, store, worker_id, total) for store, worker_id in zip(stores, workers, strict=True))
    )

    assert len(crowd.done) == len(set(crowd.done)) == total
    assert crowd.most_speaking >= 10
    assert crowd.most_holding <= 5


@pytest.mark.spec("DIS-03")
async def test_of_a_paused_scope_nothing_starts_and_its_limit_stays(scene: ContractHarness) -> None:
    claims = scene.store.claims
    await claims.set_concurrency_limits([ConcurrencyLimit("pool:default", 2)])
    await scene.task(*(f"s{number}" for number in range(6)))
    (first,) = await scene.claim(1)

    await claims.pause_scope("pool:default", is_paused=True)
    await claims.pause_scope("pool:default", is_paused=True)
    await claims.set_concurrency_limits([ConcurrencyLimit("pool:default", 3)])

    assert await scene.claim() == ()
    assert not any((await claims.backlog()).ready.values())
    await scene.advance([completed(first)])
    await claims.pause_scope("pool:default", is_paused=False)
    assert len(await scene.claim()) == 3


@pytest.mark.spec("DIS-03")
async def test_a_scope_without_a_limit_is_paused_too(scene: ContractHarness) -> None:
    claims = scene.store.claims
    await claims.pause_scope("model:slow", is_paused=True)
    await claims.set_concurrency_limits([ConcurrencyLimit("model:slow", 0)])
    await scene.task(make_step("a", model="slow"), make_step("b", model="slow"), "quick")

    assert len(await scene.claim()) == 1

    await claims.pause_scope("model:slow", is_paused=False)
    await claims.pause_scope("model:other", is_paused=False)
    assert len(await scene.claim()) == 2


@pytest.mark.spec("DIS-10.b", "DIS-10", "DIS-03")
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


@pytest.mark.spec("DIS-03.e", "DIS-10.a", "DIS-10", "DIS-03")
async def test_sessions_take_turns_claim_by_claim(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("a", "b", "c")
    await scene.task("a", "b", "c", own=other)

    order = [(await scene.claim_one()).identity.session_id for _ in range(6)]

    assert set(order[:2]) == {scene.own.session_id, other.session_id}
    assert order == order[:2] * 3


@pytest.mark.spec("DIS-10", "DIS-03")
async def test_one_batch_is_shared_evenly(scene: ContractHarness) -> None:
    for own in (scene.own, await scene.another_session(), await scene.another_session()):
        await scene.task(*(f"s{number}" for number in range(10)), own=own)

    claims = await scene.claim(9)

    assert sorted(Counter(claim.identity.session_id for claim in claims).values()) == [3, 3, 3]


@pytest.mark.spec("DIS-10", "DIS-03")
async def test_what_one_session_cannot_use_goes_to_the_others(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task("single")
    await scene.task(*(f"s{number}" for number in range(10)), own=other)

    claims = await scene.claim(8)

    assert Counter(claim.identity.session_id for claim in claims) == {scene.own.session_id: 1, other.session_id: 7}


@pytest.mark.spec("DIS-10.a", "DIS-10", "DIS-03")
async def test_priority_orders_within_a_session_and_not_between_sessions(scene: ContractHarness) -> None:
    other = await scene.another_session()
    await scene.task(*(make_step(f"urgent{number}", priority=100) for number in range(3)))
    await scene.task("patient", own=other)

    first_two = [(await scene.claim_one()).identity.session_id for _ in range(2)]

    assert set(first_two) == {scene.own.session_id, other.session_id}


@pytest.mark.spec("DIS-10", "DIS-03")
async def test_chain_has_no_right_to_its_slot(scene: ContractHarness) -> None:
    other = await scene.another_session()
    claim = await scene.start("a", make_step("b", depends_on=("a",)))
    await scene.task("waiting", own=other)

    (following,) = (await scene.advance([completed(claim)], claim=1)).claims

    assert following.identity.session_id == other.session_id
