"""W: the service beside bare Celery on the same Redis, interleaved, medians of several rounds.

For each store the service and the peer stand side by side; each round runs every workload on the one and at once on the
other, so that whatever else the machine does falls on both.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

from benchmarks.ledger import Ledger, PostgresLedger, SqliteLedger
from benchmarks.meter import measure
from benchmarks.peer import celery_workbench
from benchmarks.report import Figure, Finding, figures
from benchmarks.service import service_workbench
from benchmarks.workbench import Sample, Workbench
from benchmarks.workload import Shape, Work, Workload
from tests.servers import postgres_server, redis_server

NAME: Final = "celery"


def run(stores: Sequence[str], rounds: int, width: int, length: int) -> Finding:
    """Run all workloads on each store in turn: fans of ``width`` steps, chains of ``length``."""
    workloads = [Workload(shape, work, width if shape is Shape.FAN else length) for shape in Shape for work in Work]
    return Finding([line for store in stores for line in _on_store(store, workloads, rounds)])


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
