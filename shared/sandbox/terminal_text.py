"""Making the output of programs inert: a reader sees exactly what is there (CMD-01, EVT-05).

A terminal obeys what it is shown: it overwrites lines, retitles windows, fills the clipboard (OSC 52), makes one link
look like another (OSC 8), turns the reading direction around. Neither a person nor a model is shown any of that.
"""

import re
from typing import Final

from soong.shared.core.inert import inert, is_told_apart

# An introducer ends the string before it, as on a terminal: looking past it, a text of introducers would be searched to
# its end from each of them.
_CONTROL_STRING: Final = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
_SEQUENCE: Final = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_SHORT: Final = r"\x1b[ -/]*[0-~]"
# A control string that never ends loses only its introducer: nothing behind it may disappear.
_ESCAPES: Final = re.compile(f"{_CONTROL_STRING}|{_SEQUENCE}|{_SHORT}")

_LONE: Final = re.compile("[\ud800-\udfff]")


def inert_text(text: str) -> str:
    """Return text without anything that a terminal would obey or hide.

    Escape sequences go, carriage returns become line ends (what was overwritten is shown before what overwrote it), and
    what :func:`soong.shared.core.inert.inert` does not leave is spelled. Bytes that are not text show as one
    replacement character. Linear in the text.
    """
    if text.isascii() and is_told_apart(text):
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return inert(_LONE.sub("\ufffd", _ESCAPES.sub("", lines)), keeps_blanks=True)


def decoded(output: bytes) -> str:
    """Return the output of a program as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return output.decode("utf-8", "surrogateescape")
