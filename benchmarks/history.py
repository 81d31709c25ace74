"""H: what a step costs in an empty database and after a million finished steps, in a DAG of 100 and in one of 20,000.

No processes and no messages here, only the store and those who use it (:mod:`benchmarks.site`): what a worker's end and
claim, a recorded tool call, an owner's look and a submission send, read and take. Neither may grow with what has ended,
nor with how much of a DAG there is beside the step.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.growth import Act, Comparison, compare, finding
from benchmarks.past import fill
from benchmarks.report import Finding
from benchmarks.site import Site, chain, fan, opened
from tests.servers import postgres_server

NAME: Final = "history"
FINISHED: Final = 1_000_000
SMALL: Final = 100
LARGE: Final = 20_000

VACUUM: Final = Act("vacuum", "time", lambda site: site.vacuum(), is_measured=False)
"""Before a look: scans visit what changes left behind until it is vacuumed, more or fewer of it by chance."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: so many rounds, in each an act in so many parts, side by side with the other database's.

    ``part`` is the number of calls, looks and the like in one part; ``fans`` that of small fans beside a large one.
    """

    rounds: int
    parts: int = 5
    part: int = 8
    fans: int = 8


def run(stores: Sequence[str], effort: Effort, *, finished: int = FINISHED, large: int = LARGE) -> Finding:
    """Measure on each store in turn."""
    found = Finding(())
    for store in stores:
        with databases(store, "empty", "full", "chains", "chain", "fans", "fan") as url:
            fill(url["full"], finished)
            days = asyncio.run(against_history(url["empty"], url["full"], effort))
            chains = asyncio.run(against_long_chain(url["chains"], url["chain"], large, effort))
            fans = asyncio.run(against_wide_fan(url["fans"], url["fan"], large, effort))
        found = found.and_also(finding("H1", store, "empty database", days))
        found = found.and_also(finding("H2-chain", store, f"chains of {SMALL}", chains))
        found = found.and_also(finding("H2-fan", store, f"fans of {SMALL}", fans))
    return found


async def against_history(empty_url: str, full_url: str, effort: Effort) -> list[Comparison]:
    """Compare days in a new database with the same in one that is full of what has ended."""
    async with opened("empty", empty_url) as small, opened("full", full_url) as large:
        return await compare((small, _daily(effort)), (large, _daily(effort)), effort.rounds)


async def against_long_chain(small_url: str, large_url: str, length: int, effort: Effort) -> list[Comparison]:
    """Compare hops of short chains, one after the other, with hops of one of that length."""
    async with opened("chains", small_url) as small, opened(f"chain of {length:,}", large_url) as large:
        await large.submit(chain(length))
        await large.work(1, at_once=1)
        return await compare((small, _new_chain(effort)), (large, _old_chain(effort)), effort.rounds)


async def against_wide_fan(small_url: str, large_url: str, width: int, effort: Effort) -> list[Comparison]:
    """Compare some small fans with one of that width, from their submission to their end."""
    async with opened("fans", small_url) as small, opened(f"fan of {width:,}", large_url) as large:
        return await compare(
            (small, _fans(SMALL, effort.fans, effort)), (large, _fans(width, 1, effort)), effort.rounds
        )


def _daily(effort: Effort) -> list[Act]:
    """Return what happens all day: a chain and a fan are submitted and run, calls recorded, looks taken."""
    hops = SMALL // effort.parts - 1
    return [
        Act("submit", "step", lambda site: site.submit(chain(SMALL))),
        Act("begin", "step", lambda site: site.work(1, at_once=1), is_measured=False),
        Act("call", "call", lambda site: site.call_tools(effort.part), parts=effort.parts),
        VACUUM,
        Act("keep-up", "round", lambda site: site.keep_up(effort.part), parts=effort.parts),
        Act("look", "look", lambda site: site.look(effort.part), parts=effort.parts),
        Act("hop", "step", lambda site: site.work(hops, at_once=1), parts=effort.parts),
        Act("end", "step", lambda site: site.work(SMALL), is_measured=False),
        Act("fan", "step", _whole_fan, parts=min(effort.parts, 2)),
        Act("tidy", "look", lambda site: site.look(1), is_measured=False),
    ]


async def _whole_fan(site: Site) -> int:
    return await site.submit(fan(SMALL)) and await site.work(SMALL + 2)


def _new_chain(effort: Effort) -> list[Act]:
    """Return a look at a short chain and some hops of it; every round has its own."""
    hops = SMALL // effort.parts - 1
    return [
        Act("submit", "step", lambda site: site.submit(chain(SMALL)), is_measured=False),
        Act("begin", "step", lambda site: site.work(1, at_once=1), is_measured=False),
        VACUUM,
        Act("look", "look", lambda site: site.look(effort.part), parts=effort.parts),
        Act("hop", "step", lambda site: site.work(hops, at_once=1), parts=effort.parts),
        Act("end", "step", lambda site: site.work(SMALL), is_measured=False),
        Act("tidy", "look", lambda site: site.look(1), is_measured=False),
    ]


def _old_chain(effort: Effort) -> list[Act]:
    """Return the same at the chain that is under way, which every round takes further."""
    kept = {"vacuum", "look", "hop"}
    return [act if act.name in kept else replace(act, do=_nothing) for act in _new_chain(effort)]


async def _nothing(_site: Site) -> int:
    return 1


def _fans(width: int, number: int, effort: Effort) -> list[Act]:
    """Return so many fans at once, from their submission to their end, with a look in the middle."""
    steps = (width + 2) * number
    part = -(-steps // (2 * effort.parts))

    async def submit(site: Site) -> int:
        return sum([await site.submit(fan(width)) for _ in range(number)])

    return [
        Act("submit", "step", submit),
        Act("unlock-and-run", "step", lambda site: site.work(part), parts=effort.parts),
        VACUUM,
        Act("look", "look", lambda site: site.look(effort.part), parts=effort.parts),
        Act("run-and-join", "step", lambda site: site.work(part), parts=effort.parts),
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
    # As durable as the SQLite of the embedded service: a commit is on the disk. Vacuumed as in docker-compose.yml.
    with postgres_server(durable=True, settings=("autovacuum_naptime=10s",)) as server, ExitStack() as stack:
        yield {name: stack.enter_context(server.fresh_database(name)) for name in names}
