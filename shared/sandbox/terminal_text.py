"""Making the output of programs inert: a reader sees exactly what is there (CMD-01, EVT-05).

A terminal obeys what it is shown: it overwrites lines, retitles windows, fills the clipboard (OSC 52), makes one link
look like another (OSC 8), turns the reading direction around. Neither a person nor a model is shown any of that.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from soong.shared.core.texts import inert, is_told_apart
from soong.shared.sandbox.redact import Redactor, StreamRedactor

# An introducer ends the string before it, as on a terminal: looking past it, a text of introducers would be searched to
# its end from each of them.
_CONTROL_STRING: Final = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
_SEQUENCE: Final = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_SHORT: Final = r"\x1b[ -/]*[0-~]"
# A control string that never ends loses only its introducer: nothing behind it may disappear.
_ESCAPES: Final = re.compile(f"{_CONTROL_STRING}|{_SEQUENCE}|{_SHORT}")

_LONE: Final = re.compile("[\ud800-\udfff]")

_WORD: Final = re.compile(r"[!-~]*")
"""The shapes of tokens are of printable ASCII without spaces: an unfinished one is within the last such word."""
_ADDRESS: Final = re.compile(r"://\S{0,400}\Z")
"""An address may have a password of any letters before its host."""
_ADDRESS_CHARS: Final = 500


def inert_text(text: str) -> str:
    """Return text without anything that a terminal would obey or hide.

    Escape sequences go, carriage returns become line ends (what was overwritten is shown before what overwrote it), and
    what :func:`soong.shared.core.texts.inert` does not leave is spelled. Bytes that are not text show as one
    replacement character. Linear in the text.
    """
    if text.isascii() and is_told_apart(text):
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return inert(_LONE.sub("\ufffd", _ESCAPES.sub("", lines)), keeps_blanks=True)


def decoded(output: bytes) -> str:
    """Return the output of a program as text; bytes that are not UTF-8 are kept as lone surrogates."""
    return output.decode("utf-8", "surrogateescape")


@dataclass(slots=True)
class LiveText:
    """One growing text. :meth:`shown` may change what it showed before, but never shows more of a secret."""

    redactor: Redactor
    _stream: StreamRedactor = field(init=False)
    _settled: str = ""
    _values: tuple[str, ...] = field(init=False)
    """Secret values that are not one word of ASCII."""

    def __post_init__(self) -> None:
        self._stream = self.redactor.stream()
        self._values = tuple(value for value in self.redactor.values if not _WORD.fullmatch(value))

    def feed(self, piece: str) -> None:
        self._settled += self._stream.feed(piece)

    def shown(self, *, is_complete: bool = False) -> str:
        """Return what can be shown of it; all of it when nothing more comes."""
        pending = self._stream.pending
        cut = len(pending) if is_complete else self._cut(pending)
        return self._settled + self.redactor.text(pending[:cut])

    def _cut(self, text: str) -> int:
        last_word = _WORD.match(text[::-1])
        cut = len(text) - (0 if last_word is None else last_word.end())
        tail = max(0, len(text) - _ADDRESS_CHARS)
        if (address := _ADDRESS.search(text, tail)) is not None:
            cut = min(cut, address.start())
        # A value that begins before the cut must end before it, too, also one that has not ended yet.
        for value in self._values:
            start = text.find(value[0], max(0, cut - len(value) + 1))
            while 0 <= start < cut and not value.startswith(text[start : start + len(value)]):
                start = text.find(value[0], start + 1)
            cut = start if 0 <= start < cut else cut
        return cut
