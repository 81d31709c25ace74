"""``python -P -m soong.worker``: started by ``soong worker`` and by the embedded service.

Always with ``-P``: in a project folder with its own ``worker/`` or ``celery.py`` the user's code would be imported
instead of ours.
"""

import argparse
import faulthandler
import os
import sys
import threading

from soong.shared.core.errors import SoongError, UsageError
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import require_text
from soong.shared.core.settings import load_settings
from soong.shared.core.startup import begin, guard_streams, leave_gc
from soong.shared.core.step_work import STEP_THREADS
from soong.shared.sandbox.family import forbid_inspection, mark_family
from soong.shared.sandbox.subreaper import end_own_descendants
from soong.worker.lifetime import StatusPipe

EXIT_FAILED = 1
EXIT_USAGE = 2
"""A setting or a module is wrong: a restart with the same ones ends the same way."""


def main() -> int:
    status = StatusPipe()
    faulthandler.enable(2)  # where a process is that its subreaper ends, or that a C extension crashes
    guard_streams()
    begin()
    end_own_descendants()  # what steps have left behind in a former life of this process
    forbid_inspection()
    mark_family()
    parser = argparse.ArgumentParser(prog="soong worker", description="Claim and run steps until stopped.")
    parser.add_argument("--name", default="", help="node name before the @, as Flower shows it")
    parser.add_argument("--ends-when-idle", action="store_true", help="end after SOONG_WORKER_IDLE_S without a step")
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--pools", type=_split, default=None)
    parser.add_argument("--labels", type=_split, default=None)
    parser.add_argument("--functions", type=_split, default=None)
    options = vars(parser.parse_args())
    name, ends_when_idle = options.pop("name"), options.pop("ends_when_idle")
    try:
        require_text("--name", name)
        settings = load_settings(**options)
        from soong.worker.bootstrap import run_worker  # wrong options are told before anything heavy loads

        return run_worker(settings, name, status, ends_when_idle=ends_when_idle)
    except SoongError as error:
        status.failed(str(error))
        sys.stderr.write(f"soong worker: {error}\n")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except Exception as error:
        status.failed(words_of(error))
        raise


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def leave(code: int) -> None:
    """End the process, also while a step's function still blocks its thread: its step has been handed back."""
    sys.stdout.flush()
    sys.stderr.flush()
    leave_gc()
    if any(thread.name.startswith(STEP_THREADS) for thread in threading.enumerate()):
        os._exit(code)  # the interpreter would wait for the function, for as long as it pleases
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
