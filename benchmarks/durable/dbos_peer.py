"""DBOS: a workflow whose steps are functions of its own process, each recorded in PostgreSQL when it has ended.

``python dbos_peer.py URL``. The steps of a fan run at once, as coroutines.
"""

import asyncio
import sys

from dbos import DBOS
from protocol import serve


@DBOS.step()
async def echo(value: int) -> int:
    return value


@DBOS.workflow()
async def fan(size: int) -> int:
    await echo(1)
    values = await asyncio.gather(*(echo(1) for _ in range(size)))
    await echo(1)
    return sum(values)


@DBOS.workflow()
async def chain(size: int) -> int:
    value = 1
    for _ in range(size):
        value = await echo(value)
    return value


def main(url: str) -> None:
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    with asyncio.Runner() as runner:
        serve(lambda shape, size: runner.run(fan(size) if shape == "W1" else chain(1 if shape == "W5" else size)))
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
