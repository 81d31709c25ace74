"""Step functions that raise what functions rarely raise; the worker imports them through SOONG_FUNCTIONS."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from tests.waiting import others_run


class PanicException(BaseException):
    """What pyo3 raises for a panic in Rust: no ``Exception``."""


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class SpeaksByExitingError(Exception):
    def __str__(self) -> str:
        if self.args != ("mute",):
            sys.exit(9)
        return "mute"


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "value": (lambda: ValueError("no such customer: 42"), "ValueError: no such customer: 42"),
    "group": (
        lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
        "ExceptionGroup: two (2 sub-exceptions)",
    ),
    "base-group": (
        lambda: BaseExceptionGroup("worse", [PanicException("p"), ValueError("a")]),
        "BaseExceptionGroup: worse (2 sub-exceptions): PanicException: p; ValueError: a",
    ),
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "generator-exit": (GeneratorExit, "GeneratorExit"),
    "stop": (lambda: StopIteration(1), "StopIteration: 1"),
    "stop-async": (lambda: StopAsyncIteration(1), "StopAsyncIteration: 1"),
    "cancelled": (lambda: asyncio.CancelledError("own"), "CancelledError: own"),
    "panic": (lambda: PanicException("index out of bounds"), "PanicException: index out of bounds"),
    "unspeakable": (UnspeakableError, "UnspeakableError: its text cannot be read (RuntimeError)"),
    "exits-speaking": (SpeaksByExitingError, "SpeaksByExitingError: its text cannot be read (SystemExit)"),
}


def raise_it(inputs: JsonObject) -> NoReturn:
    make, _ = RAISED[str(inputs["what"])]
    raise make()


@step_function("raise.plain")
def plain(inputs: JsonObject, context: StepContext) -> Json:
    raise_it(inputs)


@step_function("raise.cheap", cheap=True)
def cheap(inputs: JsonObject, context: StepContext) -> Json:
    raise_it(inputs)


@step_function("raise.async")
async def asynchronous(inputs: JsonObject, context: StepContext) -> Json:
    await others_run()
    raise_it(inputs)


@step_function("raise.library")
def library(inputs: JsonObject, context: StepContext) -> Json:
    """Raise from within the standard library."""
    import json

    return str(json.loads("{"))


@step_function("leave.code")
def leave(inputs: JsonObject, context: StepContext) -> Json:
    """End the worker process with an exit code, as a library's fatal error does."""
    code = inputs.get("code")
    os._exit(code if isinstance(code, int) else 1)


@step_function("leave.signal")
def die(inputs: JsonObject, context: StepContext) -> Json:
    """End the worker process by a signal."""
    os.kill(os.getpid(), getattr(signal, str(inputs["name"])))
    signal.pause()
    return None
