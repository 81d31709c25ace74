import asyncio

import pytest

from soong.shared.tools.time_limit import TimeLimit


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
