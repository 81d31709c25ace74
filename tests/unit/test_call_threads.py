"""Blocking calls on threads: what comes back, in which context, and what a cancelled or forked caller sees."""

import asyncio
import os
import threading
from contextvars import ContextVar
from random import Random

import pytest

from soong.shared.core.foreign import in_thread
from tests.model.clock import FakeClock
from tests.simulation.loop import VirtualLoop
from tests.waiting import blocking_looks

_WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_stop_iteration_which_no_future_takes_is_an_error_all_the_same() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(next, iter(()))


async def test_a_cancelled_call_that_has_begun_runs_to_its_end_and_harms_no_other() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait(30)
        ended.set()

    future = in_thread(call)
    await in_thread(begun.wait, 30)
    future.cancel()
    go_on.set()

    assert await in_thread(ended.wait, 30)
    with pytest.raises(asyncio.CancelledError):
        await future


def test_a_call_that_ends_after_its_loop_is_closed_harms_no_later_loop() -> None:
    go_on = threading.Event()

    async def leave() -> None:
        _ = in_thread(go_on.wait, 30)

    async def call() -> int:
        go_on.set()
        return await in_thread(lambda: 3)

    asyncio.run(leave())

    assert asyncio.run(call()) == 3


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of what this is about
def test_a_forked_process_makes_calls_on_threads_of_its_own() -> None:
    async def call() -> int:
        return await asyncio.wait_for(in_thread(lambda: 7), 20)

    assert asyncio.run(call()) == 7  # this process has threads now, which its child has not
    child = os.fork()
    if child == 0:
        os._exit(asyncio.run(call()))
    for _ in blocking_looks():
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert (ended, os.waitstatus_to_exitcode(status)) == (child, 7)
            return


def test_a_loop_that_is_not_asyncios_makes_the_calls_itself() -> None:
    def lost(message: str) -> None:
        raise AssertionError(message)

    async def called() -> tuple[str, int]:
        _WHO.set("caller")
        return await in_thread(_WHO.get), await in_thread(threading.get_ident)

    loop = VirtualLoop(FakeClock(), Random(1), lost)  # type: ignore[abstract]  # it has what a call asks of a loop

    assert loop.run(called()) == ("caller", threading.get_ident())
