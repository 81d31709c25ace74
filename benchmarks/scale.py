"""S: one, two, four and eight worker processes on PostgreSQL, beside bare Celery with as many.

Four deployments stand side by side, and each round runs every work on each of them, so that whatever else the machine
does falls on all. **throughput** and **cpu** are of a wide task whose steps are all ready at once: functions that
return their input, agents of one scripted turn, and functions that wait for 50 ms as agents wait for their models. On a
machine with fewer cores than workers the first two cannot grow: CPU a step says what more cores would make of them.
**claim** is the time from a client's handing over one step to its claim, in a deployment with nothing to do.

Two promises are checked in the rows. No step is claimed twice: one claim in its log, by the worker that ended it, one
fence. And a session's thousand steps hold back another's one by at most slots + 1 claims (DIS-10), counted in the order
in which PostgreSQL committed them, from when its client knows that it stands.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.fleet import SLOTS, Fleet, cpu_of_tree, fleet
from benchmarks.handing_over import complete
from benchmarks.peer import CeleryWorkbench, celery_workbench
from benchmarks.report import Figure, Finding
from benchmarks.workload import Shape, Work, Workload
from soong.shared.core.jsontext import Json
from tests.log_entries import POSTGRES_EVENTS
from tests.servers import PostgresServer, postgres_server, redis_server

NAME: Final = "scale"
WORKERS: Final = (1, 2, 4, 8)
WIDTH: Final = 400
TRICKLE: Final = 20
CROWD: Final = 1000
WORKS: Final[Mapping[str, Mapping[str, Json]]] = {
    "python": {"kind": "python", "call": "builtin.echo", "inputs": {"value": 1}},
    "script": {"kind": "agent", "instructions": "Return the value.", "script": "builtin.echo", "inputs": {"value": 1}},
    "wait-50ms": {"kind": "python", "call": "builtin.sleep", "inputs": {"seconds": 0.05}},
}
_HELD_BACK: Final = f"""
    SELECT count(*) FROM runs JOIN {POSTGRES_EVENTS} AS events ON events.run_id = runs.id
    WHERE runs.task_id = %s AND events.type = 'step_claimed'
      AND events.time_us > 1000000 * %s::float8
      AND events.time_us < (
          SELECT claimed.time_us FROM runs JOIN {POSTGRES_EVENTS} AS claimed
          ON claimed.run_id = runs.id WHERE runs.task_id = %s AND claimed.type = 'step_claimed')
"""
_BEGUN: Final = "SELECT count(*) FROM steps WHERE task_id = %s AND status <> 'ready'"
CLAIMED_TWICE: Final = f"""
    SELECT count(*), count(*) FILTER (WHERE status <> 'completed' OR fence <> 1 OR starts <> 1 OR lost_leases <> 0
        OR (SELECT array_agg(data::json->>'worker') FROM {POSTGRES_EVENTS} AS events
            WHERE run_id = steps.run_id AND type = 'step_claimed')
           IS DISTINCT FROM ARRAY[worker_id])
    FROM steps
"""
_CLAIM_MS: Final = f"""
    SELECT (claimed.time_us - runs.created_us) / 1000.0
    FROM runs JOIN {POSTGRES_EVENTS} AS claimed ON claimed.run_id = runs.id AND claimed.type = 'step_claimed'
    WHERE runs.task_id = %s
