"""How costs side by side become ratios, and which of them are more than was promised."""

from collections.abc import Sequence

import pytest

from benchmarks.counters import Reading
from benchmarks.growth import Act, Comparison, Cost, finding
from benchmarks.site import Site


async def nothing(_site: Site) -> int:
    return 0


def make_cost(elapsed_s: float, *, units: int = 10, rows: int = 100) -> Cost:
    return Cost(units, elapsed_s, cpu_s=0.1, counted=Reading(statements=units, rows=rows, pages=50))


def make_comparison(small: Sequence[Cost], large: Sequence[Cost]) -> Comparison:
    return Comparison(Act("hop", "step", nothing), list(zip(small, large, strict=True)))


def test_a_time_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The machine was three times as slow in the second round, for both.
    found = make_comparison(
        [make_cost(1.0), make_cost(3.0), make_cost(1.0)], [make_cost(1.1), make_cost(3.3), make_cost(9.0)]
    )

    assert found.ratio(lambda cost: cost.elapsed_s) == pytest.approx(1.1)


def test_costs_are_those_of_one_unit() -> None:
    found = make_comparison([make_cost(1.0, units=10, rows=100)], [make_cost(2.0, units=20, rows=200)])

    assert found.ratio(lambda cost: cost.elapsed_s) == 1.0
    assert found.counts() == ([1.0, 10.0, 2.5, 0.0], [1.0, 10.0, 5.0, 0.0])


def test_what_grew_beyond_its_limit_is_named() -> None:
    found = finding("H1", "sqlite", "empty database", [make_comparison([make_cost(1.0)], [make_cost(1.0, rows=140)])])

    assert len(found.broken) == 1
    assert found.broken[0].startswith("H1-hop on sqlite: rows 14.0 1/step, 1.4 times")


def test_what_stayed_within_its_limits_breaks_nothing() -> None:
    found = finding("H1", "sqlite", "empty database", [make_comparison([make_cost(1.0)], [make_cost(1.29, rows=129)])])

    assert found.broken == []
    assert {figure.metric for figure in found.figures} == {"time", "cpu", "statements", "rows", "pages", "scanned"}
