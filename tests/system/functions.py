"""Step functions for tests, imported by workers through SOONG_FUNCTIONS."""

import ctypes
import os
import signal
import time

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
