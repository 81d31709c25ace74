"""``make simulate``: many seeds, or one again with its story.

``python -m tests.simulation --seeds 10000 --processes 2`` or ``python -m tests.simulation --seed 39``.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.model.memory import MemoryStore
from tests.simulation.borders import Fault
from tests.simulation.deployment import AuditedStore
from tests.simulation.runs import Report, simulate
from tests.simulation.sqlite import sqlite_stores

CHUNK = 20
SHOWN = 5
"""Failing seeds whose story is printed."""


@dataclass(slots=True)
class Total:
    """All reports so far."""

    seeds: int = 0
    failing: list[Report] = field(default_factory=list)
    struck: Counter[Fault] = field(default_factory=Counter)
    borders: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    longest_wait: int = 0

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.struck += report.struck
        self.borders += report.borders
        self.counts += report.counts
        self.longest_wait = max(self.longest_wait, report.longest_wait)
        if report.broken:
            self.failing.append(report)

    def metrics(self, elapsed_s: float) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "seeds_failing": [report.seed for report in self.failing],
            "elapsed_s": round(elapsed_s, 1),
            "seeds_per_s": round(self.seeds / elapsed_s, 2),
            **{name.replace(" ", "_"): number for name, number in sorted(self.counts.items())},
            "most_claims_of_others_before_ones_own": self.longest_wait,
            "faults": {str(fault): self.struck[fault] for fault in Fault},
            "borders_hit": len(self.borders),
            "borders": {f"{border}: {fault}": number for (border, fault), number in sorted(self.borders.items())},
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one again and print its story")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="begin no more seeds after this long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", default="", help="write the metrics into this file")
    parser.add_argument("--store", choices=["memory", "sqlite"], default="memory")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _again(given.seed, given.store)
    seeds = range(given.first, given.first + given.seeds)
    return _many(seeds, given.store, given.processes, given.limit_s, given.json)


def _again(seed: int, store: str) -> int:
    with _stores(store) as open_one:
        report = simulate(seed, open_one, is_whole=True)
    _say("\n".join(report.tail))
    _say(f"seed {seed}, story {report.digest[:16]}: {report.broken or 'every promise was kept'}")
    return int(bool(report.broken))


def _many(seeds: range, store: str, processes: int, limit_s: float, file: str) -> int:
    total, began = Total(), time.monotonic()
    shown_at = began
    for report in _reports(seeds, store, processes, lambda: time.monotonic() - began > limit_s):
        total.add(report)
        if report.broken and len(total.failing) <= SHOWN:
            _say(str(report))
        if time.monotonic() - shown_at > 10:
            shown_at = time.monotonic()
            _say(f"{total.seeds} seeds, {total.seeds / (shown_at - began):.1f} a second, {len(total.failing)} failing")
    metrics = total.metrics(time.monotonic() - began)
    _say(json.dumps(metrics, indent=2))
    if file:
        Path(file).write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    return int(bool(total.failing))


def _reports(seeds: range, store: str, processes: int, is_late: Callable[[], bool]) -> Iterator[Report]:
    chunks = iter(range(seeds.start, seeds.stop, CHUNK))
    with ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(_chunk, store, start, seeds.stop) for start in islice(chunks, processes + 1)]
        while running:
            yield from running.pop(0).result()
            following = None if is_late() else next(chunks, None)
            if following is not None:
                running.append(pool.submit(_chunk, store, following, seeds.stop))


def _chunk(store: str, start: int, stop: int) -> list[Report]:
    with _stores(store) as open_one:
        return [simulate(seed, open_one) for seed in range(start, min(start + CHUNK, stop))]


def _stores(store: str) -> AbstractContextManager[Callable[[], AuditedStore]]:
    return sqlite_stores() if store == "sqlite" else nullcontext(MemoryStore)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
