"""The benchmark of a tool call measures calls that do what they should."""

import pytest

from benchmarks.tool_call import NAME, measure


@pytest.mark.timeout(300)
async def test_a_recorded_read_is_one_transaction_and_every_candidate_gives_the_sum() -> None:
    found = await measure(rounds=1, per_round=20)

    assert found.transactions == 1.0
    assert found.direct.cpu_us < found.pipeline.cpu_us
    assert found.pipeline.elapsed_us < found.persisted.elapsed_us
    assert {figure.workload for figure in found.figures()} == {NAME}
