import asyncio
import gc
from collections.abc import Sequence

import pytest

from soong.orchestrator.owner.parts import BackgroundWork, Routine
from soong.shared.core.errors import UnavailableError
from tests.waiting import others_run


class Journal:
    """Notes the parts that began, and those that were cancelled while they waited."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []

    def part(self, name: str) -> Routine:
        async def wait() -> None:
            self.begun.append(name)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise

        return wait


async def passes() -> None:
    """Let all that is ready run."""
    await others_run(5)


async def test_parts_are_stopped_in_the_order_they_began() -> None:
    work, journal = BackgroundWork(), Journal()
    names: Sequence[str] = ("first", "second", "third")
    for name in names:
        work.begin(journal.part(name))
    await passes()

    await work.stop()

    assert journal.cancelled == list(names)


async def test_a_part_that_is_stopped_before_it_starts_is_never_made() -> None:
    work, journal = BackgroundWork(), Journal()
    work.begin(journal.part("late"))

    await work.stop()
    gc.collect()  # a coroutine that nobody awaited is reported here

    assert journal.begun == []


async def test_nothing_begins_after_the_stop() -> None:
    work, journal = BackgroundWork(), Journal()
    work.begin_later("timer", 0.0, journal.part("from a timer"))
    await work.stop()

    work.begin(journal.part("asked for"))
    await passes()

    assert journal.begun == []


async def test_of_one_name_only_the_last_part_begins() -> None:
    work, journal = BackgroundWork(), Journal()
    work.begin_later("look", 0.0, journal.part("first"))
    work.begin_later("look", 0.0, journal.part("second"))
    work.begin_later("other", 0.0, journal.part("other"))
    work.cancel_later("other")

    await asyncio.sleep(0.001)
    await passes()
    await work.stop()

    assert journal.begun == ["second"]


@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("broken")], ids=["away", "fault"])
async def test_a_part_that_fails_ends_no_other(error: Exception) -> None:
    async def fail() -> None:
        raise error

    work, journal = BackgroundWork(), Journal()
    work.begin(fail)
    work.begin(journal.part("other"))
    await passes()

    assert (journal.begun, journal.cancelled) == (["other"], [])
    await work.stop()
