"""``python -P -m worker``: started by ``soong worker`` and by the embedded service.

Always with ``-P``: in a project folder with its own ``worker/`` or ``celery.py`` the user's code would be imported
instead of ours.
"""

import argparse
import os
import sys
import threading

from shared.errors import SoongError
from shared.sandbox.privacy import forbid_inspection
from shared.settings import load_settings
from shared.startup import collect_seldom
from worker.python_step import STEP_THREADS
from worker.recycling import hear_signals


def main() -> int:
    collect_seldom()
    hear_signals()
    forbid_inspection()
    parser = argparse.ArgumentParser(prog="soong worker", description="Claim and run steps until told to stop.")
    parser.add_argument("--name", default="", help="node name before the @, as Flower shows it")
    parser.add_argument("--slots", type=int, default=None)
    parser.add_argument("--pools", type=_split, default=None)
    parser.add_argument("--labels", type=_split, default=None)
    parser.add_argument("--functions", type=_split, default=None)
    options = vars(parser.parse_args())
    name = options.pop("name")
    try:
        settings = load_settings(**options)
        from worker.bootstrap import run_worker  # wrong options are told before anything heavy loads

        return run_worker(settings, name)
    except SoongError as error:
        sys.stderr.write(f"soong worker: {error}\n")
        return 2


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def leave(code: int) -> None:
    """End the process, also while a step's function still blocks its thread: its step has been handed back."""
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith(STEP_THREADS) for thread in threading.enumerate()):
        os._exit(code)  # the interpreter would wait for the function, for as long as it pleases
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
