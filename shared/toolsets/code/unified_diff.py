"""A unified diff of one file, read and applied as strictly as ``git apply`` does it (FS-05).

A small parser of our own and not the ``unidiff`` library: that one takes damaged counts and headers, decodes lines, and
implements neither git's refusals nor the marker for a missing last newline by position. Works on bytes, in linear time.
We refuse diffs that git accepts with another result than they state, such as text after the last hunk. A diff without a
file header is refused, as git does.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from soong.shared.core.value import Value
from soong.shared.toolsets.code.diff_header import (
    GIT_MARK,
    HUNK_LINE,
    HUNK_MARK,
    DiffError,
    Fault,
    Header,
    find_header,
    is_hunk_line,
    is_pair,
)

_MAX_NUMBER: Final = 2**31 - 1
_MIN_MARKER_BYTES: Final = 12
"""The words after ``\\ `` depend on the language of the author of the diff; none is shorter."""
_SIGNATURES: Final = (b"-- \n", b"-- \r\n", b"-- ")
_BINARY: Final = (b"GIT binary patch", b"Binary files ", b"Files ")

MAX_STEPS: Final = 10_000_000
"""Lines looked at in all searches of one diff: some seconds."""
_MOVED_IN_A_STEP: Final = 400
"""Lines behind a hunk that are moved, where it changes their number, in the time in which one is looked at."""

_Line: TypeAlias = bytes | tuple[bytes]


class Hunk(Value):
    """Lines with their endings: ``old`` is to be found, ``new`` takes its place. ``trailing`` counts context after it.
    ``line`` is its place in the diff. ``old_start`` and ``new_start`` are its own words, from 1.
    """

    line: int
    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    trailing: int
    has_context: bool


class UnifiedDiff(Value):
    """``creates`` and ``may_create`` say whether the file must not, or need not, exist."""

    header: Header
    hunks: tuple[Hunk, ...]

    @property
    def creates(self) -> bool:
        return self.header.creates == "yes"

    @property
    def may_create(self) -> bool:
        if self.header.creates != "maybe":
            return self.creates
        return len(self.hunks) == 1 and not self.hunks[0].old


def parse_diff(diff: bytes) -> UnifiedDiff:
    """Return the one section of a diff.
    Raises: DiffError, it is damaged, has several sections, or does anything but edit or create a text file.
    """
    lines = lines_of(diff)
    header = find_header(lines)
    hunks: list[Hunk] = []
    at = header.end
    while at < len(lines) and lines[at].startswith(HUNK_MARK):
        reading = _DiffReader(lines, at, len(hunks) + 1)
        hunks.append(reading.hunk())
        at = reading.at
    if at < len(lines) and not hunks and lines[at].startswith(_BINARY):
        raise DiffError(Fault.NOT_AN_EDIT, "the diff is of a binary file", line=at + 1)
    if not hunks and header.creates != "yes":
        raise DiffError(Fault.HEADER, "no hunk follows the file header", line=at)
    if header.creates == "yes" and any(hunk.old for hunk in hunks):
        raise DiffError(Fault.HUNK, "the diff creates the file and yet expects lines in it", hunk=1)
    _check_rest(lines, at)
    return UnifiedDiff(header, tuple(hunks))


def lines_of(content: bytes) -> list[bytes]:
    """Return lines with their endings; only a newline ends one."""
    *whole, last = content.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, last] if last else lines


@dataclass(slots=True)
class _DiffReader:
    """One hunk while it is read. A side with the marker of no final newline takes no more lines."""

    lines: list[bytes]
    at: int
    number: int
    old: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)
    old_ended: bool = False
    new_ended: bool = False
    last: bytes = b""
    trailing: int = 0
    context: int = 0

    def hunk(self) -> Hunk:
        first = self.at
        old_start, old_count, new_start, new_count = self._numbers()
        self.at += 1
        while len(self.old) < old_count or len(self.new) < new_count:
            self._take()
        if len(self.old) != old_count or len(self.new) != new_count:
            raise self._fault(Fault.HUNK, "its lines are not as many as its '@@' line counts")
        after = self.lines[self.at] if self.at < len(self.lines) else b""
        if after.startswith(b"\\ ") and len(after) > _MIN_MARKER_BYTES:  # the counts end before it
            self._end_side(after)
            self.at += 1
        if self.context == len(self.old) == len(self.new):
            raise self._fault(Fault.HUNK, "it changes nothing")
        sides = (tuple(self.old), tuple(self.new))
        return Hunk(first + 1, old_start, new_start, *sides, self.trailing, self.context > 0)

    def _numbers(self) -> tuple[int, int, int, int]:
        line = self.lines[self.at]
        found = HUNK_LINE.match(line) if line.endswith(b"\n") else None
        if found is None:
            raise self._fault(Fault.HUNK, "its '@@' line cannot be read")
        start, count, new_start, new_count = (self._number(text) for text in found.groups(b"1"))
        return start, count, new_start, new_count

    def _number(self, text: bytes) -> int:
        digits = text.lstrip(b"0") or b"0"
        if len(digits) > 10 or int(digits) > _MAX_NUMBER:
            raise self._fault(Fault.NUMBER, "a number in its '@@' line is larger than any file")
        return int(digits)

    def _take(self) -> None:
        line = self.lines[self.at] if self.at < len(self.lines) else b""
        if not line.endswith(b"\n"):
            problem = "the diff ends inside it" if not line else "the last line of the diff has no newline"
            raise self._fault(Fault.HUNK, problem)
        mark = line[:1]
        if mark == b"\\":
            self._end_side(line)
        elif mark in {b" ", b"\n"}:
            self._add(line[1:] or line, is_old=True, is_new=True)
            self.context += 1
        elif mark in {b"-", b"+"}:
            self._add(line[1:], is_old=mark == b"-", is_new=mark == b"+")
        else:
            raise self._fault(Fault.HUNK, "a line begins with none of ' ', '-', '+'")
        self.at += 1

    def _add(self, text: bytes, *, is_old: bool, is_new: bool) -> None:
        if (is_old and self.old_ended) or (is_new and self.new_ended):
            raise self._fault(Fault.MISPLACED_END, "a line follows one that is said to end the file")
        if is_old:
            self.old.append(text)
        if is_new:
            self.new.append(text)
        self.trailing = self.trailing + 1 if is_old and is_new else 0
        self.last = b" " if is_old and is_new else b"-" if is_old else b"+"

    def _end_side(self, marker: bytes) -> None:
        if len(marker) < _MIN_MARKER_BYTES or not marker.startswith(b"\\ "):
            raise self._fault(Fault.HUNK, "a line begins with a backslash and is not '\\ No newline at end of file'")
        sides = [side for side, marks in ((self.old, b" -"), (self.new, b" +")) if self.last and self.last in marks]
        for side in sides:
            side[-1] = side[-1].removesuffix(b"\n")
        if not sides or not all(side[-1] for side in sides):
            raise self._fault(Fault.MISPLACED_END, "'\\ No newline at end of file' follows no line that could lack one")
        self.old_ended = self.old_ended or self.last in b" -"
        self.new_ended = self.new_ended or self.last in b" +"
        self.last = b""

    def _fault(self, fault: Fault, problem: str) -> DiffError:
        hint = "count the lines of each hunk again, or use edits"
        line = min(self.at + 1, len(self.lines))
        return DiffError(fault, f"hunk {self.number} is damaged: {problem}", line=line, hunk=self.number, hint=hint)


def _check_rest(lines: list[bytes], at: int) -> None:
    """Hold what follows the last hunk to blank lines and the signature of a mailed patch."""
    for position in range(at, len(lines)):
        if lines[position].startswith(GIT_MARK) or is_pair(lines, position):
            hint = "change each file by a call of its own, in one section"
            raise DiffError(Fault.SEVERAL_FILES, "the diff has a second section", line=position + 1, hint=hint)
        if is_hunk_line(lines[position]):
            raise DiffError(Fault.HEADER, "a hunk comes after other text", line=position + 1)
    for position in range(at, len(lines)):
        if lines[position] in _SIGNATURES:
            return
        if lines[position].strip():
            hint = "count the lines of the last hunk again; nothing may follow it"
            raise DiffError(Fault.LEFTOVER, "text follows the last hunk", line=position + 1, hint=hint)


class Placement(Value):
    """The place of a hunk: the line, from 1, and its distance from the line that the hunk names."""

    line: int
    offset: int


def apply_diff(content: bytes, diff: UnifiedDiff) -> tuple[bytes, tuple[Placement, ...]]:
    """Return the content with every hunk applied, and where each went.
    Raises: DiffError, a hunk does not fit; nothing is applied.
    """
    image = LineImage(list[_Line](lines_of(content)))
    placements = tuple(image.put(hunk, number) for number, hunk in enumerate(diff.hunks, 1))
    return image.content(), placements


@dataclass(slots=True)
class LineImage:
    """The lines of a file. One that a hunk has put is a tuple, so that it equals no line of a later hunk."""

    lines: list[_Line]
    steps: int = MAX_STEPS

    def put(self, hunk: Hunk, number: int) -> Placement:
        """Replace a hunk's old lines by its new ones.
        Raises: DiffError, they are not where they may be, or the search costs too much.
        """
        said = max(hunk.new_start - 1, 0)
        at = self._place(hunk, said)
        if at is None:
            raise self._mismatch(hunk, number, said)
        if not hunk.has_context and hunk.old_start > 1 and at != (said if hunk.new else hunk.new_start):
            problem = f"hunk {number} has no context line and does not belong where it says"
            hint = "make the diff with at least one line of context"
            raise DiffError(Fault.NO_CONTEXT, problem, line=hunk.line, hunk=number, hint=hint)
        if len(hunk.new) != len(hunk.old):
            self._spend((len(self.lines) - at) // _MOVED_IN_A_STEP)
        self.lines[at : at + len(hunk.old)] = [(line,) for line in hunk.new]
        return Placement(at + 1, at - said)

    def content(self) -> bytes:
        return b"".join(line if isinstance(line, bytes) else line[0] for line in self.lines)

    def _place(self, hunk: Hunk, said: int) -> int | None:
        last = len(self.lines) - len(hunk.old)
        if last < 0:
            return None
        must_begin, must_end = hunk.old_start <= 1, hunk.trailing == 0
        if must_begin or must_end:
            at = 0 if must_begin else last
            return at if (not must_end or at == last) and self._matches(hunk.old, at) else None
        return self._search(hunk.old, min(said, len(self.lines)), last)

    def _search(self, old: tuple[bytes, ...], start: int, last: int) -> int | None:
        """Look outwards from a line: there, then one after, one before, and so on."""
        for distance in range(max(start, last - start) + 1):
            self._spend(2)
            after, before = start + distance, start - distance
            if after <= last and self._matches(old, after):
                return after
            if distance and 0 <= before <= last and self._matches(old, before):
                return before
        return None

    def _matches(self, old: tuple[bytes, ...], at: int) -> bool:
        for position, line in enumerate(old, at):
            if line != self.lines[position]:
                self._spend(position - at)
                return False
        self._spend(len(old))
        return True

    def _spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            hint = "read the file and make the diff again"
            raise DiffError(Fault.TOO_FAR, "the hunks are too far from where they say they belong", hint=hint)

    def _mismatch(self, hunk: Hunk, number: int, said: int) -> DiffError:
        fault, problem = Fault.MISMATCH, f"hunk {number} does not match the file near line {said + 1}"
        if hunk.old and not hunk.old[-1].endswith(b"\n"):
            fault = Fault.MISPLACED_END
            problem += ", or the file does not end there without a newline as it says"
        elif not hunk.has_context:
            problem += "; without context lines it can only be at the beginning or the end"
        return DiffError(fault, problem, line=hunk.line, hunk=number, hint=self._hint(hunk))

    def _hint(self, hunk: Hunk) -> str:
        ended = {line.endswith(b"\r\n") for line in hunk.old if line.endswith(b"\n")}
        has_crlf = any(isinstance(line, bytes) and line.endswith(b"\r\n") for line in self.lines)
        if ended == {False} and has_crlf:
            return "the file ends lines with \\r\\n; end the diff's lines so too, or use edits, which need not"
        last = (self.lines[-1:] or [b"\n"])[0]
        if isinstance(last, bytes) and not last.endswith(b"\n") and last + b"\n" in hunk.old:
            return "the file does not end in a newline: add the line '\\ No newline at end of file', or use edits"
        return "read the file again; every context and removed line must be there exactly, whitespace too"
