"""``python -P -m worker``: started by ``soong worker`` and by the embedded service.

Always with ``-P``: in a project folder with its own ``worker/`` or ``celery.py`` the user's code would be imported
instead of ours.
"""

import argparse
import sys

from shared.errors import SoongError
from shared.settings import load_settings


def main() -> int:
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


if __name__ == "__main__":
    sys.exit(main())
