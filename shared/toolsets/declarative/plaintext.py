"""What a program says, brought to a size: cut where no secret is cut in two, inert for readers."""

from typing import Final

from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.terminal_text import inert_text

_PATTERNS: Final = Redactor()


def in_a_line(text: str, max_chars: int) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(inert_text(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_lines(raw: bytes, max_chars: int, *, is_cut: bool) -> str:
    """Return the last full lines of a log, which best show why a program ended; ``is_cut``: raw breaks off in a line.

    Tokens and keys that span lines are taken out before, while they are complete; a line that does not fit is left out
    rather than cut.
    """
    text = raw.decode("utf-8", "replace")
    if is_cut:
        text = text[: text.rfind("\n") + 1]
    lines = _PATTERNS.text(inert_text(text)).rstrip().split("\n")
    kept: list[str] = []
    room = max_chars
    for line in reversed(lines):
        shown = line if len(line) < max_chars else f"[a line of {len(line)} characters]"
        room -= len(shown) + 1
        if room < 0:
            kept.append("[…]")
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip()
