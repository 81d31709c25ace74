"""Agents that all wait at once, through ``soong up`` with two worker processes: 1,000 of them, for ten seconds each.

Each agent makes one call of an async tool that waits, so it holds a slot, a run and a call, and no CPU. There are more
slots than agents, so the ideal is one wait: **last end** is from handing over to the end of the last step, as its row
has it, and **run** to the return of ``Soong.run``. **memory** is what all processes of the service have more while all
of them wait than before (PSS), by agent.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.fleet import cpu_of_tree
from benchmarks.handing_over import ServiceError
from benchmarks.ledger import Ledger, PostgresLedger, SqliteLedger
from benchmarks.report import Figure, Finding
from benchmarks.run_log import PostgresLog, RunLog, SqliteLog
from benchmarks.service import ServiceWorkbench, service_workbench
from soong.orchestrator.sdk.service import Soong
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.spec import TaskStatus
from tests.servers import postgres_server, redis_server

NAME: Final = "waiting"
AGENTS: Final = 1000
SLOTS: Final = 512
"""Of each of the two workers."""
WAIT_S: Final = 10.0
MAX_OVER_IDEAL: Final = 1.15
MAX_MIB: Final = 0.25
"""Memory that one waiting agent may cost."""
LOOK_S: Final = 0.5
MODULE: Final = "benchmark_waiting_tool"
TOOL: Final = '''"""A tool that waits."""

import asyncio

from soong import Permission, Toolset

tools = Toolset()


@tools.tool("bench.wait", permission=Permission.READONLY)
async def wait(seconds: float) -> float:
    """Wait."""
    await asyncio.sleep(seconds)
    return seconds
'''
_TIMES: Final = "SELECT started_us, ended_us, status FROM steps WHERE task_id = {}"
_TASK_END: Final = "SELECT ended_us FROM tasks WHERE id = {}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds: of the client's handing over, of starts and ends of steps, of the task's end, of the return."""

    begun_s: float
    starts_s: Sequence[float]
    ends_s: Sequence[float]
    task_end_s: float
    returned_s: float


@dataclass(frozen=True, slots=True)
class ScriptedService:
    """A running service whose agents are scripted, and the rows of its runs."""

    bench: ServiceWorkbench
    settings: Settings
    log: RunLog

    async def run(self, plan: Mapping[str, Json]) -> Outcome:
        """Run a plan through ``Soong.run``. Raises: ServiceError when it or a step did not complete."""
        soong, begun_s = Soong(self.bench.client, self.settings), time.time()
        result = await soong.run(dict(plan), project=self.bench.project)
        returned_s = time.time()
        rows = self.log.rows(_TIMES, result.id)
        if result.status is not TaskStatus.COMPLETED or {str(status) for _, _, status in rows} != {"completed"}:
            raise ServiceError(f"{plan['title']} ended as {result.status}")
        ((task_end_us,),) = self.log.rows(_TASK_END, result.id)
        starts = [_seconds(started) for started, _, _ in rows if started is not None]
        ends = [_seconds(ended) for _, ended, _ in rows]
        return Outcome(begun_s, sorted(starts), sorted(ends), _seconds(task_end_us), returned_s)

    def memory_mib(self) -> float:
        """Return the PSS of the service's process and of all that it has started."""
        root, found = psutil.Process(self.bench.pid), 0.0
        for process in (root, *root.children(recursive=True)):
            try:
                found += process.memory_full_info().pss / 2**20
            except psutil.NoSuchProcess:
                continue
        return found


def run(stores: Sequence[str], agents: int = AGENTS) -> Finding:
    """Measure each store once, after as many agents that do not wait have passed through it."""
    found = Finding(())
    for store in stores:
        with scripted_service(store, SLOTS) as service:
            service.bench.runner.run(service.run(_plan("warm", agents, 0.0)))
            found = found.and_also(service.bench.runner.run(_measured(store, service, agents)))
    return found