"""


@dataclass(slots=True)
class Samples:
    """What was seen of one deployment, by work: steps a second, and milliseconds of CPU a step, its own and the
    database's; claims in ms; claims that one step of another session had to wait for.
    """

    rate: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    database_ms: dict[str, list[float]] = field(default_factory=dict)
    peer_rate: list[float] = field(default_factory=list)
    claim_ms: list[float] = field(default_factory=list)
    held_back: list[int] = field(default_factory=list)


def run(rounds: int, workers: Sequence[int] = WORKERS) -> Finding:
    """Measure all deployments, round by round; the first round warms up and is not counted."""
    found = Finding(())
    # As durable as a service's: a commit is on the disk. Times of commits are what claims are ordered by.
    with (
        postgres_server(durable=True, settings=("track_commit_timestamp=on",)) as server,
        _fleets(server, workers) as fleets,
    ):
        samples = [Samples() for _ in fleets]
        for number in range(rounds + 1):
            for (own, peer), kept in zip(fleets, samples, strict=True):
                _round(own, peer, server, kept if number else Samples())
            print(f"round {number} of {rounds} on {', '.join(map(str, workers))} workers", file=sys.stderr, flush=True)
        for (own, peer), kept in zip(fleets, samples, strict=True):
            found = found.and_also(_finding(own, peer.name, kept))
    return found


@contextmanager
def _fleets(server: PostgresServer, workers: Sequence[int]) -> Iterator[list[tuple[Fleet, CeleryWorkbench]]]:
    with ExitStack() as stack:
        yield [
            (
                stack.enter_context(fleet(server, number)),
                stack.enter_context(celery_workbench(stack.enter_context(redis_server()).socket_url, number)),
            )
            for number in workers
        ]


def _round(own: Fleet, peer: CeleryWorkbench, server: PostgresServer, kept: Samples) -> None:
    for work, body in WORKS.items():
        prepared = own.prepare(work, _many(body, WIDTH))
        cpu_s, database_s = own.cpu_s(), _database_cpu_s(server)
        elapsed_s = own.runner.run(complete(own.client, prepared))
        kept.rate.setdefault(work, []).append(WIDTH / elapsed_s)
        kept.cpu_ms.setdefault(work, []).append((own.cpu_s() - cpu_s) * 1000 / WIDTH)
        kept.database_ms.setdefault(work, []).append((_database_cpu_s(server) - database_s) * 1000 / WIDTH)
    kept.peer_rate.append(WIDTH / sum(peer.run(Workload(Shape.FAN, Work.PYTHON, WIDTH))))
    for _ in range(TRICKLE):
        single = own.prepare("one", _many(WORKS["python"], 1))
        own.runner.run(complete(own.client, single))
        kept.claim_ms.append(_number(own.ask(_CLAIM_MS, single.task.id)))
    kept.held_back.append(own.runner.run(_held_back(own)))


async def _held_back(own: Fleet) -> int:
    """Return how many claims of a thousand steps came between another session's step being there and its claim.

    It is there when its client has been told so: while it is being committed, it is on its way to the disk.
    """
    crowd = own.prepare("crowd", _many(WORKS["python"], CROWD))
    single = own.prepare("one", _many(WORKS["python"], 1))
    running = asyncio.ensure_future(complete(own.client, crowd))
    while not _number(own.ask(_BEGUN, crowd.task.id)):  # noqa: ASYNC110  # rows have no event
        await asyncio.sleep(0.005)
    await own.client.submit(single)
    told_s = time.time()
    await running
    while not (await own.client.store.tasks.task(single.task.id)).status.is_terminal:  # noqa: ASYNC110  # rows have no event
        await asyncio.sleep(0.005)
    return int(_number(own.ask(_HELD_BACK, crowd.task.id, told_s, single.task.id)))


def _many(body: Mapping[str, Json], number: int) -> list[Mapping[str, Json]]:
    return [{"id": f"s{place}", **body} for place in range(number)]


def _database_cpu_s(server: PostgresServer) -> float:
    return cpu_of_tree(server.pid)


def _number(row: tuple[object, ...]) -> float:
    return float(str(row[0]))


def _finding(own: Fleet, peer: str, kept: Samples) -> Finding:
    steps, wrong = (int(str(value)) for value in own.ask(CLAIMED_TWICE))
    broken = []
    if wrong:
        broken.append(f"{own.workers} workers: {wrong} of {steps} steps were not claimed just once")
    if max(kept.held_back) > own.slots + 1:
        broken.append(f"{own.workers} workers held one step back by {max(kept.held_back)} claims, not {own.slots + 1}")
    lines = [*_speed(own, peer, kept), *_claims(own, kept)]
    lines.append(_figure(own, "all", "steps claimed once", "steps", steps - wrong))
    lines.append(_figure(own, "all", "steps claimed twice", "steps", wrong))
    return Finding(lines, broken)


def _speed(own: Fleet, peer: str, kept: Samples) -> Iterator[Figure]:
    theirs = statistics.median(kept.peer_rate)
    for work in WORKS:
        rate = statistics.median(kept.rate[work])
        beside = (peer, theirs) if work == "python" else ("-", None)
        yield _figure(own, work, "claims", "1/s", rate, *beside)
        yield _figure(own, work, "time a step", "ms", 1000 / rate)
        yield _figure(own, work, "cpu", "ms/step", statistics.median(kept.cpu_ms[work]))
        yield _figure(own, work, "cpu of PostgreSQL", "ms/step", statistics.median(kept.database_ms[work]))


def _claims(own: Fleet, kept: Samples) -> Iterator[Figure]:
    ordered = sorted(kept.claim_ms)
    yield _figure(own, "one", "claim, p50", "ms", statistics.median(ordered))
    yield _figure(own, "one", "claim, p95", "ms", ordered[int(len(ordered) * 0.95)])
    yield _figure(own, "crowd", "held back, most", "claims", max(kept.held_back), "slots + 1", own.slots + 1)


def _figure(
    own: Fleet, work: str, metric: str, unit: str, value: float, peer: str = "-", theirs: float | None = None
) -> Figure:
    ratio = round(value / theirs, 4) if theirs else None
    workload = f"S-{own.workers}x{SLOTS}-{work}"
    return Figure(workload, "postgresql", metric, unit, round(value, 3), peer, theirs and round(theirs, 3), ratio)
