"""What a person is shown of a write before it happens: a diff where there is text to compare, otherwise sizes."""

import difflib
from typing import Final

from shared.sandbox.links import is_linked_elsewhere
from shared.sandbox.paths import Located, valid_text
from shared.toolsets.code.replace import ABSENT, State

MAX_PREVIEW_CHARS: Final = 20_000
MAX_COMPARED_LINES: Final = 4_000


def preview_of(located: Located, state: State, after: bytes) -> str:
    """Return a unified diff against the existing text, or what can be said in one line.

    The old content of a sensitive file is not shown, nor that of a file which has another name elsewhere.
    """
    name = valid_text(str(located.resolved))
    if state.precondition == ABSENT:
        return f"new file {name}: {_size(after)}"
    before = state.content
    if before is None:
        return f"replace {name}, a large file, by {_size(after)}"
    is_linked = state.status is not None and is_linked_elsewhere(located.resolved, state.status)
    if located.is_sensitive or is_linked:
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    old, new = _lines(before), _lines(after)
    if old is None or new is None or max(len(old), len(new)) > MAX_COMPARED_LINES:
        return f"replace {name}: {len(before)} bytes by {_size(after)}"
    diff = "".join(_ended(line) for line in difflib.unified_diff(old, new, name, name, n=3))
    if not diff:
        return f"replace {name} by the same {_size(after)}"
    return diff if len(diff) <= MAX_PREVIEW_CHARS else f"{diff[:MAX_PREVIEW_CHARS]}\n[the diff goes on; {_size(after)}]"


def _lines(content: bytes) -> list[str] | None:
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8").splitlines(keepends=True)
    except UnicodeDecodeError:
        return None


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _size(content: bytes) -> str:
    count = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    return f"{len(content)} bytes, {count} lines"
