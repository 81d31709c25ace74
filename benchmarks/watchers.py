"""Two hundred people who follow one task in their browsers: what that costs the API, and what it costs the engine.

A watcher is what an open console is to the server: a stream of the task and a long poll of the inbox, with a token of
its own. No browser draws here. The engine is everything else of the service: its owner, its two workers, and Redis.

Three kinds of rounds take turns on one service: *watched*, *busy* and *quiet*. A process takes more CPU time for the
same work on busier cores, and here the API and the clients share them with the engine. So the control is a busy round:
nobody watches, and two unrelated processes keep the cores as busy as API and clients did in the watched round before.
The bound holds for CPU time a step in watched rounds over that in busy ones. Quiet rounds have nothing beside the
engine, and show what the cores' being busy costs by itself.

The engine's CPU time is counted from handing a task over to reading that it has completed. The owner writes the folders
of the runs after that; the next round begins when they are written, so that no round pays for another.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import redis

from benchmarks.handing_over import ServiceError, complete, prepare
from benchmarks.ledger import SqliteLedger
from benchmarks.plans import plan_of
from benchmarks.report import Figure, Finding
from benchmarks.service import ServiceWorkbench, service_workbench
from benchmarks.workload import Shape, Work, Workload
from soong.orchestrator.client.submission import Submission
from soong.shared.core.clock import SystemClock
from soong.shared.permissions.access.token import Right, make_token
from tests.servers import free_port, redis_server

NAME: Final = "watchers"
WATCHERS: Final = 200
STEPS: Final = 2000
PEER: Final = (sys.executable, "-P", "-m", "benchmarks.watchers_peer")
MAX_SLOWER: Final = 1.05
MAX_API_MB: Final = 400.0
SETTLE_S: Final = 60.0
PARTS: Final = ("owner", "workers", "redis")


@dataclass(frozen=True, slots=True)
class Round:
    """One task. CPU times are in milliseconds a step, by process; ``api_ms`` lasts until all have seen the end."""

    engine_ms: dict[str, float]
    api_ms: float
    api_mb: float
    elapsed_s: float
    seen: dict[str, float] = field(default_factory=dict)
    """What the watchers counted: bytes, changes."""
    busy: tuple[float, float] = (0.0, 0.0)
    """Shares of a core that the API and the watchers took."""

    @property
    def cpu_ms(self) -> float:
        return sum(self.engine_ms.values())


@dataclass(frozen=True, slots=True)
class Scene:
    """A service with its API, and the tokens of those who will watch. Steps are agents that call a tool, as in W1."""

    service: ServiceWorkbench
    port: int
    tokens: Sequence[str]
    broker: int
    steps: int

    def api(self) -> psutil.Process:
        children = psutil.Process(self.service.pid).children()
        return next(child for child in children if "soong.orchestrator.http" in child.cmdline())

    def round(self, watchers: int, busy: Sequence[float] = ()) -> Round:
        """Run a task that so many people watch, or beside which so much of the cores is taken."""
        with ExitStack() as stack:
            for share in busy:
                beside = subprocess.Popen([*PEER, "busy", str(share)])
                stack.callback(beside.wait)
                stack.callback(beside.kill)
            return self.service.runner.run(self._round(watchers))

    async def _round(self, watchers: int) -> Round:
        work = Workload(Shape.FAN, Work.AGENT, self.steps)
        prepared = prepare(self.service.home, plan_of(work), project=self.service.project)
        api = self.api()
        watching = await self._watching(prepared, watchers)
        before, api_s = self._engine_s(api), _cpu_s(api)
        elapsed_s = await complete(self.service.client, prepared)
        after = self._engine_s(api)
        seen = {} if watching is None else await watching
        api_s = _cpu_s(api) - api_s
        await self._settle(prepared)
        return Round(
            {name: (value - before[name]) * 1000 / self.steps for name, value in after.items()},
            api_s * 1000 / self.steps,
            api.memory_info().rss / 1e6,
            elapsed_s,
            seen,
            (api_s / elapsed_s, seen.get("cpu_s", 0.0) / elapsed_s),
        )

    async def _watching(self, prepared: Submission, watchers: int) -> "asyncio.Task[dict[str, float]] | None":
        """Start the clients; return what ends with what they saw, once they are ready to connect."""
        if not watchers:
            return None
        peer = await asyncio.create_subprocess_exec(
            *(*PEER, str(self.port), prepared.task.id), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write("\n".join(self.tokens[:watchers]).encode())
        peer.stdin.close()
        await peer.stdout.readline()

        async def seen() -> dict[str, float]:
            told, _ = await peer.communicate()
            if peer.returncode:
                raise ServiceError("the watchers did not see the end of the task")
            counted: dict[str, float] = json.loads(told)
            return counted

        return asyncio.create_task(seen())

    async def _settle(self, prepared: Submission) -> None:
        """Wait until the owner has written the folders of the task's runs. Raises: ServiceError."""
        store = self.service.client.store
        try:
            async with asyncio.timeout(SETTLE_S):
                owner_id = (await store.sessions.session(prepared.session.id)).owner_id
                while prepared.task.id in await store.tasks.unrecorded(owner_id):  # noqa: ASYNC110  # by another process
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise ServiceError(f"the folders of the runs were not written within {SETTLE_S:g} s") from None

    def _engine_s(self, api: psutil.Process) -> dict[str, float]:
        """Return the CPU seconds so far of the owner, its workers, and Redis."""
        root = psutil.Process(self.service.pid)
        workers = [one for one in root.children(recursive=True) if one.pid != api.pid]
        broker = _cpu_s(psutil.Process(self.broker))
        return {"owner": _cpu_s(root), "workers": sum(_cpu_s(one) for one in workers), "redis": broker}


