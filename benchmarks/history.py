"""H: what a step costs in an empty database and after a million finished steps, in a DAG of 100 and in one of 20,000.

No processes and no messages here, only the store and those who use it (:mod:`benchmarks.site`): what a worker's end and
claim, a recorded tool call, an owner's look and a submission send, read and take. Neither may grow with what has ended,
nor with how much of a DAG there is beside the step.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.growth import Act, compare, finding
from benchmarks.past import fill
from benchmarks.report import Finding
from benchmarks.site import Site, chain, fan, opened
from tests.servers import postgres_server

NAME: Final = "history"
FINISHED: Final = 1_000_000
SMALL: Final = 100
LARGE: Final = 20_000
PARTS: Final = 5
"""In how many parts an act is done, each beside the same part on the other database."""

PART: Final = 8
"""Calls, looks and the like of one part."""

FANS: Final = 8
"""Small fans that stand beside one large one."""


def run(stores: Sequence[str], rounds: int, *, finished: int = FINISHED, large: int = LARGE) -> Finding:
    """Measure on each store in turn."""
    found = Finding(())
    for store in stores:
        with databases(store, "empty", "full", "chains", "chain", "fans", "fan") as urls:
            fill(urls["full"], finished)
            found = found.and_also(asyncio.run(_against_history(store, urls, rounds, finished)))
            found = found.and_also(asyncio.run(_against_size(store, urls, rounds, large)))
    return found


async def _against_history(store: str, urls: dict[str, str], rounds: int, finished: int) -> Finding:
    async with opened("empty", urls["empty"]) as small, opened(f"{finished:,} finished steps", urls["full"]) as large:
        found = await compare((small, _daily()), (large, _daily()), rounds)
    return finding("H1", store, "empty database", found)


def _daily() -> list[Act]:
    """Return what happens all day: a chain and a fan are submitted and run, calls recorded, looks taken."""
    return [
        Act("submit", "step", lambda site: site.submit(chain(SMALL))),
        Act("begin", "step", lambda site: site.work(1, at_once=1), is_measured=False),
        Act("call", "call", lambda site: site.call_tools(PART), parts=PARTS),
        Act("keep-up", "round", lambda site: site.keep_up(PART), parts=PARTS),
        Act("look", "look", lambda site: site.look(PART), parts=PARTS),
        Act("hop", "step", lambda site: site.work(SMALL // PARTS - 1, at_once=1), parts=PARTS),
        Act("end", "step", lambda site: site.work(SMALL), is_measured=False),
        Act("fan", "step", _whole_fan, parts=2),
        Act("tidy", "look", lambda site: site.look(1), is_measured=False),
    ]


async def _whole_fan(site: Site) -> int:
    return await site.submit(fan(SMALL)) and await site.work(SMALL + 2)


async def _against_size(store: str, urls: dict[str, str], rounds: int, size: int) -> Finding:
    peer = f"DAGs of {SMALL}"
    async with opened(peer, urls["chains"]) as small, opened(f"chain of {size:,}", urls["chain"]) as large:
        await large.submit(chain(size))
        await large.work(1, at_once=1)
        found = await compare((small, _new_chain()), (large, _old_chain()), rounds)
        chains = finding("H2-chain", store, peer, found)
    async with opened(peer, urls["fans"]) as small, opened(f"fan of {size:,}", urls["fan"]) as large:
        found = await compare((small, _fans(SMALL, FANS)), (large, _fans(size, 1)), rounds)
    return chains.and_also(finding("H2-fan", store, peer, found))


def _new_chain() -> list[Act]:
    """Return a look at a short chain and some hops of it; every round has its own."""
    return [
        Act("submit", "step", lambda site: site.submit(chain(SMALL)), is_measured=False),
        Act("begin", "step", lambda site: site.work(1, at_once=1), is_measured=False),
        Act("look", "look", lambda site: site.look(PART), parts=PARTS),
        Act("hop", "step", lambda site: site.work(SMALL // PARTS - 1, at_once=1), parts=PARTS),
        Act("end", "step", lambda site: site.work(SMALL), is_measured=False),
        Act("tidy", "look", lambda site: site.look(1), is_measured=False),
    ]


def _old_chain() -> list[Act]:
    """Return the same at the chain that is under way, which every round takes further."""
    measured = {"look", "hop"}
    return [act if act.name in measured else replace(act, do=_nothing) for act in _new_chain()]


async def _nothing(_site: Site) -> int:
    return 1


def _fans(width: int, number: int) -> list[Act]:
    """Return so many fans at once, from their submission to their end, with a look in the middle."""
    steps = (width + 2) * number
    part = -(-steps // (2 * FANS))

    async def submit(site: Site) -> int:
        return sum([await site.submit(fan(width)) for _ in range(number)])

    return [
        Act("submit", "step", submit),
        Act("unlock-and-run", "step", lambda site: site.work(part), parts=FANS),
        Act("look", "look", lambda site: site.look(PART), parts=2),
        Act("run-and-join", "step", lambda site: site.work(part), parts=FANS),
        Act("end", "step", lambda site: site.work(steps), is_measured=False),
        Act("tidy", "look", lambda site: site.look(1), is_measured=False),
    ]


@contextmanager
def databases(store: str, *names: str) -> Iterator[dict[str, str]]:
    """Yield the URLs of new databases of one store, by name."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="soong-bench-") as folder:
            yield {name: f"sqlite:///{Path(folder) / name}.db" for name in names}
        return
    # As durable as the SQLite of the embedded service: a commit is on the disk.
    with postgres_server(durable=True) as server, ExitStack() as stack:
        yield {name: stack.enter_context(server.fresh_database(name)) for name in names}
