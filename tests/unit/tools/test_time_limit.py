"""Waiting for people counts to no time limit."""

import asyncio

import pytest

from soong.shared.tools.time_limit import TimeLimit
from tests.waiting import others_run


async def test_work_over_the_limit_ends() -> None:
    with pytest.raises(TimeoutError):
        async with TimeLimit(0.01):
            await asyncio.Event().wait()


async def test_no_limit_ends_nothing() -> None:
    async with TimeLimit(None) as limit:
        with limit.suspended():
            await others_run()


@pytest.mark.spec("PER-13")
async def test_the_time_of_a_wait_is_given_back() -> None:
    async with TimeLimit(0.05) as limit:
        with limit.suspended():
            await asyncio.sleep(0.1)
        await others_run()


async def wait_twice_and_go_on(limit_s: float, wait_s: float) -> None:
    async with TimeLimit(limit_s) as limit:
        with limit.suspended():
            with limit.suspended():
                await asyncio.sleep(wait_s)
            await asyncio.sleep(wait_s)
        await asyncio.Event().wait()


async def test_the_time_goes_on_after_the_last_of_several_waits() -> None:
    with pytest.raises(TimeoutError):
        await wait_twice_and_go_on(limit_s=0.02, wait_s=0.05)
