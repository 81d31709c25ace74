"""Step functions that leave processes behind; ``TEST_PIDS`` is the folder where each of these writes its id."""

import os
import signal
import threading
from pathlib import Path

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from tests.waiting import wait_until

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
