"""Text that people read while it is being written, without secrets (EVT-05).

A stored text is redacted when it is complete. One that is still growing must not show the beginning of a secret whose
end is yet to come: what could be one is held back until it cannot be.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from soong.shared.sandbox.redact import Redactor, StreamRedactor

_WORD: Final = re.compile(r"[!-~]*")
"""The shapes of tokens are of printable ASCII without spaces: an unfinished one is within the last such word."""
_ADDRESS: Final = re.compile(r"://\S{0,400}\Z")
"""An address may have a password of any letters before its host."""
_ADDRESS_CHARS: Final = 500


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
