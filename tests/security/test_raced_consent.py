"""What was shown is what is written: a target that is exchanged between question and write is a conflict, untouched."""

from pathlib import Path

import pytest

from tests.security.raced_consent import BETRAYALS, CALLS, betrayed, make_stage, play, raced

OTHERWISE = {("the file is a hard link", "edit"): "permission_denied", ("gone", "edit"): "file_not_found"}
"""Where editing has a name of its own for what it found instead."""


@pytest.mark.spec("FS-07", "PER-12", "PER-14")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("betrayal", BETRAYALS)
async def test_a_target_exchanged_after_the_yes_is_a_conflict_and_nothing_is_written(
    betrayal: str, call: str, tmp_path: Path
) -> None:
    metrics = await betrayed(make_stage(tmp_path), betrayal, call, 25)

    assert metrics.escapes == 0
    assert dict(metrics.outcomes) == {OTHERWISE.get((betrayal, call), "path_conflict"): 25}


@pytest.mark.spec("FS-07.e")
@pytest.mark.parametrize("call", CALLS)
async def test_a_folder_that_is_exchanged_all_the_time_lets_nothing_through(call: str, tmp_path: Path) -> None:
    metrics = await raced(make_stage(tmp_path), call, 500)

    assert metrics.escapes == 0
    assert metrics.swaps > 500
    assert metrics.outcomes["path_conflict"] > 0


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.spec("FS-07", "PER-12")
async def test_a_hundred_thousand_tries_let_nothing_through(tmp_path: Path) -> None:
    metrics = await play(tmp_path, 100_000)

    assert (metrics.tries, metrics.escapes) == (100_000, 0)
