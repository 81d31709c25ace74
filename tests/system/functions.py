"""Step functions for tests, imported by workers through SOONG_FUNCTIONS."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from soong.shared.core.errors import NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from tests.waiting import others_run, wait_until
from tests.waiting import until as later

HANGS_S = 600.0


@step_function("test.keep")
def keep(inputs: JsonObject, context: StepContext) -> Json:
    """Write a file in the run's folder, or only a folder."""
    Path("made").mkdir()
    if inputs.get("writes"):
        context.folder.joinpath("notes.txt").write_text("kept")
    return None


@step_function("test.hold_lock")
def hold_lock(inputs: JsonObject, context: StepContext) -> Json:
    """Hold the interpreter's lock for ever, as a C extension that never returns does."""
    ctypes.PyDLL(None).sleep(10**6)
    return None


@step_function("test.note")
def note(inputs: JsonObject, context: StepContext) -> Json:
    """Write begin and end of this call to a ledger, and block the thread in between until a file is there."""
    ledger = Path(str(inputs["ledger"]))
    _write(ledger, "begin", context)
    if until := inputs.get("until"):
        wait_until(Path(str(until)).exists, HANGS_S)
    _write(ledger, "end", context)
    return context.attempt


@step_function("test.tick")
def tick(inputs: JsonObject, context: StepContext) -> Json:
    """Write to a ledger again and again until a file is there: where it runs, and when."""
    while not Path(str(inputs["until"])).exists():
        _write(Path(str(inputs["ledger"])), "tick", context)
        time.sleep(0.002)
    return None


@step_function("test.note_deaf")
async def note_deaf(inputs: JsonObject, context: StepContext) -> Json:
    """Do the same in a coroutine that takes no notice of its cancellation."""
    ledger, until = Path(str(inputs["ledger"])), Path(str(inputs["until"]))
    _write(ledger, "begin", context)
    while not until.exists():  # noqa: ASYNC240  # a look of microseconds
        with suppress(asyncio.CancelledError):
            await later(until.exists, HANGS_S)
    _write(ledger, "end", context)
    return context.attempt


@step_function("test.sleep_with_child")
def sleep_with_child(inputs: JsonObject, context: StepContext) -> Json:
    """Sleep for an hour beside a child in a session of its own; write the ids of both."""
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    Path(str(inputs["ledger"])).write_text(f"begin {os.getpid()} {child.pid}\n")
    threading.Event().wait(3600)
    return None


@step_function("test.answer")
def answer(inputs: JsonObject, context: StepContext) -> Json:
    """Return or raise what is asked for."""
    match inputs["how"]:
        case "raise":
            raise ValueError("no such \ud800 thing")
        case "exit":
            sys.exit(3)
        case "unjsonable":
            return float("nan")
        case "large":
            return "x" * (17 * 1024 * 1024)
        case "unknown":
            raise NotFoundError("thing", "blue")
        case "print":
            sys.stdout.write("printed\n")
    identity = context.identity.as_json()
    return {"inputs": inputs, "half": "\ud800", "task": identity["task_id"], "dir": context.folder.is_absolute()}


@step_function("test.answer_later")
async def answer_later(inputs: JsonObject, context: StepContext) -> Json:
    await others_run()
    return answer(inputs, context)


@step_function("test.isolated", isolation="process")
def isolated(inputs: JsonObject, context: StepContext) -> Json:
    """Say whether this is a process of its own."""
    return "SOONG_REDIS_URL" not in os.environ


@step_function("test.die")
def die(inputs: JsonObject, context: StepContext) -> Json:
    os.write(2, b"out of memory, perhaps\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def _write(ledger: Path, what: str, context: StepContext) -> None:
    line = f"{what} {context.effect_key.partition('/')[2]} {context.attempt} {os.getpid()} {time.monotonic_ns()}\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


CHILDREN = 3


def _stay(name: str) -> None:
    folder = Path(os.environ["TEST_PIDS"])
    (folder / f"{name}.tmp").write_text(str(os.getpid()))
    (folder / f"{name}.tmp").rename(folder / f"{name}.pid")
    threading.Event().wait(300)
    os._exit(0)


@step_function("family.fork")
def fork(inputs: JsonObject, context: StepContext) -> Json:
    """Leave a child, one that ignores SIGTERM, and one that left its parents and its session; wait when told to."""
    if os.fork() == 0:
        _stay("child")
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _stay("deaf")
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _stay("daemon")
        os._exit(0)
    os.waitpid(middle, 0)
    folder = Path(os.environ["TEST_PIDS"])
    wait_until(lambda: len(list(folder.glob("*.pid"))) == CHILDREN)
    if inputs.get("stays"):
        threading.Event().wait(300)
    return None


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
def die_of(inputs: JsonObject, context: StepContext) -> Json:
    """End the worker process by a signal."""
    os.kill(os.getpid(), getattr(signal, str(inputs["name"])))
    signal.pause()
    return None
