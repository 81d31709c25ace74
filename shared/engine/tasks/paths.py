"""Places in a document: how a part of it is named to people."""

from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a document to one of its parts."""


def show(path: Path) -> str:
    """Return a path as people write it: ``steps[2].depends_on[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
