"""Agents on a slow model server that is not ours, through ``soong up`` with two worker processes, on both stores.

- **crowd**: agents that each wait a second for their model, all ready at once: the time from the first step to the last
  beside the ideal one (agents x 1 s / slots), and the memory of the service with its workers;
- **turns**: from the end of a tool call, as its run's log has it, to the arrival of the run's next request at the
  server, by one run and by many at once. Requests and calls are paired by the id of the call;
- **early**: from the end of a streamed answer with five reads, as the server has it, to the end of the last of them;
- **long**: a run of a thousand turns: stored bytes beside a history that each turn stores whole, and time a turn;
- **flat**: the memory of the service, sampled while thousands of runs pass through it.

The server runs on the same machine, so its work is within these times. All processes have one monotonic clock.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.handing_over import complete, prepare
from benchmarks.ledger import Ledger, PostgresLedger, SqliteLedger
from benchmarks.model_server import MODEL, ModelServer, model_server
from benchmarks.report import Figure, Finding
from benchmarks.run_log import PostgresLog, RunLog, SqliteLog, call_ends, node_sizes
from benchmarks.service import ServiceWorkbench, service_workbench
from soong.orchestrator.client.client import Submission
from soong.shared.core.jsontext import Json
from tests.servers import postgres_server, redis_server

NAME: Final = "agents"
SLOTS: Final = 32
"""Of each of the two workers: the configuration's default."""
WAIT_S: Final = 1.0
CROWD: Final = 500
LONG: Final = 1000
FLAT: Final = 5000
TURNS: Final = 50
MANY: Final = 200
MANY_SLOTS: Final = 100
MANY_TURNS: Final = 5
MANY_LATENCY_S: Final = 5.0
"""How long the models of many runs think on average: 200 of them then ask 40 times a second."""
SPREAD: Final = 0.5
"""Models think for this share less or more, each turn otherwise, as real ones do; without it runs ask in waves."""

MAX_OVER_IDEAL: Final = 1.5
MAX_MEMORY_MB: Final = 600.0
READS: Final = 5
"""Calls in each answer of the early part."""
MAX_READS_MS: Final = 50.0
MAX_NEXT_MS: Final[Mapping[str, float]] = {"turns-1": 5.0, f"turns-{MANY}": 25.0}
MAX_GROWTH_KB: Final = 1.0
"""Memory a run, over all processes: more than that over 5,000 runs is a leak."""
MAX_LATE_TURN: Final = 3.0
"""The last hundred of a thousand turns may take so many times as long as the first: the request itself grows."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A running service, its model server, and the rows of its runs."""

    service: ServiceWorkbench
    server: ModelServer
    log: RunLog
    project: Path

    def prepare(self, title: str, agents: int) -> Submission:
        step: Mapping[str, Json] = {
            "agent": "benchmark",
            "instructions": "Look into the folder, again and again.",
            "model": MODEL,
            "allowed_tools": ["code.list_dir"],
        }
        steps: list[Json] = [{"id": f"s{number}", **step} for number in range(agents)]
        return prepare(self.service.home, {"title": title, "steps": steps}, project=self.project)

    def run(self, prepared: Submission) -> float:
        return self.service.runner.run(complete(self.service.client, prepared))

    def memory(self) -> dict[str, float]:
        """Return the resident MB of the service's process and of its workers together."""
        root = psutil.Process(self.service.pid)
        found = {"owner": root.memory_info().rss / 1e6, "workers": 0.0}
        for child in root.children(recursive=True):
            try:
                found["workers"] += child.memory_info().rss / 1e6
            except psutil.NoSuchProcess:
                continue
        return found


DEFINITION: Final = """---
description: Looks into folders.
suggested_tools: [code.list_dir]
limits: {max_turns: 2000}
---
You look into folders.
"""


def run(stores: Sequence[str], what: Sequence[str]) -> Finding:
    """Measure the named parts on each store."""
    found = Finding(())
    for store in stores:
        if {"crowd", "flat", "long"} & set(what):
            with _scene(store, SLOTS) as scene:
                for name in ("crowd", "long", "flat"):
                    if name in what:
                        found = found.and_also(_PARTS[name](store, scene))
        if {"turns", "early"} & set(what):
            with _scene(store, MANY_SLOTS) as scene:
                for name in ("turns", "early"):
                    if name in what:
                        found = found.and_also(_PARTS[name](store, scene))
    return found


