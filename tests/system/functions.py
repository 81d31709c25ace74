"""Step functions for tests, imported by workers through SOONG_FUNCTIONS."""

import asyncio
import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function


@step_function("test.block")
def block(inputs: JsonObject, context: StepContext) -> Json:
    """Block the thread, as a call into a library without a time limit would."""
    time.sleep(120)
    return None


@step_function("test.keep")
def keep(inputs: JsonObject, context: StepContext) -> Json:
    """Write a file in the run's folder, or only make it."""
    context.run_dir.joinpath("workspace").mkdir(parents=True)
    if inputs.get("writes"):
        context.run_dir.joinpath("workspace", "notes.txt").write_text("kept")
    return None


@step_function("test.kill_worker")
def kill_worker(inputs: JsonObject, context: StepContext) -> Json:
    """End the worker process in the hardest way, as a native crash or the kernel's memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
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
    until = inputs.get("until")
    while until and not Path(str(until)).exists():
        time.sleep(0.02)
    _write(ledger, "end", context)
    return context.attempt


@step_function("test.note_deaf")
async def note_deaf(inputs: JsonObject, context: StepContext) -> Json:
    """Do the same in a coroutine that takes no notice of its cancellation."""
    ledger, until = Path(str(inputs["ledger"])), Path(str(inputs["until"]))
    _write(ledger, "begin", context)
    while not until.exists():  # noqa: ASYNC240  # a look of microseconds
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)
    _write(ledger, "end", context)
    return context.attempt


def _write(ledger: Path, what: str, context: StepContext) -> None:
    line = f"{what} {context.effect_key.partition('/')[2]} {context.attempt} {os.getpid()} {time.monotonic_ns()}\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)
