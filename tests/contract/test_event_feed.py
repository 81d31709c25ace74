"""A consumer follows every log once, whichever orchestrator acts for it and however often it starts again."""

from collections.abc import Mapping, Sequence

import pytest

from soong.shared.engine.sessions.session import Owner
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart
from tests.contract.conftest import OpenStore
from tests.contract.scene import ContractHarness
from tests.model.builders import make_step

pytestmark = pytest.mark.spec("OPS-05.a")

TRACES = "traces"


async def take_over(scene: ContractHarness, owner_id: str = "") -> int | None:
    return await scene.store.feed.take_over(TRACES, owner_id or scene.own.owner_id, now_us=scene.now_us)


async def read(scene: ContractHarness, since_us: int = 0, limit: int = 1000) -> Sequence[FeedPart]:
    return await scene.store.feed.read(TRACES, since_us=since_us, limit=limit)


async def advance(scene: ContractHarness, parts: Sequence[FeedPart], owner_id: str = "") -> bool:
    cursors = [FeedCursor(part.run.identity.run_id, part.events[-1].seq, {"seen": True}) for part in parts]
    return await scene.store.feed.advance(
        TRACES, owner_id or scene.own.owner_id, cursors, since_us=0, totals={("runs", ("a",)): len(parts)}
    )


def numbers(parts: Sequence[FeedPart]) -> Mapping[str, list[int]]:
    return {part.run.identity.run_id: [event.seq for event in part.events] for part in parts}


async def test_each_event_is_read_once_and_the_state_comes_back_with_the_next(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await take_over(scene)

    first = await read(scene)
    assert await advance(scene, first)
    nothing = await read(scene)
    await scene.complete(claim)
    (then,) = await read(scene)

    assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in numbers(first).values())
    assert not nothing
    assert then.run.identity.run_id == claim.identity.run_id
    assert (then.run.seq, then.run.state) == (len(numbers(first)[claim.identity.run_id]), {"seen": True})
    assert then.events[0].seq == then.run.seq + 1


async def test_a_small_page_loses_nothing(scene: ContractHarness) -> None:
    await scene.task("a", make_step("b", depends_on=("a",)))
    await scene.complete(await scene.claim_one())
    await take_over(scene)
    whole = numbers(await read(scene))

    paged: dict[str, list[int]] = {}
    while parts := await read(scene, limit=1):
        for run_id, seqs in numbers(parts).items():
            paged.setdefault(run_id, []).extend(seqs)
        await advance(scene, parts)

    assert paged == whole


async def test_one_living_owner_acts_for_a_consumer(scene: ContractHarness, open_another: OpenStore) -> None:
    await scene.start("a")
    other = await open_another()
    await other.sessions.register_owner(Owner("own_other", "host", 1, scene.now_us))

    first = await take_over(scene)
    refused = await take_over(scene, "own_other")
    await scene.store.sessions.release_owner(scene.own.owner_id)
    second = await take_over(scene, "own_other")

    assert (first, refused, second) == (scene.now_us, None, scene.now_us)
    assert not await advance(scene, await read(scene))
    assert await advance(scene, await read(scene), "own_other")


async def test_what_another_wrote_down_late_changes_nothing(scene: ContractHarness) -> None:
    await scene.start("a")
    await take_over(scene)
    parts = await read(scene)

    assert not await advance(scene, parts, "own_former")
    assert numbers(await read(scene)) == numbers(parts)
    assert await scene.store.feed.totals() == {}


async def test_totals_grow_with_the_places(scene: ContractHarness) -> None:
    claim = await scene.start("a")
    await take_over(scene)

    for _ in range(2):
        await advance(scene, await read(scene))
        await scene.complete(claim)

    assert await scene.store.feed.totals() == {("runs", ("a",)): 3}
