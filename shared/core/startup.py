"""How every process of ours begins, and how one that stays goes over to its work."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New objects that are searched for cycles at once; Python's own 700 suit a program without modules."""

SETTLED: Final = (2_000, 5, 5)
"""New objects, and searches of the young and of the middle-aged, before those that are older are searched."""


def tune_gc() -> None:
    """Search for cyclic garbage seldom. Call it first.

    Importing makes some hundred thousand objects of which none is garbage: looking through them again and again is a
    fifth of the start of a worker or a command.
    """
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def settle_gc() -> None:
    """Search for cyclic garbage often again, but not in what there is now. Call it when all is imported, and later
    after each import of much.

    A process that stays leaves cycles with every run (exceptions, tasks, contexts). With the thresholds of its start it
    would keep those of thousands of runs, and search all its modules to find them.
    """
    gc.freeze()
    gc.set_threshold(*SETTLED)
