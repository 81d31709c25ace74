r"""Exact replacements in a file's bytes, in order, all or none (FS-05).

Texts are compared byte for byte as UTF-8, so a file in another encoding keeps every byte that is not replaced. A text
with a carriage return is taken literally. One without matches lines whatever ends them, and what is put in ends its
lines like the place it goes to: a call without ``\r\n`` neither misses nor spoils such a file.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.tools.result import ErrorType, ToolError

MAX_MIXED_PLACES: Final = 10_000
"""Replacements in one file of mixed line endings, where each place is looked at on its own."""
_MAX_SHOWN_PLACES: Final = 20
_CRLF, _LF = b"\r\n", b"\n"


class Edit(Value):
    """Replace ``old`` by ``new``. An empty ``old`` means a file that does not exist yet."""

    old: bytes
    new: bytes


class Edited(Value):
    """The new content, and how many places were replaced."""

    content: bytes
    replacements: int


def apply_edits(content: bytes, edits: Sequence[Edit], *, replaces_all: bool, max_bytes: int) -> Edited:
    """Apply the edits, each to the result of the one before.
    Raises: ToolError, ``text_not_found``, ``ambiguous_edit``, or ``limit_exceeded`` when the result grows too large.
    """
    current, total = content, 0
    for number, edit in enumerate(edits, 1):
        mixed, old, new = _spelled(current, edit)
        text = current if mixed is None else mixed.text
        first = text.find(old)
        if first < 0:
            raise _not_found(content, current, edit, number, len(edits))
        if not replaces_all and text.find(old, first + 1) >= 0:  # overlapping places are as unclear as separate ones
            raise _ambiguous(text, old, number, len(edits))
        count = text.count(old) if replaces_all else 1
        if mixed is not None:
            current = mixed.replaced(edit, count, max_bytes)
        else:
            _check_size(len(current) + count * (len(new) - len(old)), max_bytes)
            current = current.replace(old, new)
        total += count
    return Edited(current, total)


def shared_prefix(first: bytes, second: bytes) -> int:
    """Return how many bytes two texts have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _spelled(content: bytes, edit: Edit) -> "tuple[_MixedLines | None, bytes, bytes]":
    """Return the texts of an edit with the line endings of the content; for mixed ones, the content without them."""
    crlf = content.count(_CRLF)
    if not crlf or b"\r" in edit.old + edit.new or _LF not in edit.old + edit.new:
        return None, edit.old, edit.new
    if crlf < content.count(_LF):
        return _MixedLines.of(content), edit.old, edit.new
    return None, edit.old.replace(_LF, _CRLF), edit.new.replace(_LF, _CRLF)


class _MixedLines(Value):
    r"""A file in which some lines end in ``\r\n`` and some in ``\n``.

    ``text`` is the content with every ending as ``\n``; ``crlf`` are the places in it, ascending, of those that were
    ``\r\n``. Lines outside an edit keep their ending.
    """

    content: bytes
    text: bytes
    crlf: tuple[int, ...]

    @classmethod
    def of(cls, content: bytes) -> "_MixedLines":
        places: list[int] = []
        at = content.find(_CRLF)
        while at >= 0:
            places.append(at - len(places))
            at = content.find(_CRLF, at + 2)
        return cls(content, content.replace(_CRLF, _LF), tuple(places))

    def replaced(self, edit: Edit, count: int, max_bytes: int) -> bytes:
        if count > MAX_MIXED_PLACES:
            problem = f"{count} places in a file of mixed line endings; at most {MAX_MIXED_PLACES} are replaced at once"
            raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="make old longer, so that it matches fewer places")
        _check_size(len(self.content) + count * (edit.new.count(_LF) + len(edit.new) - len(edit.old)), max_bytes)
        head = shared_prefix(edit.old, edit.new)
        tail = shared_prefix(edit.old[head:][::-1], edit.new[head:][::-1])
        middle = edit.new[head : len(edit.new) - tail]
        pieces: list[bytes] = []
        done, found = 0, self.text.find(edit.old)
        while found >= 0:
            start, end = found + head, found + len(edit.old) - tail
            pieces += (self.content[done : self._original(start)], middle.replace(_LF, self._ending_at(start)))
            done, found = self._original(end), self.text.find(edit.old, found + len(edit.old))
        return b"".join((*pieces, self.content[done:]))

    def _original(self, position: int) -> int:
        """Return where a place of ``text`` is in the content; that of a newline is where its ending begins."""
        return position + bisect_left(self.crlf, position)

    def _ending_at(self, position: int) -> bytes:
        """Return how the line of a place ends, or the one before it when it is the last and has no ending."""
        newline = self.text.find(_LF, position)
        if newline < 0:
            newline = self.text.rfind(_LF, 0, position)
        index = bisect_left(self.crlf, newline)
        return _CRLF if index < len(self.crlf) and self.crlf[index] == newline else _LF


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        problem = f"the edited file would have {size} bytes; at most {max_bytes} are written"
        raise ToolError(ErrorType.LIMIT_EXCEEDED, problem, hint="edit fewer places, or write several files")


def _not_found(original: bytes, current: bytes, edit: Edit, number: int, total: int) -> ToolError:
    details: dict[str, Json] = {"edit": number}
    near = _near(current, edit.old)
    if number > 1 and edit.old in original:
        hint = "an earlier edit of this call has changed that text: make one edit of the two"
    elif not edit.old.isascii() and not is_utf8(current):
        hint = "the file is not UTF-8: quote ASCII text only, which is exact in it, or convert the file first (iconv)"
    elif near:
        hint = f"line {near} has the same words with other whitespace; read it again and copy it exactly"
        details["near_line"] = near
    else:
        hint = "read the file again and copy the text exactly, without line numbers"
    problem = f"the old text{_which(number, total)} is not in the file"
    return ToolError(ErrorType.TEXT_NOT_FOUND, problem, hint=hint, details=details)


def _ambiguous(text: bytes, old: bytes, number: int, total: int) -> ToolError:
    lines: list[int] = []  # of the first places, overlapping ones among them
    at, line, position = 0, 1, text.find(old)
    while position >= 0 and len(lines) < _MAX_SHOWN_PLACES:
        line += text.count(_LF, at, position)
        lines.append(line)
        at, position = position, text.find(old, position + 1)
    count = len(lines) if position < 0 else max(text.count(old), len(lines) + 1)
    listed = ", ".join(map(str, lines)) + (" and more" if count > len(lines) else "")
    problem = f"the old text{_which(number, total)} occurs at {count} places, beginning on lines {listed}"
    hint = "add lines around it until it is the only one, or pass replace_all=true"
    details: dict[str, Json] = {"edit": number, "count": count, "lines": list(lines)}
    return ToolError(ErrorType.AMBIGUOUS_EDIT, problem, hint=hint, details=details)


def _which(number: int, total: int) -> str:
    return f" of edit {number}" if total > 1 else ""


def _near(content: bytes, old: bytes) -> int:
    """Return the line, from 1, where the text is but for whitespace at line ends and within lines; 0 for nowhere. One
    pass over the file: the words of each line are joined again and searched as one text.
    """
    wanted = b"\n".join(b" ".join(line.split()) for line in old.strip().split(_LF))
    if not wanted:
        return 0
    lines = [b" ".join(line.split()) for line in content.split(_LF)]
    text = b"\n".join(lines)
    found = text.find(wanted)
    return 0 if found < 0 else text.count(_LF, 0, found) + 1
