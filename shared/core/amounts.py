"""Amounts as people write them: ``30d``, ``10GiB``, and ``1-4`` worker processes."""

import re
from typing import Final

from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value

MOST: Final = 64
_FORM: Final = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")


class WorkerRange(Value):
    """``least`` workers always, ``most`` when there is work for them. Both are the same for a fixed number."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}-{self.most}"

    @classmethod
    def of(cls, value: object) -> "WorkerRange":
        """Read ``4`` or ``1-4``. Raises: ValueError."""
        if isinstance(value, WorkerRange):
            return value
        found = _FORM.fullmatch(str(value).strip())
        numbers = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= numbers[0] <= numbers[1] <= MOST:
            raise ValueError(f"expected a number from 1 to {MOST}, or a range of such numbers: 1-4")
        return cls(*numbers)


_AGES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_AGE: Final = re.compile(r"(\d+)([smhdw])\Z")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)\Z")


def read_age(text: str, name: str = "--older-than") -> int:
    """Return an age in seconds; ``name`` is where it was given. Raises: UsageError."""
    found = _AGE.match(text)
    if found is None:
        raise UsageError(f"{name} {text!r} is not an age; write a number with s, m, h, d or w, such as 30d")
    return int(found[1]) * _AGES[found[2]]


def read_size(text: str, name: str = "--keep") -> int:
    """Return a size in bytes; ``name`` is where it was given. Raises: UsageError."""
    found = _SIZE.match(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{name} {text!r} is not a size; write a number with B, KiB, MiB, GiB or TiB, such as 10GiB")
    return int(float(found[1]) * _SIZES[found[2]])


def bytes_text(number: int) -> str:
    """Return a size in the largest unit that leaves at least 1."""
    for unit, size in reversed(_SIZES.items()):
        if number >= size and unit != "B":
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
