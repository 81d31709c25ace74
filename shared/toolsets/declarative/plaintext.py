"""Foreign text as data: without what a terminal would obey, and cut where no secret is cut in two."""

import re
from typing import Final

from shared.sandbox.redact import Redactor

_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC, DCS and their like, with their text: titles, clipboard, links
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PATTERNS: Final = Redactor()


def without_escapes(text: str) -> str:
    """Return text without terminal escapes and control characters; a carriage return ends a line."""
    if text.isprintable():
        return text
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub("", plain)


def in_a_line(text: str, max_chars: int) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(without_escapes(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_lines(raw: bytes, max_chars: int, *, is_cut: bool) -> str:
    """Return the last whole lines of a log, which say best why a program ended; ``is_cut``: raw breaks off in a line.

    Tokens and keys that span lines are taken out before, while they are whole; a line that does not fit is left out
    rather than cut.
    """
    text = raw.decode("utf-8", "replace")
    if is_cut:
        text = text[: text.rfind("\n") + 1]
    lines = _PATTERNS.text(without_escapes(text)).rstrip().split("\n")
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
