"""What was made of objects that never change, by which object it was: for stored documents that are kept parsed."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")

SIZE: Final = 256


class IdentityCache(Generic[S, T]):
    """Makes a value of an object once, as long as the object is among the last ``size``. Used by one thread.

    The objects must not change. An equal one that is not the same is read again: comparing would take longer. A
    failure to make a value is not kept.
    """

    def __init__(self, make: Callable[[S], T], *, size: int = SIZE) -> None:
        self._make = make
        self._size = size
        # The entry holds the object itself, so that its id cannot be another's.
        self._kept: OrderedDict[int, tuple[S, T]] = OrderedDict()

    def __call__(self, source: S) -> T:
        """Return what was made of the object, or make it. Raises: what making it raises."""
        entry = self._kept.get(id(source))
        if entry is not None:
            return entry[1]
        value = self._make(source)
        if len(self._kept) >= self._size:
            self._kept.popitem(last=False)
        self._kept[id(source)] = source, value
        return value
