"""How every process of ours begins."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New objects that are looked through for cycles at once; Python's own 700 suit a program without modules."""


def tune_gc() -> None:
    """Look for cyclic garbage seldom. Call it first.

    Importing makes some hundred thousand objects of which none is garbage: looking through them again and again is a
    fifth of the start of a worker or a command.
    """
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
