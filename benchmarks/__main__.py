"""``make bench``: the service beside bare Celery on the same Redis, interleaved, medians of several rounds.

For each store the service and the peer stand side by side; each round runs every workload on the one and at once on the
other, so that whatever else the machine does falls on both. Before them stands one tool call by itself, beside the
function it calls and beside Pydantic AI's own tool call (:mod:`benchmarks.tool_call`).
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from benchmarks import tool_call
from benchmarks.ledger import Ledger, PostgresLedger, SqliteLedger
from benchmarks.meter import measure
from benchmarks.peer import celery_workbench
from benchmarks.report import Figure, figures, table, write
from benchmarks.service import service_workbench
from benchmarks.workbench import Sample, Workbench
from benchmarks.workload import Shape, Work, Workload
from tests.servers import postgres_server, redis_server

TOOL_CALL_ROUNDS = 6
"""Rounds of tool calls to one of the others: they are a thousand times shorter."""
LATEST = Path(__file__).resolve().parent / "latest.json"
STORES = ("sqlite", "postgresql")


def main() -> int:
    # So that a run that is told to stop takes its servers and its service with it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    options = _options()
    workloads = [
        Workload(shape, work, options.width if shape is Shape.FAN else options.length)
        for shape in Shape
        for work in Work
        if not options.only or f"{shape}-{work}" in options.only
    ]
    found: list[Figure] = []
    if not options.only or tool_call.NAME in options.only:
        found += asyncio.run(tool_call.measure(options.rounds * TOOL_CALL_ROUNDS)).figures()
        print(table(found), flush=True)
    for store in options.stores if workloads else ():
        found += _on_store(store, workloads, options.rounds)
        print(table(found), flush=True)
    write(found, options.output)
    print(f"\n{len(os.sched_getaffinity(0))} cores, median of {options.rounds} rounds; written to {options.output}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=500, help="parallel steps of W1")
    parser.add_argument("--length", type=int, default=100, help="steps in the chain of W2")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORKLOAD", help=f"such as W1-python or {tool_call.NAME}"
    )
    parser.add_argument("--output", type=Path, default=LATEST)
    return parser.parse_args()


def _on_store(store: str, workloads: Sequence[Workload], rounds: int) -> list[Figure]:
    with (
        redis_server() as server,
        redis.Redis.from_url(server.socket_url) as broker,
        _database(store) as (home, database_url, ledger),
        celery_workbench(server.socket_url) as theirs,
        service_workbench(store, home, database_url, server.socket_url, ledger) as ours,
    ):
        samples = _interleaved(ours, theirs, workloads, rounds, broker)
        return [line for load in workloads for line in figures(load, ours.name, *_pair(samples[load], theirs.name))]


def _pair(samples: tuple[list[Sample], list[Sample]], peer: str) -> tuple[list[Sample], str, list[Sample]]:
    return samples[0], peer, samples[1]


def _interleaved(
    ours: Workbench, theirs: Workbench, workloads: Sequence[Workload], rounds: int, broker: redis.Redis
) -> dict[Workload, tuple[list[Sample], list[Sample]]]:
    samples: dict[Workload, tuple[list[Sample], list[Sample]]] = {workload: ([], []) for workload in workloads}
    # Round 0 warms both up and is not counted.
    for number in range(rounds + 1):
        for workload in workloads:
            for workbench, kept in zip((ours, theirs), samples[workload], strict=True):
                sample = measure(workbench, workload, broker)
                if number:
                    kept.append(sample)
        print(f"round {number} of {rounds} on {ours.name}", file=sys.stderr, flush=True)
    return samples


@contextmanager
def _database(store: str) -> Iterator[tuple[Path, str, Ledger]]:
    """Yield a home for the service, the URL of its database (empty: SQLite in that home), and its ledger."""
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as folder:
        home = Path(folder)
        if store == "sqlite":
            yield home, "", SqliteLedger(home / "soong.db")
            return
        # As durable as the SQLite of the embedded service: a commit is on the disk.
        with postgres_server(durable=True) as server, server.fresh_database("soong") as url:
            yield home, url, PostgresLedger(server.url("soong", driver="postgresql"))


if __name__ == "__main__":
    sys.exit(main())
