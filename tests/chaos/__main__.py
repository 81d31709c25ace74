"""``make chaos``: thousands of steps while everything that can be killed is killed, then an audit."""

import argparse
import asyncio
import sys
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.monkey import Monkey, Pace, Work, figures, lines
from tests.system.auditor import Report, audit
from tests.system.deployment import Deployment
from tests.system.faults.scene import effects_file
from tests.system.faults.servers import MortalPostgres, MortalRedis, mortal_postgres, mortal_redis

STEPS_A_MINUTE = 250
SETTLE_S = 300.0
"""How long the last steps may take after the last fault."""
TIMES = {"lease_s": 20.0, "beat_s": 5.0, "sweep_s": 2.0}
"""The defaults of a deployment, not those of the tests."""


def main() -> int:
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="soong-chaos-") as folder,
        nullcontext() if options.store == "sqlite" else mortal_postgres() as postgres,
        mortal_redis("--appendonly", "yes", "--appendfsync", "everysec") as redis,
    ):
        if postgres is not None:
            postgres.make_database("soong")
        return asyncio.run(_run(options, Path(folder), postgres, redis))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description="Break everything, then look whether it is whole.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=0, help=f"default: {STEPS_A_MINUTE} a minute")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--owners", type=int, default=2)
    parser.add_argument("--store", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--seed", type=int, default=0, help="default: from the time; it is printed")
    options = parser.parse_args()
    options.steps = options.steps or int(STEPS_A_MINUTE * options.minutes)
    options.seed = options.seed or int(datetime.now(UTC).timestamp())
    return options


async def _run(options: argparse.Namespace, folder: Path, postgres: MortalPostgres | None, redis: MortalRedis) -> int:
    amount = f"{options.steps} steps in {options.minutes:g} minutes, {options.workers} workers"
    _say(f"seed {options.seed}: {amount}, {options.store}")
    url = f"sqlite:///{folder / 'soong.db'}" if postgres is None else postgres.url
    service = Deployment(url, redis.url, folder, extra=TIMES, has_own_owner=False)
    async with service:
        servers = {"redis": redis} if postgres is None else {"postgres": postgres, "redis": redis}
        monkey = Monkey(service, servers, options.seed, Pace(), options.workers, options.owners)
        work = Work(service, options.steps, options.minutes * 60)
        await monkey.begin()
        await asyncio.gather(work.submit_all(), monkey.run_for(options.minutes * 60))
        await monkey.calm()
        await work.until_ended(SETTLE_S)
        report = audit(service.database_url, effects=effects_file(service), folder=folder, at_rest=True)
        report.broken += monkey.broken
        return _tell(report, figures(service, monkey, work))


def _tell(report: Report, found: dict[str, object]) -> int:
    for line in (*lines(found), *report.lines()):
        _say(line)
    return 1 if report.broken else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
