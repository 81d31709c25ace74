"""What a program says, brought to a size that a reader can take."""

from soong.shared.sandbox.terminal_text import inert_text


def in_a_line(text: str, max_chars: int) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(inert_text(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_lines(text: str, max_chars: int) -> str:
    """Return the last full lines of a log without secrets, which best show why a program ended.

    A line that does not fit is left out rather than cut.
    """
    kept: list[str] = []
    room = max_chars
    for line in reversed(text.rstrip().split("\n")):
        shown = line if len(line) < max_chars else f"[a line of {len(line)} characters]"
        room -= len(shown) + 1
        if room < 0:
            kept.append("[…]")
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip()
