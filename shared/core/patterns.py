r"""Regular expressions that somebody else wrote: matched in time linear in the text, whatever the pattern.

RE2 does not backtrack, and holds no lock of the interpreter while it searches. It has no backreferences and no
lookaround, which cannot be matched in linear time; ``\d``, ``\w``, ``\s`` and ``\b`` are those of ASCII.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from soong.shared.core.errors import InvalidPatternError
from soong.shared.core.value import Value

MAX_PATTERN_CHARS: Final = 1_000
_MAX_PROGRAM_BYTES: Final = 1024 * 1024
"""The size of a compiled pattern with its caches; RE2's own limit is 8 MiB."""


def search(pattern: str, text: str) -> bool:
    """Say whether a pattern matches anywhere in a text. Raises: InvalidPatternError."""
    # As bytes: a text may hold half a surrogate pair, and nobody asks where the match is.
    return _compiled(pattern).search(text.encode("utf-8", "surrogatepass")) is not None


class PatternMatch(NamedTuple):
    """The place of a match, in characters."""

    start: int
    end: int

    def span(self) -> tuple[int, int]:
        return self.start, self.end


class LinearPattern(Value):
    """A pattern of our own over foreign text that ``re`` would search in quadratic time; used as one of ``re``."""

    pattern: str

    def finditer(self, text: str) -> Iterator[PatternMatch]:
        data = text.encode("utf-8", "surrogatepass")
        is_ascii = len(data) == len(text)
        at = chars = 0
        for match in _compiled(self.pattern).finditer(data):
            start, end = match.span()
            if is_ascii:
                yield PatternMatch(start, end)
                continue
            first = chars + len(data[at:start].decode("utf-8", "surrogatepass"))
            at, chars = end, first + len(data[start:end].decode("utf-8", "surrogatepass"))
            yield PatternMatch(first, chars)

    def sub(self, replacement: str, text: str) -> str:
        pieces, at = [], 0
        for found in self.finditer(text):
            pieces += [text[at : found.start], replacement]
            at = found.end
        return "".join((*pieces, text[at:])) if pieces else text


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    import re2  # 15 ms that `soong --help` does not pay

    if len(pattern) > MAX_PATTERN_CHARS:
        words = f"it has {len(pattern):,} characters; a regular expression has at most {MAX_PATTERN_CHARS:,}"
        raise InvalidPatternError(words)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        return re2.compile(pattern.encode(), options)
    except UnicodeEncodeError:
        raise InvalidPatternError("it holds half a surrogate pair, which matches nothing") from None
    except re2.error as error:
        raise InvalidPatternError(f"it is not a regular expression of RE2: {_words(error)}") from error


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if text.startswith("invalid perl operator: (?"):
        return f"{text} (lookaround and backreferences are not supported: they take more than linear time)"
    if text.startswith("invalid escape sequence: \\") and text[-1:].isdigit():
        return f"{text} (backreferences are not supported: they take more than linear time)"
    return text
