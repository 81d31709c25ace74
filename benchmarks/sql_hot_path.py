"""What the store's hot path costs by itself: no broker, no worker process, no step body.

``PYTHONPATH=. python -P -m benchmarks.sql_hot_path`` prints, for SQLite and for PostgreSQL with its disk waits on, the
time of one commit, of a chain hop (end and claim of one step with its run, events and result node, in one transaction),
of fan-outs through two stores at once, of one append, and how many transactions and statements each took.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.events import NewEvent, NewNode, NodeKind
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Advance, Claim, NewStep, StepEnd
from soong.shared.storage.sql.store import SqlStore, open_store
from tests.model.builders import make_session, make_step, make_task, make_worker
from tests.servers import postgres_server

CLOCK: Final = SystemClock()
SLOTS: Final = 16


def _end(claim: Claim) -> StepEnd:
    return StepEnd(
        step_key=claim.step_key,
        run_id=claim.identity.run_id,
        fence=claim.fence,
        status=StepStatus.COMPLETED,
        end_reason=EndReason.COMPLETED,
        output={"value": 1},
    )


async def _advance(store: SqlStore, worker_id: str, ends: Sequence[StepEnd], claim: int, live: int) -> Advance:
    return await store.claims.advance(
        worker_id, ends, claim=claim, pools=("default",), capabilities=(), live_workers=live, now_us=CLOCK.now_us()
    )


async def _worker(store: SqlStore) -> str:
    worker = make_worker()
    await store.sessions.register_worker(worker)
    return worker.id


def _fan(width: int) -> list[NewStep]:
    middle = [make_step(f"s{number}", depends_on=["root"]) for number in range(width)]
    return [make_step("root"), *middle, make_step("join", depends_on=[step.key for step in middle])]


def _chain(length: int) -> list[NewStep]:
    return [make_step(f"s{n}", depends_on=[f"s{n - 1}"] if n else []) for n in range(length)]


async def chain(store: SqlStore, session: Session, length: int) -> list[float]:
    """Return the seconds of each hop of a chain."""
    worker_id = await _worker(store)
    await store.tasks.create_task(make_task(session.id, *_chain(length)))
    claims = (await _advance(store, worker_id, (), 1, 1)).claims
    took = []
    while claims:
        start = time.perf_counter()
        claims = (await _advance(store, worker_id, [_end(claims[0])], 1, 1)).claims
        took.append(time.perf_counter() - start)
    return took


async def fan_out(stores: Sequence[SqlStore], session: Session, width: int) -> tuple[float, float, int]:
    """Return the seconds to create a fan-out and to drive it through the stores, and the transactions that took."""
    workers = [await _worker(store) for store in stores]
    task = make_task(session.id, *_fan(width))
    start = time.perf_counter()
    await stores[0].tasks.create_task(task)
    created = time.perf_counter()
    counts = await asyncio.gather(*(_drive(s, w, task.id, len(stores)) for s, w in zip(stores, workers, strict=True)))
    return created - start, time.perf_counter() - created, sum(counts)


async def _drive(store: SqlStore, worker_id: str, task_id: str, live: int) -> int:
    """Claim and end until the task has nothing more to do; return the number of transactions."""
    held: tuple[Claim, ...] = ()
    for count in range(1, 1_000_000):
        advance = await _advance(store, worker_id, [_end(claim) for claim in held], SLOTS, live)
        held = advance.claims
        if not held:
            left = await store.tasks.counts(task_id)
            if not any(number for status, number in left.items() if not status.is_terminal):
                return count
            await asyncio.sleep(0.001)
    raise AssertionError("unreachable")


async def appends(store: SqlStore, session: Session, number: int) -> list[float]:
    """Return the seconds of each append of a node and two events to one run."""
    worker_id = await _worker(store)
    await store.tasks.create_task(make_task(session.id, make_step("a")))
    (claim,) = (await _advance(store, worker_id, (), 1, 1)).claims
    took = []
    nodes = [NewNode(NodeKind.ASSISTANT, {"v": 1, "text": "x" * 400})]
    events = [NewEvent("model_requested", {"turn": 1}), NewEvent("model_responded", {"turn": 1})]
    for _ in range(number):
        start = time.perf_counter()
        await store.runs.append(claim.identity.run_id, claim.fence, nodes=nodes, events=events, now_us=CLOCK.now_us())
        took.append(time.perf_counter() - start)
    await _advance(store, worker_id, [_end(claim)], 0, 1)
    return took


async def commits(store: SqlStore, number: int) -> list[float]:
    """Return the seconds of the smallest transaction: a worker's registration is one insert."""
    took = []
    for _ in range(number):
        start = time.perf_counter()
        await _worker(store)
        took.append(time.perf_counter() - start)
    return took


def _print(label: str, took: Sequence[float]) -> None:
    ordered = sorted(took)
    p95 = ordered[int(len(ordered) * 0.95)]
    print(f"  {label:<28} median {statistics.median(took) * 1e3:6.2f} ms   p95 {p95 * 1e3:6.2f} ms   n {len(took)}")


async def measure(name: str, url: str, scale: int) -> None:
    stores = [await open_store(url, migrate=True), await open_store(url)]
    session = make_session(owner_id="own_bench")
    await stores[0].sessions.open_session(session)
    print(name)
    _print("one insert and commit", await commits(stores[0], 100 * scale))
    await chain(stores[0], session, 20)
    _print("chain hop", await chain(stores[0], session, 100 * scale))
    _print("append (1 node, 2 events)", await appends(stores[0], session, 100 * scale))
    for width in (500, 500 * scale):
        created, driven, count = await fan_out(stores, session, width)
        rate = width / driven
        print(
            f"  fan-out {width:>5}, two stores    create {created * 1e3:6.0f} ms   "
            f"run {driven * 1e3:6.0f} ms   {rate:6.0f} steps/s   {count} transactions"
        )
    _print("chain hop, after all that", await chain(stores[0], session, 100 * scale))
    for store in stores:
        await store.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=3, help="how much of everything")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), default=None)
    options = parser.parse_args(arguments)
    runs: dict[str, Callable[[], None]] = {"sqlite": lambda: _sqlite(options.scale)}
    runs["postgresql"] = lambda: _postgresql(options.scale)
    for name, run in runs.items():
        if options.only in (None, name):
            run()


def _sqlite(scale: int) -> None:
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as folder:
        asyncio.run(measure("SQLite (synchronous FULL)", f"sqlite:///{Path(folder) / 'bench.db'}", scale))


def _postgresql(scale: int) -> None:
    with postgres_server(durable=True) as server, server.fresh_database("bench") as url:
        asyncio.run(measure("PostgreSQL (fsync on)", url, scale))


if __name__ == "__main__":
    main()
