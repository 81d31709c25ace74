"""The monkey: what is killed, when, and what is started again. All of it is drawn from one seed before it begins."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from tests.system.auditor import audit
from tests.system.deployment import Deployment, kill
from tests.system.faults.scene import start_workers
from tests.system.faults.servers import MortalServer

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
