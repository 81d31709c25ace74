"""Ages and sizes as people write them: ``30d``, ``10GiB``."""

import re
from typing import Final

from soong.shared.core.errors import UsageError

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