@contextmanager
def scripted_service(store: str, slots: int) -> Iterator[ScriptedService]:
    """Start a service with the tool that waits, and stop it afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soong-bench-")))
        home = folder / "home"
        home.mkdir()
        (folder / f"{MODULE}.py").write_text(TOOL, encoding="utf-8")
        tools = {"SOONG_TOOLS": MODULE, "SOONG_IMPORT_PATH": str(folder)}
        broker = stack.enter_context(redis_server())
        ledger: Ledger
        log: RunLog
        if store == "sqlite":
            url, ledger, log = "", SqliteLedger(home / "soong.db"), SqliteLog(home / "soong.db")
        else:
            database = stack.enter_context(postgres_server(durable=True))
            url = stack.enter_context(database.fresh_database("soong"))
            plain = database.url("soong", driver="postgresql")
            ledger, log = PostgresLedger(plain), PostgresLog(plain)
        opened = service_workbench(store, home, url, broker.socket_url, ledger, slots=slots, more=tools)
        bench = stack.enter_context(opened)
        # A program under the same variables knows the tools of the service.
        settings = bench.client.settings.model_copy(update={"tools": (MODULE,), "import_path": str(folder)})
        yield ScriptedService(bench, settings, log)


def _plan(title: str, agents: int, seconds: float) -> dict[str, Json]:
    return {"title": title, "steps": [{"id": f"s{number}", **agent(seconds)} for number in range(agents)]}


def agent(seconds: float) -> dict[str, Json]:
    """Return an agent step that makes one call, which waits so long."""
    return {
        "instructions": "Wait.",
        "allowed_tools": ["bench.wait"],
        "script": "builtin.calls",
        "inputs": {"calls": [{"call": "bench.wait", "with": {"seconds": seconds}}]},
    }


async def _measured(store: str, service: ScriptedService, agents: int) -> Finding:
    idle_mib, most_mib, cpu_s = service.memory_mib(), 0.0, cpu_of_tree(service.bench.pid)
    running = asyncio.ensure_future(service.run(_plan(NAME, agents, WAIT_S)))
    while not running.done():
        await asyncio.wait([running], timeout=LOOK_S)
        most_mib = max(most_mib, await asyncio.to_thread(service.memory_mib))
    outcome = await running
    cpu_s = cpu_of_tree(service.bench.pid) - cpu_s
    last_s, each_mib = outcome.ends_s[-1] - outcome.begun_s, (most_mib - idle_mib) / agents
    name = f"{NAME}-{agents}"
    figures = [
        figure(name, store, "start, p50", "s", statistics.median(outcome.starts_s) - outcome.begun_s),
        figure(name, store, "start, p99", "s", statistics.quantiles(outcome.starts_s, n=100)[-1] - outcome.begun_s),
        figure(name, store, "start of the last", "s", outcome.starts_s[-1] - outcome.begun_s),
        figure(name, store, "last end", "s", last_s, "ideal", WAIT_S),
        figure(name, store, "run returned", "s", outcome.returned_s - outcome.begun_s, "ideal", WAIT_S),
        figure(name, store, "cpu of the service", "ms/agent", cpu_s * 1000 / agents),
        figure(name, store, "memory", "MiB/agent", each_mib, "bound", MAX_MIB),
        figure(name, store, "memory before", "MiB", idle_mib),
    ]
    broken = []
    if last_s > WAIT_S * MAX_OVER_IDEAL:
        broken.append(f"{name} on {store}: the last ended after {last_s / WAIT_S:.2f} times the ideal")
    if each_mib > MAX_MIB:
        broken.append(f"{name} on {store}: {each_mib:.3f} MiB for each waiting agent, not {MAX_MIB}")
    return Finding(figures, broken)


def figure(
    workload: str, store: str, metric: str, unit: str, value: float, peer: str = "-", theirs: float | None = None
) -> Figure:
    ratio = round(value / theirs, 4) if theirs else None
    return Figure(workload, store, metric, unit, round(value, 3), peer, theirs, ratio)


def _seconds(us: Any) -> float:
    return int(us) / 1e6
