"""The monkey: what is killed, when, and what is started again, drawn from one seed; the work meanwhile; its figures."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from soong.shared.core.errors import UnavailableError
from soong.shared.engine.tasks.spec import TaskStatus
from tests.system.auditor import Tables, audit, read_tables
from tests.system.deployment import Deployment, kill
from tests.system.faults.scene import start_workers, waves
from tests.system.faults.servers import MortalServer

WIDTH, DEPTH = 5, 10
STEP_S = 2.5


def _decided(plan: dict[str, Any]) -> dict[str, Any]:
    """Give two of three steps a condition that holds, and one a join: their owner opens them."""
    for number, step in enumerate(plan["steps"]):
        before = step.get("depends_on")
        if before and number % 3:
            step |= {"when": f'${{{before[0]}.status}} == "completed"', "join": ("all", "done")[number % 3 - 1]}
    return plan


@dataclass
class Work:
    """``steps`` steps over ``seconds``."""

    service: Deployment
    steps: int
    seconds: float
    submitted: int = 0
    refused: int = 0
    ended: Counter[TaskStatus] = field(default_factory=Counter)
    settled_s: float = 0.0

    async def submit_all(self) -> None:
        """Submit one DAG after another; a refused one again, for it may or may not stand."""
        tasks = -(-self.steps // (WIDTH * DEPTH))
        # The last ones need time too: all are submitted before the last tenth.
        every_s = self.seconds * 0.9 / tasks
        began_at = time.monotonic()
        for number in range(tasks):
            await asyncio.sleep(max(0.0, began_at + number * every_s - time.monotonic()))
            await self._submit()

    async def _submit(self) -> None:
        while True:
            try:
                await self.service.submit(_decided(waves(WIDTH, DEPTH, STEP_S)))
            except UnavailableError:
                self.refused += 1
                await asyncio.sleep(0.2)
            else:
                self.submitted += 1
                return

    async def until_ended(self, within_s: float) -> None:
        """Wait until no task is open, at most so long: what is open then is the auditor's to name."""
        began_at = time.monotonic()
        while time.monotonic() - began_at < within_s:
            try:
                tasks = await self.service.store.tasks.list_tasks(limit=100_000)
            except UnavailableError:
                tasks = ()
            if tasks and all(task.status.is_terminal for task in tasks):
                break
            await asyncio.sleep(0.5)
        self.settled_s = time.monotonic() - began_at
        self.ended = Counter(task.status for task in await self.service.store.tasks.list_tasks(limit=100_000))


FAULTS = {"FAULT_COMMITS": "lost_answer:0.01"}
SLOTS = 8
LOOK_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Between which seconds each thing is drawn."""

    server: tuple[float, float] = (5, 40)
    outage: tuple[float, float] = (0, 2)
    worker: tuple[float, float] = (10, 60)
    owner: tuple[float, float] = (45, 120)


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, when."""

    pid: int
    time_us: int


