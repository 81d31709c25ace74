"""W: the service beside bare Celery on the same Redis and two durable libraries, interleaved, medians of rounds.

For each store the service stands beside Celery in its default form, one worker with two child processes; in one worker
with two threads; and in its fastest form, two workers that run their tasks themselves. It also stands beside DBOS and
LangGraph, which run steps in one process and keep them in PostgreSQL. Celery's tasks do nothing, whatever the step
does. Where steps are agents, the same agent runs in Celery's fastest form with Pydantic AI; and beside PostgreSQL, with
one call, in DBOS with Pydantic AI and in LangGraph as a graph. It lists the same folder as often, one call after
another. Each round runs every workload on each of them, one after the other, so that whatever else the machine does
falls on all.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from benchmarks.durable_peers import durable_workbenches
from benchmarks.ledger import Ledger, PostgresLedger, SqliteLedger
from benchmarks.meter import measure
from benchmarks.peer import celery_workbench
from benchmarks.report import Figure, Finding, figures
from benchmarks.service import project_of, service_workbench
from benchmarks.workbench import Sample, Workbench
from benchmarks.workload import Shape, Work, Workload
from tests.servers import postgres_server, redis_server

NAME: Final = "celery"
SINGLES: Final = 40
"""Tasks of one step in each round: 200 in five."""


def run(stores: Sequence[str], rounds: int, width: int, length: int) -> Finding:
    """Run all workloads on each store in turn: fans of ``width`` steps, chains of ``length``."""
    sizes = {Shape.FAN: width, Shape.CHAIN: length, Shape.SINGLE: SINGLES}
    workloads = [Workload(shape, work, size) for shape, size in sizes.items() for work in Work]
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as homes:
        return Finding([line for store in stores for line in _on_store(store, workloads, rounds, Path(homes))])


def _on_store(store: str, workloads: Sequence[Workload], rounds: int, homes: Path) -> list[Figure]:
    with (
        redis_server() as server,
        redis.Redis.from_url(server.socket_url) as broker,
        database(store, homes) as place,
        celery_workbench(server.socket_url, pool="prefork") as prefork,
        celery_workbench(server.socket_url, pool="threads") as threads,
        celery_workbench(server.socket_url, pool="solo") as solo,
        celery_workbench(server.socket_url, pool="solo", agents_in=project_of(place.home)) as agents,
        durable_workbenches(None if store == "sqlite" else project_of(place.home)) as durable,
        service_workbench(store, place.home, place.url, server.socket_url, place.ledger, more_pids=place.pids) as ours,
    ):
        benches: tuple[Workbench, ...] = (ours, prefork, threads, solo, agents, *durable)
        samples = _interleaved(benches, workloads, rounds, broker)
    return [
        line
        for load, (own, *theirs) in samples.items()
        for peer, other in zip(benches[1:], theirs, strict=True)
        if other
        for line in figures(load, store, own, peer.name, other)
    ]


def _interleaved(
    benches: Sequence[Workbench], workloads: Sequence[Workload], rounds: int, broker: redis.Redis
) -> dict[Workload, tuple[list[Sample], ...]]:
    samples: dict[Workload, tuple[list[Sample], ...]] = {one: tuple([] for _ in benches) for one in workloads}
    # Round 0 warms all up and is not counted.
    for number in range(rounds + 1):
        for workload in workloads:
            for workbench, kept in zip(benches, samples[workload], strict=True):
                if not workbench.does(workload.work):
                    continue
                sample = measure(workbench, workload, broker)
                if number:
                    kept.append(sample)
        print(f"round {number} of {rounds} on {benches[0].name}", file=sys.stderr, flush=True)
    return samples


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service keeps what it does. ``url`` is empty for SQLite in its home."""

    home: Path
    url: str
    ledger: Ledger
    pids: Sequence[int] = ()


@contextmanager
def database(store: str, homes: Path | None = None) -> Iterator[Place]:
    """Yield a fresh database, with a home of its own that ends with it; with ``homes``, one in there that stays.

    An ext4 without a journal uses no inode again for a minute or more after its file was deleted, and looks at each
    when it makes another: where many were deleted just before, the files of the next measurement cost several times as
    much CPU.
    """
    with tempfile.TemporaryDirectory(prefix="soong-bench-") if homes is None else nullcontext(homes) as folder:
        home = Path(folder) / f"home-{store}"
        home.mkdir()
        if store == "sqlite":
            yield Place(home, "", SqliteLedger(home / "soong.db"))
            return
        # As durable as the SQLite of the embedded service: a commit is on the disk.
        with postgres_server(durable=True) as server, server.fresh_database("soong") as url:
            yield Place(home, url, PostgresLedger(server.url("soong", driver="postgresql")), (server.pid,))
