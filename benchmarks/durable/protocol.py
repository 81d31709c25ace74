"""What a peer's program says and hears: a line of JSON for each workload, a line of JSON for what it took.

It hears ``{"shape": "W1", "size": 500, "calls": 1}`` and answers with the seconds of each task, ``[0.8]``. Its first
line, ``[]``, says that it is ready. The end of its input ends it.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Asked:
    """One task: a fan or a chain of ``size`` steps, or one step.

    ``calls`` are those of each agent, 0 where steps are functions.
    """

    shape: str
    size: int
    calls: int

    @property
    def is_fan(self) -> bool:
        return self.shape == "W1"

    @property
    def is_single(self) -> bool:
        return self.shape == "W5"

    @property
    def value(self) -> int:
        """Return what a step returns: an agent the number of its calls, a function its input."""
        return self.calls or 1

    @property
    def total(self) -> int:
        """Return what all steps return together; a fan has a root and a join in addition."""
        return (self.size + 2 if self.is_fan else self.size) * self.value


def serve(run: Callable[[Asked], int]) -> None:
    """Run each workload that is asked for: single tasks one after another, anything else once.

    ``run`` returns the sum of what the steps returned, so a task that does less than is asked for ends the program.
    """
    _say([])
    for line in sys.stdin:
        asked = Asked(**json.loads(line))
        tasks = [replace(asked, size=1)] * asked.size if asked.is_single else [asked]
        _say([_seconds(run, task) for task in tasks])


def _seconds(run: Callable[[Asked], int], asked: Asked) -> float:
    began = time.perf_counter()
    total = run(asked)
    took = time.perf_counter() - began
    if total != asked.total:
        raise ValueError(f"{asked} gave {total}, not {asked.total}")
    return took


def _say(seconds: Sequence[float]) -> None:
    sys.stdout.write(json.dumps(seconds) + "\n")
    sys.stdout.flush()
