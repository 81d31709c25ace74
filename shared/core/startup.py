"""The garbage collector of our processes: while they start, when they stay, at their end."""

import gc
from typing import Final

STARTING_OBJECTS: Final = 700_000
"""New objects that are not searched for cycles at all: more than the modules of any of our processes make.

A service makes 220,000, and with the libraries of three providers' models 610,000.
"""

YOUNG_OBJECTS: Final = (50_000, 20, 20)
"""As ``SETTLED``, of a process that has made more than that; Python's own 700 suit a program without modules."""

SETTLED: Final = (50_000, 1, 4)
"""New objects, and searches of the young and of the middle-aged, before those that are older are searched.

200 agents that wait for a call hold that many, which are freed when they end: a search before that finds nothing.
"""


def begin() -> None:
    """Search for cyclic garbage only when much has been made. Call it before importing much.

    Importing makes hundreds of thousands of objects of which nearly none is garbage: looking through them is a sixth of
    the start of a worker or a command, and most commands end before there is anything to find.
    """
    gc.set_threshold(STARTING_OBJECTS, 20, 20)
    if _search_more not in gc.callbacks:
        gc.callbacks.append(_search_more)


def _search_more(phase: str, _facts: object) -> None:
    """After the first search, search often enough for a command that stays."""
    if phase == "stop":
        gc.callbacks.remove(_search_more)
        gc.set_threshold(*YOUNG_OBJECTS)


def settle_gc() -> None:
    """Search for cyclic garbage often again, but not in what there is now.

    Call it when all is imported, and later after each import of much.

    A process that stays leaves cycles with every run (exceptions, tasks, contexts). With the thresholds of its start it
    would keep those of thousands of runs, and search all its modules to find them.
    """
    if _search_more in gc.callbacks:
        gc.callbacks.remove(_search_more)
    gc.freeze()
    gc.set_threshold(*SETTLED)


def leave_gc() -> None:
    """Search for cyclic garbage no more. Call it last.

    The interpreter would search everything when it ends, more than once: a fifth of a short command.
    """
    gc.disable()
    gc.freeze()
