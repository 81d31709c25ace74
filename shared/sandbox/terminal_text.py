"""Making the output of programs inert: what a reader sees is what stands there (CMD-01, EVT-05).

A terminal obeys what it is shown: it overwrites lines, retitles windows, fills the clipboard (OSC 52), makes one link
look like another (OSC 8), turns the reading direction around. Neither a person nor a model is shown any of that.
"""

import re
from typing import Final

# An introducer ends the string before it, as on a terminal: looking past it, a text of introducers would be searched to
# its end from each of them.
_CONTROL_STRING: Final = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
_SEQUENCE: Final = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_SHORT: Final = r"\x1b[ -/]*[0-~]"
# A control string that never ends loses only its introducer: nothing behind it may disappear.
_ESCAPES: Final = re.compile(f"{_CONTROL_STRING}|{_SEQUENCE}|{_SHORT}")

_PICTURES: Final = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}
_ESCAPED: Final = (
    *range(0x80, 0xA0),  # C1 controls
    0x00AD,  # soft hyphen
    0x061C,
    *range(0x200B, 0x200C),  # zero-width space; joiners are letters' own business
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # line separators, bidirectional embeddings and overrides
    *range(0x2060, 0x2070),  # invisible operators, isolates
    0xFEFF,
    *range(0xFFF9, 0xFFFC),  # interlinear annotation
    *range(0xE0000, 0xE0080),  # tags: a whole alphabet that nobody sees
)
_VISIBLE: Final = _PICTURES | {code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}" for code in _ESCAPED}
_LONE: Final = re.compile("[\ud800-\udfff]")


def inert_text(text: str) -> str:
    """Return text without anything that a terminal would obey or hide.

    Escape sequences go, carriage returns become line ends (what was overwritten is shown before what overwrote it), and
    other controls, bidirectional and invisible characters are shown as pictures or escapes. Linear in the text.
    """
    if text.isascii() and text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _LONE.sub("\ufffd", _ESCAPES.sub("", lines).translate(_VISIBLE))


def decoded(output: bytes) -> str:
    """Return the output of a program as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return output.decode("utf-8", "surrogateescape")
