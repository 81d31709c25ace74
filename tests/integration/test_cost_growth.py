"""What a step costs does not grow: counted by the databases, not timed, so it holds on any machine."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.growth import LIMITS, Comparison
from benchmarks.history import Effort, against_history, against_long_chain, against_wide_fan
from benchmarks.past import fill
from tests.servers import PostgresServer, postgres_server

FINISHED = 2_000
LARGE = 500
EFFORT = Effort(rounds=1, parts=1, part=12, fans=2)
"""So many looks in a part: planning reads pages, too, which fall on the first look of each connection."""

ROUNDING = 2.0
"""Statements or rows a unit that are no growth: what one round does once falls on fewer units in one of the two."""


@pytest.fixture(scope="module")
def quiet_postgres() -> Iterator[PostgresServer]:
    """A server that vacuums nothing by itself: the pages that it reads for that are counted with ours."""
    with postgres_server(settings=("autovacuum=off",)) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two new databases of one kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'small.db'}", f"sqlite:///{tmp_path / 'large.db'}"
        return
    server: PostgresServer = request.getfixturevalue("quiet_postgres")
    with ExitStack() as stack:
        small, large = (stack.enter_context(server.fresh_database(f"{tmp_path.name}_{n}")) for n in ("small", "large"))
        yield small, large


@pytest.fixture
def full_url(urls: tuple[str, str]) -> str:
    fill(urls[1], FINISHED)
    return urls[1]


async def test_nothing_costs_more_after_thousands_of_finished_steps(urls: tuple[str, str], full_url: str) -> None:
    # Each round leaves ended tasks in the session that is looked at: they must not cost a look anything either.
    found = await against_history(urls[0], full_url, replace(EFFORT, rounds=4))

    assert {each.act.name for each in found} == {"submit", "call", "keep-up", "look", "hop", "fan"}
    assert grown(found) == []


async def test_a_hop_of_a_long_chain_costs_no_more_than_one_of_a_short_one(urls: tuple[str, str]) -> None:
    found = await against_long_chain(*urls, LARGE, EFFORT)

    assert {each.act.name for each in found} == {"look", "hop"}
    assert grown(found) == []


async def test_a_step_of_a_wide_fan_costs_no_more_than_one_of_a_narrow_one(urls: tuple[str, str]) -> None:
    found = await against_wide_fan(*urls, LARGE, EFFORT)

    assert {each.act.name for each in found} == {"submit", "unlock-and-run", "look", "run-and-join"}
    assert grown(found) == []


def grown(found: Sequence[Comparison]) -> list[str]:
    """Return what was counted more often in the large database than the limits of the benchmark allow."""
    names = ("statements", "rows", "pages", "scanned")
    return [
        f"{each.act.name}: {large:.1f} {name}, not {small:.1f}"
        for each in found
        for name, large, small in zip(names, *each.counts(), strict=True)
        if large > small * LIMITS.get(name, 1.0) + ROUNDING
    ]
