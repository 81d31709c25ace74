"""Words of a command as one line that a person reads: different words look different."""

import shlex
from collections.abc import Sequence
from typing import Final

from soong.shared.core.inert import is_seen, is_told_apart

_ESCAPES: Final = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def quoted(words: Sequence[str]) -> str:
    """Return words as one line: as a shell would read them, with everything invisible written out."""
    return " ".join(shlex.quote(word) if is_told_apart(word) else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    return "".join(_ESCAPES.get(char) or (char if is_seen(char) else f"\\U{ord(char):08x}") for char in word)
