"""What is told to stop at the very moment at which it is woken stops."""

import asyncio

from soong.orchestrator.approvals.responders import ResponderLease
from soong.shared.permissions.request import PermissionDecision, PermissionRequest
from tests.integration.consent import make_call, open_bench
from tests.model.memory import MemoryStore
from tests.model.memory.notifier import MemoryBus
from tests.waiting import others_run, until


async def test_an_attendance_that_changes_as_it_ends() -> None:
    attendance = ResponderLease(MemoryStore(), MemoryBus(), "ada", "cli", 3600.0)
    running = asyncio.ensure_future(attendance.run())
    await others_run(5)

    attendance.attend(["sess_1"])
    running.cancel()

    await asyncio.wait([running], timeout=5)
    assert running.cancelled()


async def test_a_broker_that_is_woken_as_it_closes() -> None:
    asked = asyncio.Event()

    async def silent(request: PermissionRequest) -> PermissionDecision:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError(request)

    async with open_bench(silent) as bench:
        ((claim, worker),) = await bench.claim()
        asking = asyncio.ensure_future(bench.gate(claim, worker).decide(make_call(claim)))
        await asked.wait()
        broker = bench.broker._of(bench.session_id)
        looks = broker.looks
        await until(lambda: broker.looks > looks)
        await others_run(5)

        broker.wake()
        closing = asyncio.ensure_future(broker.close())

        await asyncio.wait([closing], timeout=5)
        assert closing.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
