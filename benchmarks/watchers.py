"""Two hundred people who follow one task in their browsers: what that costs the API, and what it costs the engine.

A watcher is what an open console is to the server: a stream of the task and a long poll of the inbox, with a token of
its own. No browser draws here. The engine is everything else of the service: its owner, its two workers, and Redis.

In each round two services do the same work at the same time, and people watch one of them: the other is the control.
Compared is CPU time a step, never elapsed time. A process takes more CPU time for the same work on busier cores; both
services share the same cores in the same seconds, so that whatever else is busy there, the API and the clients among
it, costs both. They change places every round. Beside it is what does not vary with the load: the transactions and the
Redis commands of a step.

The engine's CPU time is counted from handing a task over to reading that it has completed. The owner writes the folders
of the runs after that; the next round begins when they are written, so that no round pays for another.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import redis

from benchmarks.handing_over import ServiceError, complete, prepare
from benchmarks.ledger import SqliteLedger
from benchmarks.meter import count_commands
from benchmarks.plans import plan_of
from benchmarks.report import Figure, Finding
from benchmarks.service import ServiceWorkbench, service_workbench
from benchmarks.workload import Shape, Work, Workload
from soong.orchestrator.client.client import Submission
from soong.shared.core.timing import SystemClock
from soong.shared.permissions.access.token import Right, make_token
from tests.servers import free_port, redis_server

NAME: Final = "watchers"
WATCHERS: Final = 200
STEPS: Final = 2000
PEER: Final = (sys.executable, "-P", "-m", "benchmarks.watchers_peer")
MAX_SLOWER: Final = 1.05
MAX_API_MB: Final = 300.0
SETTLE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """One task. CPU times are in milliseconds a step; ``api_ms`` counts until all have seen the end."""

    engine_ms: Mapping[str, float]
    """By process."""
    api_ms: float
    api_mb: float
    elapsed_s: float
    transactions: int
    commands: int
    """Of Redis, those of the API among them."""
    seen: Mapping[str, float]
    """What the watchers counted: bytes, changes, their own CPU seconds."""

    @property
    def engine_cpu_ms(self) -> float:
        return sum(self.engine_ms.values())


@dataclass(frozen=True, slots=True)
class Scene:
    """A service with its API, and the tokens of those who will watch. Steps are agents that call a tool, as in W1."""

    service: ServiceWorkbench
    port: int
    tokens: Sequence[str]
    broker: "redis.Redis"
    steps: int

    def api(self) -> psutil.Process:
        children = psutil.Process(self.service.pid).children()
        return next(child for child in children if "soong.orchestrator.http" in child.cmdline())

    def round(self, watchers: int) -> Round:
        """Run a task that so many people watch."""
        return self.service.runner.run(self._round(watchers))

    async def _round(self, watchers: int) -> Round:
        work = Workload(Shape.FAN, Work.AGENT, self.steps)
        prepared = prepare(self.service.home, plan_of(work), project=self.service.project)
        api = self.api()
        watching = await self._watching(prepared, watchers)
        before, counted, api_s = self._engine_s(api), self._counted(), _cpu_s(api)
        elapsed_s = await complete(self.service.client, prepared)
        after = self._engine_s(api)
        transactions, commands = (now - then for now, then in zip(self._counted(), counted, strict=True))
        seen = {} if watching is None else await watching
        api_s = _cpu_s(api) - api_s
        await self._settle(prepared)
        return Round(
            {name: (value - before[name]) * 1000 / self.steps for name, value in after.items()},
            api_s * 1000 / self.steps,
            api.memory_info().rss / 1e6,
            elapsed_s,
            transactions,
            commands,
            seen,
        )

    def _counted(self) -> tuple[int, int]:
        """Return how many transactions and Redis commands there were so far."""
        return self.service.transactions() or 0, count_commands(self.broker)

    async def _watching(self, prepared: Submission, watchers: int) -> "asyncio.Task[Mapping[str, float]] | None":
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

        async def seen() -> Mapping[str, float]:
            told, _ = await peer.communicate()
            if peer.returncode:
                raise ServiceError("the watchers did not see the end of the task")
            counted: Mapping[str, float] = json.loads(told)
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

    def _engine_s(self, api: psutil.Process) -> Mapping[str, float]:
        """Return the CPU seconds so far of the owner, its workers, and Redis."""
        root = psutil.Process(self.service.pid)
        broker = psutil.Process(int(self.broker.info("server")["process_id"]))
        workers = [one for one in root.children(recursive=True) if one.pid not in {api.pid, broker.pid}]
        return {"owner": _cpu_s(root), "workers": sum(map(_cpu_s, workers)), "redis": _cpu_s(broker)}


def run(rounds: int, steps: int) -> Finding:
    """Measure so many rounds after two that warm up, or one more: each service is watched in half of them."""
    watched: list[Round] = []
    alone: list[Round] = []
    with ExitStack() as stack:
        pair = [stack.enter_context(_scene(steps)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(len(pair)))
        for _ in range(2 + rounds + rounds % 2):
            pair.reverse()
            rounds_of = [
                pool.submit(scene.round, watchers) for scene, watchers in zip(pair, (WATCHERS, 0), strict=True)
            ]
            for found, one in zip((watched, alone), rounds_of, strict=True):
                found.append(one.result())
            ours, theirs = watched[-1].engine_cpu_ms, alone[-1].engine_cpu_ms
            print(f"  engine {ours:.2f} ms/step, control {theirs:.2f}: {ours / theirs:.3f}", flush=True)
    return _finding(watched[2:], alone[2:], steps)


@contextmanager
def _scene(steps: int) -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="soong-bench-") as name, redis_server() as broker:
        home, port = Path(name) / "home", free_port()
        home.mkdir()
        more = {"SOONG_HTTP_PORT": str(port)}
        ledger = SqliteLedger(home / "soong.db")
        with (
            redis.Redis.from_url(broker.socket_url) as client,
            service_workbench("sqlite", home, "", broker.socket_url, ledger, more=more) as service,
        ):
            yield Scene(service, port, service.runner.run(_tokens(service)), client, steps)


async def _tokens(service: ServiceWorkbench) -> list[str]:
    """Make a token for each watcher, each of another person."""
    found = []
    for number in range(WATCHERS):
        token, text = make_token(f"watcher{number}", (Right.READ,), now_us=SystemClock().now_us())
        await service.client.store.access.add_token(token)
        found.append(text)
    return found


def _finding(watched: Sequence[Round], alone: Sequence[Round], steps: int) -> Finding:
    def figure(metric: str, unit: str, of: Callable[[Round], float]) -> Figure:
        """Return medians, and the median of the rounds' ratios."""
        pairs = [(of(one), of(other)) for one, other in zip(watched, alone, strict=True)]
        ours, theirs = (median(side) for side in zip(*pairs, strict=True))
        ratio = median(one / other for one, other in pairs) if all(other for _, other in pairs) else None
        return Figure(f"{WATCHERS} watchers", "sqlite", metric, unit, ours, "nobody watches", theirs, ratio)

    def seen(
        metric: str, unit: str, of: Callable[[Round], float], of_all: Callable[[Iterable[float]], float]
    ) -> Figure:
        return Figure(f"{WATCHERS} watchers", "sqlite", metric, unit, of_all(map(of, watched)), "-", None, None)

    engine = figure("engine cpu", "ms/step", lambda one: one.engine_cpu_ms)
    memory = seen("api memory, most", "MB", lambda one: one.api_mb, max)
    figures = (
        engine,
        figure("owner cpu", "ms/step", lambda one: one.engine_ms["owner"]),
        figure("workers cpu", "ms/step", lambda one: one.engine_ms["workers"]),
        figure("redis cpu", "ms/step", lambda one: one.engine_ms["redis"]),
        figure("transactions", "1/step", lambda one: one.transactions / steps),
        figure("redis_commands", "1/step", lambda one: one.commands / steps),
        figure("elapsed", "s", lambda one: one.elapsed_s),
        figure("api cpu", "ms/step", lambda one: one.api_ms),
        memory,
        seen("clients cpu", "ms/step", lambda one: one.seen["cpu_s"] * 1000 / steps, median),
        seen("sent to each", "MB", lambda one: one.seen["bytes"] / 1e6 / WATCHERS, median),
        seen("changes seen, fewest", "1", lambda one: one.seen["changes"], min),
    )
    broken, ratio = [], engine.ratio or 0.0
    if ratio > MAX_SLOWER:
        broken.append(f"{WATCHERS} watchers cost the engine {ratio - 1:.1%} of CPU a step; 5 % at most")
    if memory.ours > MAX_API_MB:
        broken.append(f"the API takes {memory.ours:.0f} MB with {WATCHERS} watchers; {MAX_API_MB:.0f} at most")
    print(f"  engine {ratio:.3f} x the control, at most {MAX_SLOWER}: {'broken' if ratio > MAX_SLOWER else 'met'}")
    return Finding(figures, broken)


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
