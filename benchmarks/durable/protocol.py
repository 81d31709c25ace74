"""What a peer's program says and hears: a line of JSON for each workload, a line of JSON for what it took.

It hears ``{"shape": "W1", "size": 500}`` and answers with the seconds of each task, ``[0.8]``. Its first line, ``[]``,
says that it is ready. The end of its input ends it.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence


def serve(run: Callable[[str, int], object]) -> None:
    """Run each workload that is asked for: single tasks one after another, anything else once."""
    _say([])
    for line in sys.stdin:
        asked = json.loads(line)
        shape, size = str(asked["shape"]), int(asked["size"])
        seconds = []
        for _ in range(size if shape == "W5" else 1):
            began = time.perf_counter()
            run(shape, size)
            seconds.append(time.perf_counter() - began)
        _say(seconds)


def _say(seconds: Sequence[float]) -> None:
    sys.stdout.write(json.dumps(seconds) + "\n")
    sys.stdout.flush()
