"""How every process of ours begins and ends, and how one that stays goes over to its work."""

import gc
import sys
from collections.abc import Sequence
from typing import Final

STARTING_OBJECTS: Final = 700_000
"""New objects that are not searched for cycles at all: more than the modules of any of our processes make.

A service makes 220,000, and with the libraries of three providers' models 610,000.
"""

YOUNG_OBJECTS: Final = (50_000, 20, 20)
"""As ``SETTLED``, of a process that has made more than that; Python's own 700 suit a program without modules."""

SETTLED: Final = (10_000, 1, 4)
"""New objects, and searches of the young and of the middle-aged, before those that are older are searched.

A few runs under way have some thousand objects, which are freed when they end: a search before that finds nothing.
"""

OBJECTS_OF_A_RUN: Final = 250
"""New objects that each run under way adds to those of ``SETTLED``: what an agent holds while it waits for a call."""


class _SearchLimits:
    """What the thresholds of this process depend on."""

    is_settled = False
    runs = 0


_limits = _SearchLimits()


def begin() -> None:
    """Prepare a process for importing much. Call it first."""
    tune_gc()
    if not any(isinstance(finder, _WithoutMetrics) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WithoutMetrics())


class _WithoutMetrics:
    """Hides OpenTelemetry's metrics from redis-py, which imports them wherever they are installed, used or not.

    That is a third of the time in which redis-py is imported, and some MiB of each process. Other code that imports
    them, such as a user's function, gets them.
    """

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> None:
        """Leave a module to the other finders. Raises: ModuleNotFoundError where redis-py is to do without it."""
        if name not in _METRICS:
            return
        frame = sys._getframe(1)  # noqa: SLF001  # no import says who asks for it
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("importlib."):
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith("redis.observability."):
            raise ModuleNotFoundError(f"redis-py does without {name} here", name=name)


_METRICS: Final = frozenset({"opentelemetry.metrics", "opentelemetry.sdk.metrics"})


def tune_gc() -> None:
    """Search for cyclic garbage only when much has been made.

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
    """Search for cyclic garbage often again, but not in what there is now, and give back unused memory.

    Call it when all is imported, and later after each import of much.

    A process that stays leaves cycles with every run (exceptions, tasks, contexts). With the thresholds of its start it
    would keep those of thousands of runs, and search all its modules to find them.
    """
    if _search_more in gc.callbacks:
        gc.callbacks.remove(_search_more)
    _return_memory()
    gc.freeze()
    _limits.is_settled = True
    expect_runs(_limits.runs)


def expect_runs(count: int) -> None:
    """Say how many runs are under way in this process: the more there are, the later a search begins.

    Without it, a process that begins 500 agents at once would search what they hold again and again, and find nothing
    of it. When they have ended, garbage is searched for as often as before.
    """
    _limits.runs = count
    if _limits.is_settled:
        new, *older = SETTLED
        gc.set_threshold(new + count * OBJECTS_OF_A_RUN, *older)


def _return_memory() -> None:
    """Give back what the C library keeps of what a start has freed: an MiB a process. Others than glibc keep less."""
    import ctypes  # commands, which do not stay, import this module as well

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def leave_gc() -> None:
    """Search for cyclic garbage no more. Call it last.

    The interpreter would search everything when it ends, more than once: a fifth of a short command.
    """
    gc.disable()
    gc.freeze()
