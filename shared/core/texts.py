"""Text from outside that databases, files and terminals all take: Unicode without NUL.

PostgreSQL stores no NUL, and neither database half a character (a lone surrogate: Python's stand-in for a byte that is
not UTF-8, or half of a JSON escape). Each entrance refuses both with the words of this module.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from soong.shared.core.errors import UsageError

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a value to one of its parts."""

EXPECTED: Final = "Unicode text without NUL"
MOST_FAULTS: Final = 20
"""Faults of one document that an error names at once."""

_PARTS: Final = (list, tuple, Mapping)
_SHOWN_CHARS: Final = 30
"""Characters of a text that are shown around a fault."""


def dotted(path: Iterable[str | int]) -> str:
    """Return a place as people write it: ``steps[2].depends_on[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def fault(text: str) -> str:
    """Return what is wrong with a text, after the place in it, escaped; empty when nothing is."""
    at = text.find("\0")
    if at >= 0:
        return f"{_shown(text, at)} holds a NUL character"
    if text.isascii():
        return ""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"{_shown(text, error.start)} holds a lone surrogate, which is not Unicode"
    return ""


def faults(value: object) -> Iterator[tuple[Path, str]]:
    """Yield the place and the fault of each text in a JSON value, its keys among them, in document order.

    A faulty key is named at the place of its mapping, and its value is passed over. A part that is there several times,
    or in itself, is looked at once.
    """
    waiting: list[tuple[Path, object]] = [((), value)]
    seen: set[int] = set()
    while waiting:
        place, item = waiting.pop()
        if isinstance(item, str):
            if found := fault(item):
                yield place, found
        elif isinstance(item, _PARTS) and id(item) not in seen:
            seen.add(id(item))
            deeper: list[tuple[Path, object]] = []
            for key, part in item.items() if isinstance(item, Mapping) else enumerate(item):
                if isinstance(key, str) and (found := fault(key)):
                    yield place, f"the key {found}"
                elif fault(part) if isinstance(part, str) else isinstance(part, _PARTS):
                    deeper.append(((*place, key), part))
            waiting.extend(reversed(deeper))


def require_text(what: str, *texts: str) -> None:
    """Raises: UsageError when a text is not storable; ``what`` names it."""
    for text in texts:
        if found := fault(text):
            raise UsageError(f"{what} {found}; expected {EXPECTED}")


def _shown(text: str, at: int) -> str:
    start, end = max(0, at - _SHOWN_CHARS), at + _SHOWN_CHARS
    return f"{'…' if start else ''}{text[start:end]!a}{'…' if end < len(text) else ''}"