@dataclass
class Monkey:
    """Breaks a deployment in its own loop, and looks at it now and then while it is breaking."""

    service: Deployment
    servers: Mapping[str, MortalServer]
    seed: int
    pace: Pace
    workers: int
    owners: int
    faults: Counter[str] = field(default_factory=Counter)
    kills: list[Kill] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    looks: int = 0

    async def begin(self) -> None:
        await self.service.start_owners(self.owners, **FAULTS, FAULT_SEED=str(self.seed))
        await start_workers(self.service, self.workers, slots=SLOTS, **FAULTS, FAULT_SEED=str(self.seed))

    async def run_for(self, seconds: float) -> None:
        """Break for so long; several things may be broken at once."""
        ends_at = time.monotonic() + seconds
        await asyncio.gather(
            *(self._servers(name, server, ends_at) for name, server in self.servers.items()),
            self._each("worker", self.pace.worker, ends_at),
            self._each("owner", self.pace.owner, ends_at),
            self._look(ends_at),
        )

    async def calm(self) -> None:
        """Bring everything up that should be up."""
        for server in self.servers.values():
            if not await asyncio.to_thread(server.answers):
                await asyncio.to_thread(server.start)

    async def _servers(self, name: str, server: MortalServer, ends_at: float) -> None:
        draw = random.Random(f"{self.seed}/{name}")
        for wait_s in _waits(draw, self.pace.server):
            down_s, way = draw.uniform(*self.pace.outage), draw.choice(("killed", "stopped", "frozen"))
            if not await _sleep_before(ends_at, wait_s):
                return
            self.faults[f"{name} {way}"] += 1
            ends = {"frozen": server.freeze, "killed": server.kill, "stopped": server.stop}
            await asyncio.to_thread(ends[way])
            await asyncio.sleep(down_s)
            await asyncio.to_thread(server.thaw if way == "frozen" else server.start)

    async def _each(self, what: str, pace: tuple[float, float], ends_at: float) -> None:
        draw = random.Random(f"{self.seed}/{what}")
        for wait_s in _waits(draw, pace):
            place = draw.random()
            if not await _sleep_before(ends_at, wait_s):
                return
            processes = self.service.workers if what == "worker" else self.service.owners
            living = [process for process in processes if process.poll() is None]
            victim = living[int(place * len(living))]
            await asyncio.to_thread(kill, victim)
            self.faults[f"{what} killed"] += 1
            if what == "worker":
                self.kills.append(Kill(victim.pid, time.time_ns() // 1000))
            await self._start_again(what)

    async def _start_again(self, what: str) -> None:
        """Start one like the one that was killed, as a service manager does: again and again until it stays."""
        while True:
            try:
                if what == "worker":
                    await start_workers(self.service, 1, slots=SLOTS, **FAULTS, FAULT_SEED=str(self.seed))
                else:
                    await self.service.start_owners(1, **FAULTS, FAULT_SEED=str(self.seed))
            except AssertionError:  # it ended because a server was away while it started
                self.faults[f"{what} not started"] += 1
            else:
                return

    async def _look(self, ends_at: float) -> None:
        """Audit while everything breaks: what holds at rest only because it settled is no promise."""
        while await _sleep_before(ends_at, LOOK_EVERY_S):
            try:
                report = await asyncio.to_thread(audit, self.service.database_url)
            except SQLAlchemyError:
                continue
            self.looks += 1
            self.broken += report.broken


def _waits(draw: random.Random, pace: tuple[float, float]) -> Iterator[float]:
    while True:
        yield draw.uniform(*pace)


async def _sleep_before(ends_at: float, seconds: float) -> bool:
    """Sleep; False when the end comes first."""
    left_s = ends_at - time.monotonic()
    await asyncio.sleep(max(0.0, min(seconds, left_s)))
    return left_s > seconds


ENDS = frozenset({"step_completed", "step_failed", "step_handed_back", "step_lease_expired"})


def figures(service: Deployment, monkey: Monkey, work: Work) -> dict[str, object]:
    """Gather what is worth keeping."""
    tables = read_tables(service.database_url)
    found = recoveries_s(tables, monkey.kills)
    logs = service.logs(all_of_it=True)
    return {
        "seed": monkey.seed,
        "tasks": len(tables.tasks),
        "steps": len(tables.steps),
        "submissions refused and repeated": work.refused,
        **{f"fault: {name}": number for name, number in sorted(monkey.faults.items())},
        "fault: commit applied, told as an error": logs.count("fault: lost_answer"),
        "audits meanwhile": monkey.looks,
        "steps held by killed workers": len(found),
        "recovery p50 s": round(median(found), 1) if found else None,
        "recovery p95 s": round(quantiles(found, n=20)[-1], 1) if len(found) > 1 else None,
        "recovery max s": round(max(found), 1) if found else None,
        "stale writers told so": logs.count('"event": "lease_lost"') + logs.count('"event": "incarnation_lost"'),
        "settled after the last fault s": round(work.settled_s, 1),
    }


def recoveries_s(tables: Tables, kills: Sequence[Kill]) -> list[float]:
    """Return for each step that a killed worker held how long it took until another one had claimed it."""
    killed_us = {worker["id"]: kill.time_us for kill in kills for worker in tables.workers if worker["pid"] == kill.pid}
    found = []
    for events in tables.events.values():
        lost_us: int | None = None
        holder = ""
        for event in events:
            if event["type"] == "step_claimed":
                if lost_us is not None:
                    found.append((event["time_us"] - lost_us) / 1e6)
                holder, lost_us = str(event["data"]["worker"]), None
            elif event["type"] == "step_lease_expired" and holder in killed_us:
                lost_us = killed_us[holder]
            elif event["type"] in ENDS:
                lost_us = None
    return found


def lines(found: Mapping[str, object]) -> Iterator[str]:
    yield from (f"{name:<42}{value!s:>12}" for name, value in found.items())
