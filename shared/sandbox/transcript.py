"""What a running program says, kept within bounds and shown without secrets while it speaks (EVT-05, EXE-09).

The beginning is kept up to a limit and the end in a ring, so a flood costs no memory and its last words are not lost.
Where something was left out, text is cut so that no piece of a secret is at the border.
"""

from collections.abc import Iterator
from typing import Final

from soong.shared.sandbox.command import Stream
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.terminal_text import decoded, inert_text

STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")
TAIL_BYTES: Final = 64 * 1024

_MARGIN_CHARS: Final = 16 * 1024
"""No token or key is longer. What begins before a border ends within as much behind it."""


class OutputTranscript:
    """Collects both streams of one command. ``hear`` takes the pieces as they come; all else may be asked any time.

    ``max_bytes`` bounds the beginnings of both streams together.
    """

    def __init__(self, max_bytes: int, redactor: Redactor) -> None:
        self._room = max_bytes
        self._redactor = redactor
        self._margin = max([_MARGIN_CHARS, *map(len, redactor.values)])
        self._ring = TAIL_BYTES + 4 * self._margin  # a character has up to four bytes
        self._heads: dict[Stream, bytearray] = {stream: bytearray() for stream in STREAMS}
        self._tails: dict[Stream, bytearray] = {stream: bytearray() for stream in STREAMS}
        self.said: dict[Stream, int] = dict.fromkeys(STREAMS, 0)
        """Bytes of each stream, kept or not."""

    def hear(self, stream: Stream, piece: bytes) -> None:
        self.said[stream] += len(piece)
        kept = piece[: self._room]
        self._room -= len(kept)
        self._heads[stream] += kept
        tail = self._tails[stream]
        tail += piece[len(kept) :][-self._ring :]
        if len(tail) > 2 * self._ring:
            del tail[: -self._ring]

    def left_out(self, stream: Stream) -> int:
        """Return how many bytes were not kept."""
        return self.said[stream] - len(self._heads[stream]) - len(self._tails[stream])

    def is_cut(self) -> bool:
        return any(self.left_out(stream) for stream in STREAMS)

    def raw(self, stream: Stream) -> str:
        """Return what was said without secrets, otherwise as it was; bytes that are not text are lone surrogates."""
        head, tail = self._heads[stream], self._tails[stream]
        if not self.left_out(stream):
            return self._redactor.text(decoded(bytes(head + tail)))
        # A stream that is never closed keeps back what could be the beginning of a secret.
        beginning = self._redactor.stream().feed(decoded(bytes(head)))
        end = self._without_broken_start(decoded(bytes(tail)))
        left_out = self.said[stream] - len(head) - len(tail)
        return f"{beginning}\n[… some {left_out} bytes left out …]\n{end}"

    def shown(self, stream: Stream) -> str:
        """Return what was said as text for a reader."""
        return inert_text(self.raw(stream))

    def last_lines(self, stream: Stream, count: int, max_chars: int) -> list[str]:
        """Return the last complete lines, for progress; one that is still being said could be half a secret."""
        head, tail = self._heads[stream], self._tails[stream]
        recent = bytes(tail) if len(tail) >= self._ring else bytes(head[-self._ring :] + tail)
        text = decoded(recent)
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
        text = text[: len(text) - self._unfinished(text)]
        is_whole = len(recent) == self.said[stream]
        clean = self._redactor.text(text) if is_whole else self._without_broken_start(text)
        lines = [line.rstrip() for line in inert_text(clean).split("\n")]
        return [line[:max_chars] for line in lines if line][-count:]

    def _without_broken_start(self, text: str) -> str:
        """Return a text whose beginning is missing, from where no secret that began before it can reach."""
        cut = self._margin
        for start, end in sorted(self._redactor.spans(text)):
            if start < cut < end:
                cut = end
        return self._redactor.text(text[cut:])

    def _unfinished(self, text: str) -> int:
        """Return how many characters at the end are the first lines of a secret of several lines."""
        values = self._redactor.values
        longest = (end for value in values for end in _line_ends(value) if text.endswith(value[:end]))
        return max(longest, default=0)


def _line_ends(value: str) -> Iterator[int]:
    return (place + 1 for place, char in enumerate(value[:-1]) if char == "\n")
