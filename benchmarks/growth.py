"""Does a cost grow? The same acts on a small and a large database, side by side, round by round.

Each act is done in parts, one on the small and one on the large database in turn, so that whatever else the machine
does falls on both. A ratio of times is the median of the rounds' ratios; what is counted is counted over all rounds.
"""

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.counters import Reading
from benchmarks.report import Figure, Finding
from benchmarks.site import Site

LIMITS: Final[Mapping[str, float]] = {"time": 1.3, "cpu": 1.3, "statements": 1.1, "rows": 1.3, "pages": 2.5}
"""How many times more the large one may cost. Pages: each look into an index of millions of rows goes through two or
three levels more than into one of a hundred, and none more for the next ten millions; and PostgreSQL passes over the
entries of what was ready until it vacuums.
"""


@dataclass(frozen=True, slots=True)
class Act:
    """Something done with a site in so many ``parts``; each part returns how many of its ``unit`` it did.

    The acts of one round follow each other. Those that are not measured only make ready for the others.
    """

    name: str
    unit: str
    do: Callable[[Site], Awaitable[int]]
    parts: int = 1
    is_measured: bool = True


@dataclass(slots=True)
class Cost:
    """What an act has cost on one site."""

    units: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    counted: Reading = field(default_factory=Reading)

    def add(self, other: "Cost") -> None:
        self.units += other.units
        self.elapsed_s += other.elapsed_s
        self.cpu_s += other.cpu_s
        self.counted = self.counted.and_also(other.counted)


@dataclass(slots=True)
class Comparison:
    """One act on both sites: a pair of costs, small and large, for each round."""

    act: Act
    rounds: list[tuple[Cost, Cost]] = field(default_factory=list)

    def ratio(self, value: Callable[[Cost], float]) -> float:
        """Return the median of the rounds' ratios."""
        return statistics.median(
            (value(large) / large.units) / (value(small) / small.units) for small, large in self.rounds
        )

    def medians(self, value: Callable[[Cost], float]) -> tuple[float, float]:
        """Return what a unit cost on the large and on the small site, by the median of the rounds."""
        small, large = ([value(cost) / cost.units for cost in costs] for costs in zip(*self.rounds, strict=True))
        return statistics.median(large), statistics.median(small)

    def counts(self) -> tuple[list[float], list[float]]:
        """Return what was counted a unit on the large and on the small site."""
        small, large = Cost(), Cost()
        for one, other in self.rounds:
            small.add(one)
            large.add(other)
        return [each / large.units for each in large.counted], [each / small.units for each in small.counted]


async def compare(
    small: tuple[Site, Sequence[Act]], large: tuple[Site, Sequence[Act]], rounds: int
) -> list[Comparison]:
    """Do the acts of both sites, which pair by place, so many rounds after one that only warms up."""
    pairs = list(zip(small[1], large[1], strict=True))
    found = [Comparison(act) for act, _ in pairs]
    for number in range(rounds + 1):
        for comparison, (own, other) in zip(found, pairs, strict=True):
            costs = Cost(), Cost()
            for part in range(own.parts):
                both = [(small[0], own, costs[0]), (large[0], other, costs[1])]
                for site, act, cost in both if part % 2 else reversed(both):
                    cost.add(await _cost(site, act))
            if number:
                comparison.rounds.append(costs)
        print(f"round {number} of {rounds}: {large[0].name}", file=sys.stderr, flush=True)
    return [comparison for comparison in found if comparison.act.is_measured]


async def _cost(site: Site, act: Act) -> Cost:
    if not act.is_measured:
        return Cost(await act.do(site))
    before = site.counters.read()
    cpu_s, began = site.counters.cpu_s(), time.perf_counter()
    units = await act.do(site)
    elapsed_s, cpu_used_s = time.perf_counter() - began, site.counters.cpu_s() - cpu_s
    return Cost(units, elapsed_s, cpu_used_s, site.counters.read().since(before))


def finding(workload: str, store: str, small: str, found: Sequence[Comparison]) -> Finding:
    """Return the figures, large beside small, and which of them broke their limit."""
    figures = [
        Figure(f"{workload}-{each.act.name}", store, metric, unit, round(large, 2), small, round(other, 2), ratio)
        for each in found
        for metric, unit, large, other, ratio in _metrics(each)
    ]
    broken = [
        f"{line.workload} on {store}: {line.metric} {line.ours} {line.unit}, {line.ratio} times that of the {small}"
        for line in figures
        if line.ratio is not None and line.ratio > LIMITS.get(line.metric, float("inf"))
    ]
    return Finding(figures, broken)


def _metrics(each: Comparison) -> list[tuple[str, str, float, float, float | None]]:
    """Return (metric, unit, large, small, ratio) of one act."""
    unit = each.act.unit
    metrics: list[tuple[str, str, float, float, float | None]] = []
    for name, value in (("time", _elapsed_us), ("cpu", _cpu_us)):
        metrics.append((name, f"us/{unit}", *each.medians(value), round(each.ratio(value), 3)))
    for name, large, small in zip(Reading._fields, *each.counts(), strict=True):
        metrics.append((name, f"1/{unit}", large, small, round(large / small, 3) if small else None))
    return metrics


def _elapsed_us(cost: Cost) -> float:
    return cost.elapsed_s * 1e6


def _cpu_us(cost: Cost) -> float:
    return cost.cpu_s * 1e6
