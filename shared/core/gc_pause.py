"""A pause of Python's cycle collector, while many objects are made that reference counting frees again."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MANY: Final = 100
"""Items, steps for example, from which on a pause is worth its microseconds."""

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextmanager
def gc_pause(items: int) -> Iterator[None]:
    """Search for no cycles inside the block, in any thread, when it makes objects for many ``items``.

    The collector takes a burst of new objects for a leak: it walks through them again and again, and with them through
    everything else that a program holds, which for a plan of 500 steps is a sixth of what its client does. Here they
    are freed before it has seen them. Keep the block short: cycles that others leave meanwhile wait for its end.
    """
    if items < MANY:
        yield
        return
    _pause()
    try:
        yield
    finally:
        _resume()


def _pause() -> None:
    global _pauses, _was_enabled  # noqa: PLW0603  # the collector is one for the process, and so are its pauses
    with _lock:
        if not _pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1


def _resume() -> None:
    global _pauses  # noqa: PLW0603
    with _lock:
        _pauses -= 1
        if not _pauses and _was_enabled:
            gc.enable()
