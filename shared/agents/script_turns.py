"""Runs a scripted agent's function turn by turn: up to where each of its tasks waits for a call, and on with results.

The function runs on an event loop of its own that only turns while somebody advances it, on a thread. So its CPU time
holds up no other run of the process, and "all of it waits" is a fact and no guess: the loop has nothing left to do.
"""

import asyncio
import threading
import types
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from soong.shared.core.errors import ScriptFailedError, ToolCallError
from soong.shared.core.foreign import await_foreign, call_foreign, place_of, words_of
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.log_lines import note_raised
from soong.shared.core.value import Value
from soong.shared.engine.tasks.functions import ScriptedAgent
from soong.shared.tools.limits import UnfitError, plain

MAX_CALLS_PER_TURN: Final = 200
"""More calls at once are several turns."""


class WantedCall(Value):
    """A call that the function waits for, by canonical name."""

    tool: str
    arguments: JsonObject
    future: "asyncio.Future[Any] | None" = None
    """The future that a function awaits on a loop of its own."""


class CallOutcome(Value):
    """The result of a call: its value, or the error to raise at its await."""

    value: Json = None
    error: ToolCallError | None = None


class _TurnLoop(asyncio.BaseEventLoop):
    """An event loop without input or output that stops by itself when all its tasks wait."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        # Tasks that the function left behind are nobody's business once it has ended.
        self.set_exception_handler(lambda _loop, _context: None)

    def select(self, timeout: float | None) -> Sequence[object]:
        """Take the place of waiting for sockets: nothing is ready, so everything waits for calls."""
        if timeout != 0:
            self.stop()
        return ()

    def _process_events(self, _events: Sequence[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody waits in ``select`` to be woken."""


class _Handle:
    """A function's view of its run, and the wording of its failures."""

    def __init__(self, script: ScriptedAgent, inputs: dict[str, Any], run_dirs: JsonObject) -> None:
        self.output: Json = None
        self.project, self.cwd = str(run_dirs.get("project", "")), str(run_dirs.get("cwd", ""))
        self._script = script
        self._inputs = inputs

    def _failed(self, error: BaseException) -> ScriptFailedError:
        note_raised(error)
        place = place_of(error, self._script.body.__code__.co_filename)
        return ScriptFailedError(words_of(error) + (f" (at {place})" if place else ""), is_retryable=True)

    def _waits_for_nothing_of_ours(self) -> ScriptFailedError:
        words = f"the scripted agent {self._script.name!r} waits for something that is not a tool call"
        return ScriptFailedError(f"{words}; await only `agent.call`")


class ScriptTurns(_Handle):
    """One run of one function. ``output`` is set once it has ended.

    Its creator calls :meth:`close`. One turn at a time; each may be on another thread.
    """

    def __init__(self, script: ScriptedAgent, inputs: dict[str, Any], run_dirs: JsonObject) -> None:
        super().__init__(script, inputs, run_dirs)
        self._loop: _TurnLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._waiting: list[WantedCall] = []
        self._asked: Sequence[WantedCall] = ()
        self._lock = threading.Lock()

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Wait for a call (:class:`soong.shared.engine.tasks.functions.AgentHandle`)."""
        given = _given(tool, arguments)
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(WantedCall(tool, given, future))
        return await future

    def advance(self, outcomes: Sequence[CallOutcome]) -> Sequence[WantedCall] | None:
        """Give the last turn's calls their outcomes; return the calls of the next turn, None when the function ended.
        Raises: ScriptFailedError, the function raised, or waits for something that is not a tool call.
        """
        with self._lock:
            if self._loop is None or self._main is None:
                self._loop = _TurnLoop()
                self._main = self._loop.create_task(await_foreign(lambda: self._script.body(self._inputs, self)))
            loop, main = self._loop, self._main
            for call, outcome in zip(self._asked, outcomes, strict=True):
                if call.future is not None:
                    _settle(call.future, outcome)
            try:
                call_foreign(loop.run_forever)
            except Exception as error:  # an exit or an interrupt, raised in a task that the function made
                self._end()
                raise self._failed(error) from error
            if main.done():
                self.output = self._result(main)
                self._end()
                return None
            self._asked, self._waiting = self._waiting[:MAX_CALLS_PER_TURN], self._waiting[MAX_CALLS_PER_TURN:]
            if not self._asked:
                self._end()
                raise self._waits_for_nothing_of_ours()
            return self._asked

    def close(self) -> None:
        """End the function where it waits: it is cancelled. Waits for a turn under way."""
        with self._lock:
            self._end()

    def _result(self, main: "asyncio.Task[Any]") -> Json:
        try:
            return plain(main.result())
        except (Exception, asyncio.CancelledError) as error:
            self._end()
            raise self._failed(error) from error

    def _end(self) -> None:
        loop, self._loop, self._main = self._loop, None, None
        if loop is None or loop.is_closed():
            return
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with suppress(Exception):  # errors of a cancelled function are ignored
            call_foreign(loop.run_forever)
        loop.close()


class CheapTurns(_Handle):
    """One run of one cheap function, on the event loop of its caller: it is stepped from call to call by hand."""

    _body: Coroutine[Any, Any, Any] | None = None

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Wait for a call (:class:`soong.shared.engine.tasks.functions.AgentHandle`)."""
        return await _yielded(WantedCall(tool, _given(tool, arguments)))

    def advance(self, outcomes: Sequence[CallOutcome]) -> Sequence[WantedCall] | None:
        """As that of :class:`ScriptTurns`; each turn has one call."""
        try:
            wanted = call_foreign(self._step, outcomes)
        except Exception as error:
            raise self._failed(error) from error
        if wanted is None:
            return None
        if not isinstance(wanted, WantedCall):
            self.close()
            raise self._waits_for_nothing_of_ours()
        return (wanted,)

    def close(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with suppress(Exception):  # errors of a function that is ended are ignored
                call_foreign(body.close)

    def _step(self, outcomes: Sequence[CallOutcome]) -> object:
        """Run up to the next call and return it; None when the function has ended."""
        if self._body is None:
            self._body = cast("Coroutine[Any, Any, Any]", self._script.body(self._inputs, self))
        outcome = outcomes[0] if outcomes else CallOutcome()
        try:
            if outcome.error is not None:
                return self._body.throw(outcome.error)
            return self._body.send(outcome.value if outcomes else None)
        except StopIteration as end:
            self.output = plain(end.value)
            return None


@types.coroutine
def _yielded(wanted: WantedCall) -> Generator[WantedCall, Any, Any]:
    return (yield wanted)


def _given(tool: str, arguments: Mapping[str, Any]) -> JsonObject:
    try:
        given = plain({name: value for name, value in arguments.items() if value is not None})
    except UnfitError as error:
        raise TypeError(f"the arguments of {tool!r} are not JSON: {error}") from error
    assert isinstance(given, dict)
    return given


def _settle(future: "asyncio.Future[Any]", outcome: CallOutcome) -> None:
    if future.done():  # the function has cancelled it
        return
    if outcome.error is None:
        future.set_result(outcome.value)
    else:
        future.set_exception(outcome.error)
