"""The limits of a call: what its values may be, in and out; its time, in which waiting for people does not count.

Values are JSON, of a size and depth that every later reader can take. Arguments come from a model and output from
foreign code; neither is trusted to be JSON, small or shallow. A value is walked once and never deeper than
``MAX_DEPTH``, so that nothing behind it needs a recursion limit.

An early call starts before the answer that makes it has arrived (EXE-10). Nothing of it is written before the answer
is, no question is asked before, and when the answer breaks off it ends as ``stream_discarded``.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from math import isfinite
from operator import is_
from types import TracebackType
from typing import Final, Self, TypeVar

from soong.shared.core.jsontext import MAX_BYTES, MAX_SAFE_INTEGER, Json
from soong.shared.core.value import Value
from soong.shared.tools.ports import Gate, GateCall, Verdict

T = TypeVar("T")

MAX_DEPTH: Final = 100
MAX_INTEGER_BITS: Final = 1024
"""Integers of output beyond 308 digits are refused: no reader takes them, and Python refuses to write some."""

_SHOWN_KEY: Final = 80


class TimeLimit:
    """``async with TimeLimit(seconds)``: TimeoutError when the work took longer; None sets no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.timeout = asyncio.timeout(seconds)
        self._waits = 0
        self._left_s: float | None = None

    async def __aenter__(self) -> Self:
        await self.timeout.__aenter__()
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.timeout.__aexit__(type_, error, traceback)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the time while anybody waits in here; several may at once."""
        loop, deadline = asyncio.get_running_loop(), self.timeout.when()
        self._waits += 1
        if self._waits == 1 and deadline is not None:
            self._left_s = max(0.0, deadline - loop.time())
            self.timeout.reschedule(None)
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0 and self._left_s is not None and not self.timeout.expired():
                self.timeout.reschedule(loop.time() + self._left_s)
                self._left_s = None


class UntimedGate(Value):
    """A gate whose waiting counts to no time limit."""

    gate: Gate
    limit: TimeLimit

    async def decide(self, call: GateCall) -> Verdict:
        with self.limit.suspended():
            return await self.gate.decide(call)


def aborted_by_person(reason: str, what: str = "run") -> str:
    """Return why a call ended that a person aborted, alone or with its run."""
    return f"a person aborted this {what}: {reason or 'no reason was given'}"


@dataclass(slots=True, eq=False)
class AbortableCall:
    """A call under way in ``task``. Refuses a second abort, and one while the task is being cancelled already."""

    task: "asyncio.Task[object]"
    before: int
    """How often the task was being cancelled when the call began."""
    reason: str = ""
    _is_open: bool = True
    _is_pending: bool = False

    def abort(self, reason: str) -> bool:
        """End the call alone; False when it is ending already."""
        if not self._is_open or self.reason or self.task.cancelling() > self.before:
            return False
        self.reason = aborted_by_person(reason, "call")
        self._is_pending = self.task.cancel()
        return self._is_pending

    def taken_back(self) -> bool:
        """Take a pending abort back from the task; False when there is none, or the task is cancelled for more."""
        if not self._is_pending or asyncio.current_task() is not self.task:
            return False
        self._is_pending = False
        return self.task.uncancel() <= self.before

    def close(self) -> None:
        """Leave no abort behind for what the task does next, whatever the call made of it."""
        self._is_open = False
        self.taken_back()


_CURRENT: ContextVar[AbortableCall | None] = ContextVar("abortable_call", default=None)


@contextmanager
def abortable() -> Iterator[AbortableCall]:
    """Let the call that the current asyncio task makes within this be aborted alone."""
    task = asyncio.current_task()
    assert task is not None
    call = AbortableCall(task, task.cancelling())
    token = _CURRENT.set(call)
    try:
        yield call
    finally:
        _CURRENT.reset(token)
        call.close()


def taken_back() -> str:
    """Take the abort of the current call back from its task and return the reason; empty when the run is to end."""
    call = _CURRENT.get()
    return call.reason if call is not None and call.taken_back() else ""


@dataclass(slots=True, eq=False)
class EarlyCall:
    """A call that has started early: it waits until its answer is written (:meth:`keep`) or has broken off."""

    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _is_kept: bool = False

    def start(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        context = copy_context()
        context.run(_EARLY.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def keep(self) -> None:
        self._is_kept = True
        self._settled.set()

    def discard(self) -> None:
        """Let it end without a trace but its event."""
        self._settled.set()

    async def is_kept(self) -> bool:
        await self._settled.wait()
        return self._is_kept


_EARLY: ContextVar[EarlyCall | None] = ContextVar("early_call", default=None)


async def answer_kept() -> bool:
    """Wait until the answer that made this call is written; False when it broke off."""
    early = _EARLY.get()
    return early is None or await early.is_kept()


class UnfitError(ValueError):
    """The value cannot be taken. ``path`` is the place below the root, ``rule`` what it breaks there."""

    def __init__(self, path: str, rule: str, problem: str) -> None:
        self.path, self.rule, self.problem = path, rule, problem
        super().__init__(f"${path[:400]}: {problem}")

    def below(self, step: str) -> "UnfitError":
        return UnfitError(step + self.path, self.rule, self.problem)


def check_incoming(value: object, *, max_chars: int = MAX_BYTES) -> None:
    """Refuse arguments that are too large or nested too deep, without reading on (SCH-03).

    Counts characters of texts and keys, and one for every value; stops at the limit.
    Raises: UnfitError, it is too large, too deep, or not JSON.
    """
    room = max_chars
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        following: list[object] = []
        for item in level:
            room -= _weight(item)
            if room < 0:
                raise UnfitError("", "size", f"is larger than {max_chars} characters")
            if isinstance(item, Mapping):
                following.extend(item.values())
            elif isinstance(item, list):
                following.extend(item)
        if not following:
            return
        level = following
    raise UnfitError("", "depth", f"is nested deeper than {MAX_DEPTH} levels")


def _weight(item: object) -> int:
    if isinstance(item, str):
        return 1 + len(item)
    if item is None or isinstance(item, bool):
        return 1
    if isinstance(item, int):
        if abs(item) > MAX_SAFE_INTEGER:
            raise UnfitError("", "integer", "holds an integer beyond 2^53, which other readers would round")
        return 1
    if isinstance(item, float):
        if not isfinite(item):
            raise UnfitError("", "number", f"holds {item}, which is not a JSON number")
        return 1
    if isinstance(item, list):
        return 1 + len(item)
    if isinstance(item, Mapping):
        return 1 + sum(len(key) if isinstance(key, str) else _not_json(key) for key in item)
    return _not_json(item)


def _not_json(item: object) -> int:
    raise UnfitError("", "type", f"holds a {type(item).__name__}, which is not JSON")


def storable(text: str) -> str:
    """Return text that databases, files and providers take: lone surrogates become U+FFFD; the same object if fit."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def plain(value: object, depth: int = 0) -> Json:
    """Return output as plain JSON data that can be stored; the same object where nothing had to change.
    Raises: UnfitError, something in it is not JSON, or it is nested too deep.
    """
    if isinstance(value, str):
        return storable(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if isinstance(value, int):
            if value.bit_length() > MAX_INTEGER_BITS:
                raise UnfitError("", "integer", f"an integer of {value.bit_length()} bits is too large")
        elif not isfinite(value):
            raise UnfitError("", "number", f"{value} is not a JSON number")
        return value
    if isinstance(value, list | tuple | Mapping) and depth == MAX_DEPTH:
        raise UnfitError("", "depth", f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return _plain_list(value, depth)
    if isinstance(value, Mapping):
        return _plain_object(value, depth)
    raise UnfitError("", "type", f"a {type(value).__name__} is not JSON")


def _plain_object(value: Mapping[object, object], depth: int) -> Json:
    pairs: dict[str, Json] = {}
    is_same = isinstance(value, dict)
    for key, item in value.items():
        if not isinstance(key, str):
            problem = f"the key {str(key)[:_SHOWN_KEY]!r} is a {type(key).__name__}; JSON keys are texts"
            raise UnfitError("", "key", problem)
        try:
            kept = plain(item, depth + 1)
        except UnfitError as error:
            raise error.below(f".{key[:_SHOWN_KEY]}") from None
        name = storable(key)
        is_same = is_same and name is key and kept is item
        pairs[name] = kept
    return value if is_same else pairs  # type: ignore[return-value]  # a dict whose keys and values were all checked


def _plain_list(value: Sequence[object], depth: int) -> Json:
    items: list[Json] = []
    for index, item in enumerate(value):
        try:
            items.append(plain(item, depth + 1))
        except UnfitError as error:
            raise error.below(f"[{index}]") from None
    is_same = isinstance(value, list) and all(map(is_, items, value))
    return value if is_same else items  # type: ignore[return-value]  # a list whose items were all checked


def integral(value: Json) -> Json:
    """Return a value with integral floats as integers: JSON knows no difference, Python's ``range`` does.

    The digest stays the same (RFC 8785 writes both alike). The same object when it holds no such number.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < MAX_SAFE_INTEGER else value
    if isinstance(value, dict):
        pairs = {key: integral(item) for key, item in value.items()}
        return pairs if any(pairs[key] is not item for key, item in value.items()) else value
    if isinstance(value, list):
        items = [integral(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value
