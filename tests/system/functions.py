"""Step functions for tests, imported by workers through SOONG_FUNCTIONS."""

import os
import signal

from shared.jsontext import Json, JsonObject
from shared.tasks.functions import StepContext, step_function


@step_function("test.kill_worker")
def kill_worker(inputs: JsonObject, context: StepContext) -> Json:
    """End the worker process in the hardest way, as a native crash or the kernel's memory killer would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return None