@contextmanager
def _scene(store: str, slots: int) -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soong-bench-")))
        home, project = folder / "home", folder / "project"
        (home / "agents").mkdir(parents=True)
        project.mkdir()
        (home / "agents" / "benchmark.md").write_text(DEFINITION, encoding="utf-8")
        broker = stack.enter_context(redis_server())
        server = stack.enter_context(model_server(folder))
        ledger: Ledger
        log: RunLog
        if store == "sqlite":
            url, ledger, log = "", SqliteLedger(home / "soong.db"), SqliteLog(home / "soong.db")
        else:
            database = stack.enter_context(postgres_server(durable=True))
            url = stack.enter_context(database.fresh_database("soong"))
            plain = database.url("soong", driver="postgresql")
            ledger, log = PostgresLedger(plain), PostgresLog(plain)
        service = stack.enter_context(
            service_workbench(store, home, url, broker.socket_url, ledger, slots=slots, more=server.environment)
        )
        scene = Scene(service, server, log, project)
        server.will()
        scene.run(scene.prepare("warm", 8))  # the first run of a process imports its provider's client
        yield scene


# -- many that wait
def _crowd(store: str, scene: Scene) -> Finding:
    scene.server.will(latency_s=WAIT_S)
    ideal_s = CROWD * WAIT_S / (2 * SLOTS)
    elapsed_s = scene.run(scene.prepare("crowd", CROWD))
    memory = scene.memory()
    total = sum(memory.values())
    name = f"crowd-{CROWD}"
    figures = [
        _figure(name, store, "makespan", "s", elapsed_s, "ideal", ideal_s),
        _figure(name, store, "memory of owner", "MB", memory["owner"]),
        _figure(name, store, "memory, all", "MB", total, "bound", MAX_MEMORY_MB),
    ]
    broken = []
    if elapsed_s > ideal_s * MAX_OVER_IDEAL:
        broken.append(f"{name} on {store}: {elapsed_s / ideal_s:.2f} times the ideal, not {MAX_OVER_IDEAL}")
    if total > MAX_MEMORY_MB:
        broken.append(f"{name} on {store}: {total:.0f} MB, not {MAX_MEMORY_MB:.0f}")
    return Finding(figures, broken)


# -- a thousand turns
def _long(store: str, scene: Scene) -> Finding:
    scene.server.will(calls=LONG - 1, tool="code__list_dir")
    prepared = scene.prepare("long", 1)
    elapsed_s = scene.run(prepared)
    sizes = node_sizes(scene.log, prepared.task.id)
    naive = sum(sum(sizes[: place + 1]) for place in range(1, len(sizes), 2))  # all of the history, once a turn
    arrivals = [float(one["started_at"]) for one in scene.server.requests()]
    first, last = _ms_a_turn(arrivals[:101]), _ms_a_turn(arrivals[-101:])
    name = f"long-{LONG}"
    figures = [
        _figure(name, store, "turns", "1", len(arrivals)),
        _figure(name, store, "stored", "KB/turn", sum(sizes) / 1e3 / len(arrivals), "naive", naive / 1e3 / LONG),
        _figure(name, store, "time, all", "s", elapsed_s),
        _figure(name, store, "last 100 turns", "ms/turn", last, "first 100", first),
    ]
    is_late = last > first * MAX_LATE_TURN
    return Finding(
        figures, [f"{name} on {store}: late turns take {last / first:.1f} times the first"] if is_late else []
    )


def _ms_a_turn(arrivals: Sequence[float]) -> float:
    return statistics.median(later - before for before, later in pairwise(arrivals)) * 1000


