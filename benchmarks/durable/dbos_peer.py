"""DBOS: a workflow whose steps run in its own process, each recorded in PostgreSQL when it has ended.

``python dbos_peer.py URL``: its steps are functions. ``python dbos_peer.py URL FOLDER``: they are agents that look into
the folder. A step returns the number that it is given. The steps of a fan run at once, as coroutines.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dbos import DBOS
from protocol import Asked, serve

Step: TypeAlias = Callable[[int], Awaitable[int]]
Shape: TypeAlias = Callable[[int, int], Awaitable[int]]


@DBOS.step()
async def echo(value: int) -> int:
    return value


def fan_of(step: Step, leaf: Step) -> Shape:
    @DBOS.workflow()
    async def fan(size: int, value: int) -> int:
        first = await step(value)
        values = await asyncio.gather(*(leaf(value) for _ in range(size)))
        return first + sum(values) + await step(value)

    return fan


def chain_of(step: Step) -> Shape:
    @DBOS.workflow()
    async def chain(size: int, value: int) -> int:
        return sum([await step(value) for _ in range(size)])

    return chain


def shapes_of(folder: str) -> tuple[Shape, Shape]:
    """Return the fan and the chain.

    An agent is several steps, whose order has to be the same when its workflow runs again. So agents that run at once
    are workflows of their own.
    """
    if not folder:
        return fan_of(echo, echo), chain_of(echo)
    from dbos_agent import look_of

    look = look_of(folder)
    return fan_of(look, DBOS.workflow(name="leaf")(look)), chain_of(look)


def main(url: str, folder: str = "") -> None:
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    fan, chain = shapes_of(folder)
    DBOS.launch()
    with asyncio.Runner() as runner:

        def run(asked: Asked) -> int:
            return runner.run((fan if asked.is_fan else chain)(asked.size, asked.value))

        serve(run)
    DBOS.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
