"""Borders at which a process ends or stops itself: exactly there, whatever else it writes meanwhile."""

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import RootTransaction

from soong.shared.permissions.store import OpenQuestions
from soong.shared.storage.redis.client import Command, RedisNotifier
from soong.shared.storage.sql.consent.consent import SqlConsentStore
from soong.shared.storage.sql.engine.database import Database
from soong.shared.storage.sql.engine.writer import Writer
from tests.system.faults.parts import part_with

END: Final = "end"
HINT: Final = "hint"
ANSWERS: Final = "answers"
STRUCK: Final = "border: "
"""What the process's log says before it is struck, and then the border."""

_left: set[str] = set()
_written: set[str] = set()
"""What the transaction that is under way writes; only the writer's thread knows."""
_method: ContextVar[str] = ContextVar("method", default="")


def reach(border: str) -> None:
    """Be at a border: if it is one of those that were named, and for the first time, it strikes."""
    if border in _left:
        _left.discard(border)
        os.write(2, f"{STRUCK}{border}\n".encode())  # what a run writes to sys.stderr is kept with it
        # To this thread: one sent to the process may reach another thread first, and this one go on meanwhile.
        strike = signal.SIGSTOP if os.environ.get("FAULT_STRIKE") == "stop" else signal.SIGKILL
        signal.pthread_kill(threading.get_ident(), strike)


def install(borders: str) -> None:
    """Watch the borders that are named here."""
    _left.update(borders.split(","))
    for name in {border.partition(":")[0] for border in _left}:
        if name == HINT:
            _watch_hints()
        elif name == ANSWERS:
            _watch_answers()
        elif name == END:
            _watch(name, "advance")
        elif part_with(name):
            _watch(name, name)
    _watch_commits()


def _watch(name: str, method: str) -> None:
    part = part_with(method)
    original: Callable[..., Awaitable[Any]] = getattr(part, method)

    async def watched(self: object, *given: Any, **named: Any) -> Any:
        if name == END and not given[1]:
            return await original(self, *given, **named)
        reach(f"{name}:call")
        before = _method.set(name)
        try:
            found = await original(self, *given, **named)
        finally:
            _method.reset(before)
        if found is not None:
            reach(f"{name}:return")
        return found

    setattr(part, method, watched)


def _watch_answers() -> None:
    original = SqlConsentStore.open_questions

    async def watched(self: SqlConsentStore, session_id: str, *, limit: int) -> OpenQuestions | None:
        found = await original(self, session_id, limit=limit)
        if found is not None and found.answers:
            reach(f"{ANSWERS}:return")
        return found

    SqlConsentStore.open_questions = watched  # type: ignore[method-assign]  # it does not come back


def _watch_commits() -> None:
    original, original_together = Database.write, Database.write_together

    async def write(self: Database, function: Callable[[Any], Any], **named: Any) -> Any:
        name = _method.get()

        def marked(transaction: Any) -> Any:
            _written.add(name)
            return function(transaction)

        return await original(self, marked if name else function, **named)

    async def write_together(self: Database, function: Callable[[Any, Any], Any], item: Any, **named: Any) -> Any:
        name = _method.get()

        def marked(transaction: Any, items: Any) -> Any:
            _written.add(name)
            return function(transaction, items)

        return await original_together(self, marked if name else function, item, **named)

    def striking(transaction: RootTransaction) -> None:
        written = sorted(_written)
        _written.clear()
        for name in written:
            reach(f"{name}:before")
        transaction.commit()
        for name in written:
            reach(f"{name}:after")

    Database.write = write  # type: ignore[method-assign]  # it does not come back
    Database.write_together = write_together  # type: ignore[method-assign, assignment]  # as above
    Writer.committer = staticmethod(striking)


def _watch_hints() -> None:
    original = RedisNotifier._send_batch  # where hints leave the process; nothing public is that exact

    async def sending(self: RedisNotifier, batch: Collection[Command]) -> None:
        is_meant = any(command[0] == "XADD" for command in batch)
        if is_meant:
            reach(f"{HINT}:before")
        await original(self, batch)
        if is_meant:
            reach(f"{HINT}:after")

    RedisNotifier._send_batch = sending  # type: ignore[method-assign]  # it does not come back


if _named := os.environ.get("FAULT_BORDERS"):
    install(_named)
