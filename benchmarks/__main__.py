"""``make bench``: what Soong costs, beside what others cost or beside itself when it is small.

``PYTHONPATH=. python -P -m benchmarks NAME…`` runs some of the parts, nothing named all of them:

- ``tool-call``: one tool call beside the function it calls and Pydantic AI's (:mod:`benchmarks.tool_call`);
- ``celery``: fans and chains of steps beside bare Celery on the same Redis (:mod:`benchmarks.against_celery`);
- ``scale``: one, two, four and eight worker processes on PostgreSQL (:mod:`benchmarks.scale`);
- ``consent``: a question, its answer and its decision beside a bare message there and back (:mod:`benchmarks.consent`);
- ``history``: a step in an empty database and a full one, a small DAG and a large one (:mod:`benchmarks.history`);
- ``early-reads``: reads that start while a model's answer arrives (:mod:`benchmarks.early_reads`);
- ``start``: commands from cold and beside a service, and a service that does nothing (:mod:`benchmarks.start`);
- ``telemetry``: a service that sends traces beside one that does not (:mod:`benchmarks.telemetry`);
- ``watchers``: two hundred people who follow one task over HTTP (:mod:`benchmarks.watchers`);
- ``agents``: agents on a slow model server: makespan, memory, turns (:mod:`benchmarks.agents`);
- ``waiting``: a thousand agents that wait at once (:mod:`benchmarks.waiting`);
- ``wide-map``: a map step with ten thousand agents as children (:mod:`benchmarks.wide_map`).

A part is one line of ``PARTS`` below: a function from these options to its figures and to the promises that they break.
The figures of the parts that ran replace theirs in ``latest.json``; the exit code is 1 when a promise was broken.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import (
    against_celery,
    agents,
    consent,
    early_reads,
    history,
    scale,
    start,
    telemetry,
    tool_call,
    waiting,
    watchers,
    wide_map,
)
from benchmarks.report import Finding, table, write
from tests.servers import ServerStartError

TOOL_CALL_ROUNDS = 6
"""Rounds of tool calls to one of the others: they are a thousand times shorter."""
LATEST = Path(__file__).resolve().parent / "latest.json"
STORES = ("sqlite", "postgresql")


def _tool_call(options: argparse.Namespace) -> Finding:
    return asyncio.run(tool_call.measure(options.rounds * TOOL_CALL_ROUNDS)).finding()


def _celery(options: argparse.Namespace) -> Finding:
    return against_celery.run(options.stores, options.rounds, options.width, options.length)


def _scale(options: argparse.Namespace) -> Finding:
    return scale.run(options.rounds)


def _consent(options: argparse.Namespace) -> Finding:
    return consent.run(options.rounds)


def _history(options: argparse.Namespace) -> Finding:
    return history.run(options.stores, history.Effort(options.rounds), finished=options.finished, large=options.large)


def _early_reads(options: argparse.Namespace) -> Finding:
    return early_reads.run(options.rounds)


def _agents(options: argparse.Namespace) -> Finding:
    return agents.run(options.stores, options.agents)


def _telemetry(options: argparse.Namespace) -> Finding:
    return telemetry.run(options.stores, options.rounds, options.width)


def _watchers(options: argparse.Namespace) -> Finding:
    return watchers.run(options.rounds, options.watched)


def _waiting(options: argparse.Namespace) -> Finding:
    return waiting.run(options.stores)


def _wide_map(options: argparse.Namespace) -> Finding:
    return wide_map.run(options.stores)


def _start(options: argparse.Namespace) -> Finding:
    return start.run(options.rounds)


PARTS: Final[Mapping[str, Callable[[argparse.Namespace], Finding]]] = {
    tool_call.PART: _tool_call,
    against_celery.NAME: _celery,
    scale.NAME: _scale,
    consent.NAME: _consent,
    history.NAME: _history,
    early_reads.NAME: _early_reads,
    start.PART: _start,
    telemetry.NAME: _telemetry,
    agents.NAME: _agents,
    watchers.NAME: _watchers,
    waiting.NAME: _waiting,
    wide_map.NAME: _wide_map,
}


def main(arguments: Sequence[str] | None = None) -> int:
    # So that a run that is told to stop takes its servers and its service with it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    options = _options(arguments)
    broken: list[str] = []
    for name in options.parts or PARTS:
        print(f"\n{name}: {len(os.sched_getaffinity(0))} cores, load {_load()}", flush=True)
        began = time.monotonic()
        try:
            found = PARTS[name](options)
        except ServerStartError as error:
            # PostgreSQL and Redis come with the test extra; what needs them is not measured without, and says so.
            broken.append(f"{name} was not measured: {error}")
            continue
        print(table(found.figures), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s, load {_load()}", flush=True)
        write(found.figures, options.output)
        broken += found.broken
    print(f"\nmedian of {options.rounds} rounds; written to {options.output}")
    for sentence in broken:
        print(f"BROKEN: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -P -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="NAME", help=f"{', '.join(PARTS)}; all of them unless named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--width", type=int, default=500, help="parallel steps of W1")
    parser.add_argument("--length", type=int, default=100, help="steps in the chain of W2")
    parser.add_argument("--finished", type=int, default=history.FINISHED, help="finished steps of H1")
    parser.add_argument("--large", type=int, default=history.LARGE, help="steps in the large DAGs of H2")
    parser.add_argument("--watched", type=int, default=watchers.STEPS, help="steps of the task that is watched")
    parser.add_argument("--agents", nargs="+", choices=agents.WHAT, default=list(agents.WHAT), help="what of agents")
    parser.add_argument("--output", type=Path, default=LATEST)
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no part is called {min(unknown)!r}; there are {', '.join(PARTS)}")
    return options


def _load() -> str:
    """Say how busy the machine is, whoever keeps it so: times on a busy one are the others' as well."""
    return f"{os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    sys.exit(main())