# -- memory
def _flat(store: str, scene: Scene) -> Finding:
    scene.server.will()
    samples: list[tuple[int, dict[str, float]]] = []
    for done in range(0, FLAT, CROWD):
        scene.run(scene.prepare(f"flat {done}", CROWD))
        samples.append((done + CROWD, scene.memory()))
        print(f"{store}: {samples[-1]}", file=sys.stderr, flush=True)
    name, figures, growth = f"flat-{FLAT}", [], 0.0
    for part in ("owner", "workers"):
        # The first runs fill caches and pools; what matters is whether it stops.
        later = samples[len(samples) // 2 :]
        slope = statistics.linear_regression([at for at, _ in later], [each[part] for _, each in later]).slope * 1000
        growth += slope
        figures.append(_figure(name, store, f"memory of {part}, slope of 2nd half", "KB/run", slope))
        first, last = samples[0][1][part], samples[-1][1][part]
        figures.append(_figure(name, store, f"memory of {part}, last", "MB", last, f"after {CROWD}", first))
    broken = f"{name} on {store}: memory grows by {growth:.1f} KB a run"
    return Finding(figures, [broken] if growth > MAX_GROWTH_KB else [])


# -- from a call's end to the next request
def _turns(store: str, scene: Scene) -> Finding:
    found = Finding(())
    for name, agents, turns, latency_s, spread in (
        ("turns-1", 1, TURNS, 0.0, 0.0),
        (f"turns-{MANY}", MANY, MANY_TURNS, MANY_LATENCY_S, SPREAD),
        (f"turns-{MANY}-waves", MANY, MANY_TURNS, MANY_LATENCY_S, 0.0),
    ):
        scene.server.will(
            calls=agents * turns,
            tool="code__list_dir",
            latency_s=latency_s,
            latencies_s=_spread(latency_s, spread, agents * (turns + 1)),
        )
        prepared = scene.prepare(name, agents)
        scene.run(prepared)
        waits = _waits_ms(scene.server.requests(), call_ends(scene.log, prepared.task.id))
        middle, limit = statistics.median(waits), MAX_NEXT_MS.get(name)
        figures = [
            _figure(name, store, "call's end to request, p50", "ms", middle, "bound" if limit else "-", limit),
            _figure(name, store, "call's end to request, p95", "ms", statistics.quantiles(waits, n=20)[-1]),
            _figure(name, store, "turns", "1", len(waits)),
        ]
        broken = [f"{name} on {store}: p50 is {middle:.1f} ms, not {limit:g}"] if limit and middle > limit else []
        found = found.and_also(Finding(figures, broken))
    return found


def _spread(mean_s: float, spread: float, number: int) -> list[float]:
    """Return so many different times around the mean, the same ones every time; none without a spread."""
    dice = random.Random(MANY)  # no secret
    return [mean_s * dice.uniform(1 - spread, 1 + spread) for _ in range(number)] if spread else []


def _waits_ms(requests: Sequence[Mapping[str, Any]], ends_us: Mapping[str, int]) -> list[float]:
    """Return for each request the time since the call whose result it brings had ended."""
    wall_s = time.time() - time.monotonic()
    waits = []
    for request in requests:
        if request["body"] is None:  # the server keeps none that is longer than 256 KB
            continue
        last = request["body"]["messages"][-1]
        if last["role"] == "tool" and last["tool_call_id"] in ends_us:
            waits.append((request["started_at"] + wall_s) * 1000 - ends_us[last["tool_call_id"]] / 1000)
    return waits


# -- reads of a streamed answer
def _early(store: str, scene: Scene) -> Finding:
    scene.server.will(calls=TURNS, tool="code__list_dir", at_once=READS)
    prepared = scene.prepare("early", 1)
    scene.run(prepared)
    waits = _after_stream_ms(scene.server.requests(), call_ends(scene.log, prepared.task.id))
    late = statistics.quantiles(waits, n=20)[-1]
    name = f"early-{READS}"
    figures = [
        _figure(name, store, "stream's end to last read's end, p50", "ms", statistics.median(waits)),
        _figure(name, store, "stream's end to last read's end, p95", "ms", late, "bound", MAX_READS_MS),
        _figure(name, store, "turns", "1", len(waits)),
    ]
    broken = f"{name} on {store}: the last of {READS} reads ends {late:.1f} ms after the stream (p95)"
    return Finding(figures, [broken] if late > MAX_READS_MS else [])


def _after_stream_ms(requests: Sequence[Mapping[str, Any]], ends_us: Mapping[str, int]) -> list[float]:
    """Return for each answer of one run how long after its end the last of its calls ended."""
    wall_s = time.time() - time.monotonic()
    waits = []
    for answered, following in pairwise(requests):
        if following["body"] is None:  # as in _waits_ms
            continue
        results = [one for one in following["body"]["messages"][-READS:] if one["role"] == "tool"]
        ends = [ends_us[one["tool_call_id"]] for one in results if one["tool_call_id"] in ends_us]
        if ends:
            waits.append(max(ends) / 1000 - (answered["ended_at"] + wall_s) * 1000)
    return waits


_PARTS: Final = {"crowd": _crowd, "turns": _turns, "early": _early, "long": _long, "flat": _flat}
WHAT: Final = tuple(_PARTS)


def _figure(
    workload: str, store: str, metric: str, unit: str, value: float, peer: str = "-", theirs: float | None = None
) -> Figure:
    ratio = round(value / theirs, 4) if theirs else None
    return Figure(workload, store, metric, unit, round(value, 3), peer, theirs and round(theirs, 3), ratio)
