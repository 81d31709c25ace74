"""Readings that are shared: few for many, each begun after it was asked for, a failure told to all."""

import asyncio

import pytest

from soong.orchestrator.operations.watched_reads import SharedReads
from tests.waiting import others_run


async def test_those_who_ask_at_once_share_one_reading_and_later_ones_get_a_later_one() -> None:
    reads, rows = SharedReads(), [0]

    async def load() -> int:
        rows[0] += 1
        return rows[0]

    first = await asyncio.gather(*(reads.read("all", load) for _ in range(200)))
    then = await asyncio.gather(*(reads.read("all", load) for _ in range(200)), reads.read("other", load))

    assert set(first) == {1}
    assert len(set(then)) == 2
    assert min(then) == 2, "what was known before somebody asked is not what they get"


async def test_a_reading_that_is_under_way_is_not_joined() -> None:
    reads, goes_on, value = SharedReads(), asyncio.Event(), ["old"]

    async def load() -> str:
        seen = value[0]
        await goes_on.wait()
        return seen

    early = asyncio.create_task(reads.read("one", load))
    await others_run(5)
    value[0] = "new"
    late = asyncio.create_task(reads.read("one", load))
    goes_on.set()

    assert [await early, await late] == ["old", "new"]


async def test_a_failure_reaches_everybody_and_nobody_after_them() -> None:
    reads, fails = SharedReads(), [True]

    async def load() -> str:
        if fails[0]:
            raise ConnectionError("gone")
        return "back"

    failed = await asyncio.gather(*(reads.read("one", load) for _ in range(3)), return_exceptions=True)
    fails[0] = False

    assert [type(one) for one in failed] == [ConnectionError] * 3
    assert await reads.read("one", load) == "back"


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    reads = SharedReads()

    async def load() -> str:
        await others_run(5)
        return "read"

    leaves, stays = (asyncio.create_task(reads.read("one", load)) for _ in range(2))
    await others_run()
    leaves.cancel()

    assert await stays == "read"
    with pytest.raises(asyncio.CancelledError):
        await leaves
