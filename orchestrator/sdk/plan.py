"""A plan that is a function, run from a program: arguments in, a value of its type out (FLW-01, FLW-02)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from soong.orchestrator.sdk.service import IN_PROCESS, Soong
from soong.orchestrator.sdk.sync import waited
from soong.orchestrator.sdk.task import TaskHandle
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.python_plan.definition import PlanDefinition

P = ParamSpec("P")
R = TypeVar("R")


class PlanFunction(PlanDefinition, Generic[P, R]):
    """A plan in Python. ``document`` is the same plan as YAML has it."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plan to its end and return what it gives.

        It uses the deployment of SOONG_DATABASE_URL, or the service of the home, which is started where none lives.
        Nobody is asked: to answer questions, use :class:`Soong`.

        In async code it holds up the event loop, which a notebook does not mind; there :meth:`start` is better.

        Raises: UsageError, an argument is wrong; TaskFailedError; UnavailableError, no worker can run it.
        """

        async def result() -> R:
            async with _service() as soong:
                return await (await self._started(soong, args, kwargs)).result()

        return waited(result)

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Start the plan and return its task, whose ``result`` is a value of the plan's type.

        The service is as for :meth:`run`. All plans of an event loop share one connection, which stays until it closes.

        Raises: UsageError, an argument is wrong; UnavailableError.
        """
        return await self._started(await _shared_service(), args, kwargs)

    async def _started(self, soong: Soong, args: tuple[object, ...], kwargs: Mapping[str, object]) -> TaskHandle[R]:
        return await soong.start(self, self.signature.bound(args, kwargs))


def _service() -> AbstractAsyncContextManager[Soong]:
    return Soong.connect() if load_settings().database_url else Soong.embedded()


_SHARED: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared]" = WeakKeyDictionary()


class _Shared:
    """The connection of one event loop. A task holds it, which the loop cancels when it closes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.place = IN_PROCESS[-1:]
        self.ready: asyncio.Future[Soong] = loop.create_future()
        self.holding = loop.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            async with _service() as soong:
                self.ready.set_result(soong)
                await asyncio.Event().wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)


async def _shared_service() -> Soong:
    loop = asyncio.get_running_loop()
    shared = _SHARED.get(loop)
    if shared is None or shared.holding.done() or shared.place != IN_PROCESS[-1:]:
        shared = _SHARED[loop] = _Shared(loop)
    return await asyncio.shield(shared.ready)


class _PlanDecorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> PlanFunction[P, R]: ...


@overload
def plan(function: Callable[P, R], /) -> PlanFunction[P, R]: ...


@overload
def plan(*, title: str = "", limits: Mapping[str, Json] | None = None, tags: Sequence[str] = ()) -> _PlanDecorator: ...


def plan(function: Any = None, /, **fields: Any) -> Any:
    """Make a plan of a function that calls steps. Its parameters are the inputs of the plan, typed.

    The function is called once, before anything runs: a call of a step makes a node, and what it returns stands for the
    result that the step will give. ``title``, ``limits`` and ``tags`` are the fields of a plan; without a title it is
    the first line of the docstring, or the name.

    Raises: InvalidPlanError, the signature is wrong.
    """
    if function is None:
        return lambda function: PlanFunction(function, fields)
    return PlanFunction(function, fields)