def run(rounds: int, steps: int) -> Finding:
    """Measure ``rounds`` rounds of each kind, after one of each that warms up."""
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
            scene = Scene(service, port, service.runner.run(_tokens(service)), pid, steps)
            found = _in_turns(scene, rounds)
    return _finding(found)


def _in_turns(scene: Scene, rounds: int) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {"watched": [scene.round(WATCHERS)], "busy": [], "quiet": []}
    kinds: dict[str, Callable[[], Round]] = {
        "watched": lambda: scene.round(WATCHERS),
        "busy": lambda: scene.round(0, found["watched"][-1].busy),
        "quiet": lambda: scene.round(0),
    }
    for number in range(rounds):
        # Each goes first in turn: a database that has grown is not the watchers' doing.
        for kind in list(kinds)[:: -1 if number % 2 else 1]:
            found[kind].append(kinds[kind]())
            print(f"  {kind}: {found[kind][-1]}", flush=True)
    del found["watched"][0]
    return found


async def _tokens(service: ServiceWorkbench) -> list[str]:
    """Make a token for each watcher, each of another person."""
    found = []
    for number in range(WATCHERS):
        token, text = make_token(f"watcher{number}", (Right.READ,), now_us=SystemClock().now_us())
        await service.client.store.access.add_token(token)
        found.append(text)
    return found


def _finding(found: Mapping[str, Sequence[Round]]) -> Finding:
    workload = f"{WATCHERS} watchers"

    def least(of: Callable[[Round], float], kind: str) -> float:
        # The least of all rounds: what else runs on the machine only ever adds to it.
        return min(of(one) for one in found[kind])

    def figure(metric: str, unit: str, of: Callable[[Round], float], peer: str = "") -> Figure:
        ours = least(of, "watched")
        theirs = least(of, peer) if peer else None
        ratio = ours / theirs if theirs else None
        return Figure(workload, "sqlite", metric, unit, ours, peer or "-", theirs, ratio)

    engine = figure("engine cpu", "ms/step", lambda one: one.cpu_ms, "busy")
    memory = max(one.api_mb for one in found["watched"])
    figures = (
        engine,
        *(figure(f"{name} cpu", "ms/step", lambda one, name=name: one.engine_ms[name], "busy") for name in PARTS),  # type: ignore[misc]
        figure("engine cpu, quiet cores", "ms/step", lambda one: one.cpu_ms, "quiet"),
        figure("elapsed", "s", lambda one: one.elapsed_s, "busy"),
        figure("elapsed, quiet cores", "s", lambda one: one.elapsed_s, "quiet"),
        figure("api cpu", "ms/step", lambda one: one.api_ms, "quiet"),
        figure("clients cpu", "% of a core", lambda one: one.busy[1] * 100),
        Figure(workload, "sqlite", "api memory", "MB", memory, "-", None, None),
        figure("sent to each", "MB", lambda one: one.seen["bytes"] / 1e6 / WATCHERS),
        figure("changes seen, fewest", "1", lambda one: one.seen["changes"]),
    )
    broken = []
    if engine.ratio is not None and engine.ratio > MAX_SLOWER:
        broken.append(f"{WATCHERS} watchers cost the engine {engine.ratio - 1:.1%} of CPU a step; 5 % at most")
    if memory > MAX_API_MB:
        broken.append(f"the API takes {memory:.0f} MB with {WATCHERS} watchers; {MAX_API_MB:.0f} at most")
    return Finding(figures, broken)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
