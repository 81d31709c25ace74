"""What a person is shown of a write before it happens: a diff where there is text to compare, otherwise sizes."""

import difflib
import re
from itertools import takewhile
from typing import Final

from soong.shared.sandbox.key_material import HEAD_BYTES, is_key
from soong.shared.sandbox.paths import Located, is_linked_elsewhere, valid_text
from soong.shared.toolsets.code.atomic_write import ABSENT, State
from soong.shared.toolsets.code.unified_diff import lines_of

MAX_PREVIEW_CHARS: Final = 20_000
MAX_COMPARED_LINES: Final = 2_000
"""Of the lines between the first and the last that changed: comparing costs their square."""
_CONTEXT_LINES: Final = 3
_HUNK_PLACES: Final = re.compile(r"(?<=[-+])\d+")


def preview_of(located: Located, state: State, after: bytes) -> str:
    """Return a unified diff against the existing text, or what can be said in one line.

    The old content of a sensitive file is not shown, nor of one that holds a private key or has another name elsewhere.
    """
    name = valid_text(str(located.resolved))
    if state.precondition == ABSENT:
        return f"new file {name}: {_size(after)}"
    before = state.content
    if before is None:
        return f"replace {name}, a large file, by {_size(after)}"
    is_linked = state.status is not None and is_linked_elsewhere(located.resolved, state.status)
    if located.is_sensitive or is_linked or holds_key_now(state):
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    diff = None if b"\0" in before + after else _diff(_lines(before), _lines(after), name)
    if diff is None:
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    if not diff:
        return f"replace {name} by the same {_size(after)}"
    if len(diff) <= MAX_PREVIEW_CHARS:
        return diff
    return f"{diff[:MAX_PREVIEW_CHARS]}\n[the diff continues; {_size(after)}]"


def holds_key_now(state: State) -> bool:
    """Say whether a private key begins the file that is to be written."""
    return state.content is not None and is_key(state.content[:HEAD_BYTES])


def _lines(content: bytes) -> list[str]:
    return [line.decode("utf-8", "replace") for line in lines_of(content)]


def _diff(old: list[str], new: list[str], name: str) -> str | None:
    """Return a unified diff of the lines that changed; None when they are too many to compare."""
    head = _shared_lines(old, new)
    tail = _shared_lines(old[head:][::-1], new[head:][::-1])
    first, after = max(0, head - _CONTEXT_LINES), max(0, tail - _CONTEXT_LINES)
    old, new = old[first : len(old) - after], new[first : len(new) - after]
    if max(len(old), len(new)) > MAX_COMPARED_LINES:
        return None
    lines = difflib.unified_diff(old, new, name, name, n=_CONTEXT_LINES)
    return "".join(_ended(_moved(line, first)) for line in lines)


def _shared_lines(old: list[str], new: list[str]) -> int:
    """Return how many lines are equal from the beginning on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _moved(line: str, lines: int) -> str:
    """Add to the line numbers of a hunk what was left out above it; other lines begin with no at sign."""
    return _HUNK_PLACES.sub(lambda number: str(int(number[0]) + lines), line) if line.startswith("@@ ") else line


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _size(content: bytes) -> str:
    count = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    return f"{len(content)} bytes, {count} lines"
