"""Step functions for tests, imported by workers through SOONG_FUNCTIONS."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from soong.shared.core.errors import NotFoundError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from tests.waiting import others_run, wait_until
from tests.waiting import until as later

HANGS_S = 600.0


@step_function("test.block")
def block(inputs: JsonObject, context: StepContext) -> Json:
    """Block the thread, as a call into a library without a time limit would."""
    threading.Event().wait(120)
    return None


@step_function("test.keep")
def keep(inputs: JsonObject, context: StepContext) -> Json:
    """Write a file in the run's folder, or only make it."""
    context.run_dir.joinpath("workspace").mkdir(parents=True)
    if inputs.get("writes"):
        context.run_dir.joinpath("workspace", "notes.txt").write_text("kept")
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
    return {"inputs": inputs, "half": "\ud800", "task": identity["task_id"], "dir": context.run_dir.is_absolute()}


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
