"""Functions that ``python`` steps call, by name.

A function takes the step's inputs and a :class:`StepContext` and returns JSON. Workers import the modules named by
``SOONG_FUNCTIONS``; importing registers. A plain function runs on a thread of the worker, a coroutine function
on its loop; a *cheap* one (no I/O, microseconds) is called on the loop itself, without a thread hop. An
isolated one is called in a process of its own.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from soong.shared.core.errors import InvalidConfigError, NotFoundError
from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.problems import Unknown, near


class StepContext(Value):
    """The run that calls the function, and the number of its attempt, from 1 on.

    ``effect_key`` is the same for every attempt and resume of the step. A function that makes ``run_dir``, for files or
    for the logs alone, has its run's folder kept; otherwise only one that fails has it (EVT-03).
    """

    identity: RunIdentity
    attempt: int = 1
    effect_key: str = ""
    run_dir: Path = Path()


StepFunctionBody: TypeAlias = Callable[[JsonObject, StepContext], Json | Awaitable[Json]]
Isolation = Literal["thread", "process"]
_Body = TypeVar("_Body", bound=StepFunctionBody)


class StepFunction(Value):
    """A registered function; a cheap one runs on the event loop of its worker."""

    name: str
    body: StepFunctionBody
    is_async: bool
    is_cheap: bool = False
    isolation: Isolation = "thread"


_FUNCTIONS: dict[str, StepFunction] = {}


def step_function(name: str, *, cheap: bool = False, isolation: Isolation = "thread") -> Callable[[_Body], _Body]:
    """Register the decorated function under ``name``.

    With ``isolation="process"`` each call has a process of its own, which ends with the step; a step can say otherwise.

    Raises:
        InvalidConfigError: the name is taken by another function, or one that is not cheap is called so.
    """

    def register(body: _Body) -> _Body:
        is_async = inspect.iscoroutinefunction(body)
        known = _FUNCTIONS.get(name)
        if known is not None and origin_of(known.body) != origin_of(body):
            origins = f"{origin_of(known.body)}, {origin_of(body)}"
            raise InvalidConfigError(f"two step functions are called {name!r}: {origins}")
        if is_async and cheap:
            raise InvalidConfigError(
                f"the step function {name!r} is a coroutine function; only plain ones can be cheap"
            )
        if cheap and isolation == "process":
            raise InvalidConfigError(f"the step function {name!r} has a process for each call, so it is not cheap")
        _FUNCTIONS[name] = StepFunction(name, body, is_async, cheap, isolation)
        return body

    return register


def resolve(name: str) -> StepFunction:
    """Return the function of that name. Raises: NotFoundError."""
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise NotFoundError("step function", name) from None


def known_functions() -> Mapping[str, StepFunction]:
    """Return what is registered in this process now."""
    return dict(_FUNCTIONS)


def nearest(word: str, known: Collection[str]) -> str:
    """Return a question for the known word that is meant, to precede something else; nothing when none is near."""
    close = near(word, known)
    return f"did you mean {close!r}? " if close else ""


def suggestion(word: str, known: Collection[str]) -> str:
    """Return the hint for a word that is none of the known ones."""
    return Unknown(word, known).text()


def origin_of(body: Callable[..., object]) -> str:
    """Return where a function is defined: a module imported under two names registers the same function again."""
    return f"{body.__module__}.{body.__qualname__}"


@step_function("builtin.echo", cheap=True)
def _echo(inputs: JsonObject, _context: StepContext) -> Json:
    """Return the inputs."""
    return inputs


@step_function("builtin.given", cheap=True)
def _given(inputs: JsonObject, _context: StepContext) -> Json:
    """Return the input ``output``: how a fork has the result of a step that does not run again."""
    return inputs.get("output")


@step_function("builtin.fail", cheap=True)
def _fail(inputs: JsonObject, context: StepContext) -> Json:
    """Raise, with the text ``message``; with ``times``, only in that many first attempts."""
    times = inputs.get("times")
    if isinstance(times, int) and context.attempt > times:
        return inputs
    raise RuntimeError(str(inputs.get("message", "builtin.fail was called")))


@step_function("builtin.sleep")
async def _sleep(inputs: JsonObject, _context: StepContext) -> Json:
    """Wait ``seconds`` and return the inputs."""
    seconds = inputs.get("seconds", 1.0)
    await asyncio.sleep(float(seconds) if isinstance(seconds, int | float) else 1.0)
    return inputs
