"""The service from a program without an event loop: the same calls, which wait (FLW-02).

An event loop runs on a thread of its own for as long as the service is open. Calls may come from any thread.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

from soong.orchestrator.sdk.service import Soong
from soong.orchestrator.sdk.task import StepChange, TaskHandle
from soong.shared.core.errors import SoongError
from soong.shared.core.log_lines import LogLine

P = ParamSpec("P")
R = TypeVar("R")


def waited(function: Callable[[], Coroutine[Any, Any, R]], portal: BlockingPortal | None = None) -> R:
    """Run a coroutine function to its end, without ``portal`` in a loop of its own, here if no other runs here.

    An error of ours is raised again from here: the frames of event loops below say nothing to its reader.
    """
    try:
        if portal is None and not _is_in_loop():
            return asyncio.run(function())
        with nullcontext(portal) if portal else start_blocking_portal() as found:
            made: R = found.call(function)
            return made
    except SoongError as error:
        raise error.with_traceback(None) from error.__cause__


def _is_in_loop() -> bool:
    with suppress(RuntimeError):
        return bool(asyncio.get_running_loop())
    return False


def _waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that waits for the async one of what is ``wrapped``."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return waited(partial(method, self.wrapped, *args, **kwargs), self.portal)

    return cast("Callable[Concatenate[Any, P], R]", call)


def _starts(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, TaskHandle[R]]],
) -> "Callable[Concatenate[Any, P], SyncTask[R]]":
    """Return a method whose task has methods that wait."""

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> SyncTask[R]:
        return SyncTask(self.portal, waited(partial(method, self.wrapped, *args, **kwargs), self.portal))

    return cast("Callable[Concatenate[Any, P], SyncTask[R]]", call)


def _each(portal: BlockingPortal, items: AsyncIterator[R]) -> Iterator[R]:
    """Yield the items of an async generator."""
    try:
        while True:
            try:
                yield portal.call(anext, items)
            except StopAsyncIteration:
                return
    finally:
        if isinstance(items, AsyncGenerator):
            portal.call(items.aclose)


class SyncTask(Generic[R]):
    """A :class:`TaskHandle` whose methods wait."""

    def __init__(self, portal: BlockingPortal, wrapped: TaskHandle[R]) -> None:
        self.portal, self.wrapped = portal, wrapped

    @property
    def id(self) -> str:
        return self.wrapped.id

    def result(self) -> R:
        """As :meth:`TaskHandle.result`."""
        return waited(self.wrapped.result, self.portal)

    def events(self) -> Iterator[StepChange]:
        """As :meth:`TaskHandle.events`."""
        return _each(self.portal, self.wrapped.events())

    status = _waits(TaskHandle[Any].status)
    details = _waits(TaskHandle[Any].details)
    wait = _waits(TaskHandle[Any].wait)
    questions = _waits(TaskHandle[Any].questions)
    answer = _waits(TaskHandle[Any].answer)
    pause = _waits(TaskHandle[Any].pause)
    resume = _waits(TaskHandle[Any].resume)
    retry = _waits(TaskHandle[Any].retry)
    cancel = _waits(TaskHandle[Any].cancel)
    set_priority = _waits(TaskHandle[Any].set_priority)
    abort_run = _waits(TaskHandle[Any].abort_run)
    dispatch_worker = _waits(TaskHandle[Any].dispatch_worker)
    update = _waits(TaskHandle[Any].update)


class SyncSoong:
    """A :class:`Soong` whose methods wait. Made by :meth:`embedded` or :meth:`connect`, contexts to be entered."""

    def __init__(self, portal: BlockingPortal, wrapped: Soong) -> None:
        self.portal, self.wrapped = portal, wrapped

    @classmethod
    @contextmanager
    def embedded(cls, **settings: object) -> Iterator[Self]:
        """As :meth:`Soong.embedded`."""
        with cls._opened(Soong.embedded(**settings)) as soong:
            yield soong

    @classmethod
    @contextmanager
    def connect(cls, database_url: str = "", redis_url: str = "", **settings: object) -> Iterator[Self]:
        """As :meth:`Soong.connect`."""
        with cls._opened(Soong.connect(database_url, redis_url, **settings)) as soong:
            yield soong

    @classmethod
    @contextmanager
    def _opened(cls, service: AbstractAsyncContextManager[Soong]) -> Iterator[Self]:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(service) as soong:
            yield cls(portal, soong)

    start = _starts(Soong.start)
    run = _waits(Soong.run)
    ask = _waits(Soong.ask)
    tasks = _waits(Soong.tasks)

    @property
    def preview(self) -> Callable[..., Any]:
        """As :meth:`Soong.preview`, which does not wait."""
        return self.wrapped.preview

    def logs(self, run_id: str, *, after: int = 0, follow: bool = False) -> Iterator[LogLine]:
        """As :meth:`Soong.logs`."""
        return _each(self.portal, self.wrapped.logs(run_id, after=after, follow=follow))

    def task(self, task_id: str) -> SyncTask[Any]:
        """As :meth:`Soong.task`."""
        return SyncTask(self.portal, self.wrapped.task(task_id))
