"""Two hundred people who follow one task in their browsers: what that costs the API, and what it costs the engine.

A watcher is what an open console is to the server: a stream of the task and a long poll of the inbox, with a token of
its own. No browser draws here. The engine is everything else of the service: its owner, its two workers, and Redis.

Rounds with and without watchers take turns on one service. Compared is CPU time a step, never elapsed time. A process
takes more CPU time for the same work on busier cores, and here the watchers and the API share them with the engine; so
a round without watchers has two processes beside it that keep the cores as busy as those two were in the round before.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import redis

from benchmarks.handing_over import complete, prepare
from benchmarks.ledger import SqliteLedger
from benchmarks.plans import plan_of
from benchmarks.report import Figure, Finding
from benchmarks.service import ServiceWorkbench, service_workbench
from benchmarks.workload import Shape, Work, Workload
from soong.shared.core.clock import SystemClock
from soong.shared.permissions.access.token import Right, make_token
from tests.servers import free_port, redis_server

NAME: Final = "watchers"
WATCHERS: Final = 200
STEPS: Final = 2000
FAN: Final = Workload(Shape.FAN, Work.AGENT, STEPS)
"""Steps of agents that call a tool, as in W1."""
PEER: Final = (sys.executable, "-P", "-m", "benchmarks.watchers_peer")
MAX_SLOWER: Final = 1.05
MAX_API_MB: Final = 400.0


@dataclass(frozen=True, slots=True)
class Round:
    """One task. ``engine_ms`` and ``api_ms`` are CPU time a step."""

    engine_ms: float
    api_ms: float
    api_mb: float
    elapsed_s: float
    sent_mb: float = 0.0
    changes: int = 0
    busy: tuple[float, float] = (0.0, 0.0)
    """Shares of a core that the API and the watchers took."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A service with its API, and the tokens of those who will watch."""

    service: ServiceWorkbench
    port: int
    tokens: Sequence[str]
    broker: int

    def api(self) -> psutil.Process:
        children = psutil.Process(self.service.pid).children()
        return next(child for child in children if "soong.orchestrator.http" in child.cmdline())

    def round(self, watchers: int, busy: Sequence[float] = ()) -> Round:
        """Run a task that so many people watch, or beside which so much of the cores is taken."""
        api = self.api()
        before = (self._engine_s(api), _cpu_s(api))
        with ExitStack() as stack:
            for share in busy:
                beside = subprocess.Popen([*PEER, "busy", str(share)])
                stack.callback(beside.wait)
                stack.callback(beside.kill)
            elapsed_s, told = self.service.runner.run(self._watched(watchers))
        engine_s, api_s = self._engine_s(api) - before[0], _cpu_s(api) - before[1]
        return Round(
            engine_s * 1000 / STEPS,
            api_s * 1000 / STEPS,
            api.memory_info().rss / 1e6,
            elapsed_s,
            told.get("bytes", 0) / 1e6,
            int(told.get("changes", 0)),
            (api_s / elapsed_s, told.get("cpu_s", 0.0) / elapsed_s),
        )

    async def _watched(self, watchers: int) -> tuple[float, dict[str, float]]:
        prepared = prepare(self.service.home, plan_of(FAN), project=self.service.project)
        if not watchers:
            return await complete(self.service.client, prepared), {}
        peer = await asyncio.create_subprocess_exec(
            *(*PEER, str(self.port), prepared.task.id), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        watching = asyncio.create_task(peer.communicate("\n".join(self.tokens[:watchers]).encode()))
        elapsed_s = await complete(self.service.client, prepared)
        told, _ = await watching
        if peer.returncode:
            raise RuntimeError("the watchers did not see the end of the task")
        return elapsed_s, json.loads(told.splitlines()[-1])

    def _engine_s(self, api: psutil.Process) -> float:
        """Return the CPU seconds so far of all processes of the service but its API, and of Redis."""
        root = psutil.Process(self.service.pid)
        ours = [root, *root.children(recursive=True), psutil.Process(self.broker)]
        return sum(_cpu_s(one) for one in ours if one.pid != api.pid)


def run(rounds: int) -> Finding:
    """Measure ``rounds`` tasks with watchers and as many without, in turns, after one of each that warms up."""
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as name, redis_server() as broker:
        home, port = Path(name) / "home", free_port()
        home.mkdir()
        more = {"SOONG_HTTP_PORT": str(port)}
        ledger = SqliteLedger(home / "soong.db")
        with (
            redis.Redis.from_url(broker.socket_url) as client,
            service_workbench("sqlite", home, "", broker.socket_url, ledger, more=more) as service,
        ):
            pid = int(client.info("server")["process_id"])
            scene = Scene(service, port, service.runner.run(_tokens(service)), pid)
            watched, alone = [scene.round(WATCHERS)], [scene.round(0)]
            for number in range(rounds):
                # Each goes first in turn: a database that has grown is not the watchers' doing.
                for has_watchers in (True, False) if number % 2 else (False, True):
                    busy = () if has_watchers else watched[-1].busy
                    (watched if has_watchers else alone).append(scene.round(WATCHERS * has_watchers, busy))
    return _finding(alone[1:], watched[1:])


async def _tokens(service: ServiceWorkbench) -> list[str]:
    """Make a token for each watcher, each of another person."""
    found = []
    for number in range(WATCHERS):
        token, text = make_token(f"watcher{number}", (Right.READ,), now_us=SystemClock().now_us())
        await service.client.store.access.add_token(token)
        found.append(text)
    return found


def _finding(alone: Sequence[Round], watched: Sequence[Round]) -> Finding:
    # The least of all rounds: what else runs on the machine only ever adds to it.
    engine, without = (min(one.engine_ms for one in rounds) for rounds in (watched, alone))
    memory = max(one.api_mb for one in watched)

    def figure(metric: str, unit: str, ours: float, peer: float | None = None) -> Figure:
        ratio = None if not peer else ours / peer
        return Figure(f"{WATCHERS} watchers", "sqlite", metric, unit, ours, "equally busy", peer, ratio)

    figures = (
        figure("engine cpu", "ms/step", engine, without),
        figure("api cpu", "ms/step", statistics.median(one.api_ms for one in watched)),
        figure("api cpu", "% of a core", statistics.median(one.api_ms * STEPS / 10 / one.elapsed_s for one in watched)),
        figure("api memory", "MB", memory, max(one.api_mb for one in alone)),
        figure("sent", "MB", statistics.median(one.sent_mb for one in watched)),
        figure("changes seen, fewest", "1", float(min(one.changes for one in watched))),
    )
    broken = []
    if engine > MAX_SLOWER * without:
        broken.append(f"{WATCHERS} watchers cost the engine {engine / without - 1:.1%} of CPU a step; 5 % at most")
    if memory > MAX_API_MB:
        broken.append(f"the API takes {memory:.0f} MB with {WATCHERS} watchers; {MAX_API_MB:.0f} at most")
    return Finding(figures, broken)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
