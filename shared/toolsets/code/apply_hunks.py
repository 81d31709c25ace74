"""A file as lines into which hunks are put, at the places where ``git apply`` puts them (FS-05).

No fuzz: all lines of a hunk's old side must be there byte for byte, untouched by an earlier hunk. A hunk that says
it begins at the first line must match there, one that ends without context must match at the end of the file, any other
is looked for outwards from where it says, forwards first. Time is linear for hunks in order and at their places, and
bounded for all others.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from soong.shared.core.value import Value
from soong.shared.toolsets.code.diff_header import DiffError, Fault
from soong.shared.toolsets.code.unified_diff import Hunk, UnifiedDiff, lines_of

MAX_STEPS: Final = 10_000_000
"""Lines looked at in all searches of one diff: some seconds."""

_Line: TypeAlias = bytes | tuple[bytes]


class Placement(Value):
    """Where a hunk went: the line, from 1, and how far that is from where the hunk said."""

    line: int
    offset: int


def apply_diff(content: bytes, diff: UnifiedDiff) -> tuple[bytes, tuple[Placement, ...]]:
    """Return the content with every hunk applied, and where each went.

    Raises:
        DiffError: a hunk does not fit; nothing is applied.
    """
    image = LineImage(list[_Line](lines_of(content)))
    placements = tuple(image.put(hunk, number) for number, hunk in enumerate(diff.hunks, 1))
    return image.content(), placements


@dataclass(slots=True)
class LineImage:
    """Lines in two stacks with a gap between, where the last hunk ended: hunks in order cost only what they move.

    ``rest`` is reversed. A line that a hunk has put is a tuple, so that it equals no line of a later hunk.
    """

    rest: list[_Line]
    done: list[_Line] = field(default_factory=list)
    steps: int = MAX_STEPS

    def __post_init__(self) -> None:
        self.rest.reverse()

    def put(self, hunk: Hunk, number: int) -> Placement:
        """Replace a hunk's old lines by its new ones.

        Raises:
            DiffError: they are not where they may be, or the search costs too much.
        """
        said = max(hunk.new_start - 1, 0)
        at = self._place(hunk, said)
        if at is None:
            raise self._mismatch(hunk, number, said)
        if not hunk.has_context and hunk.old_start > 1 and at != (said if hunk.new else hunk.new_start):
            problem = f"hunk {number} has no context line and does not belong where it says"
            hint = "make the diff with at least one line of context"
            raise DiffError(Fault.NO_CONTEXT, problem, line=hunk.line, hunk=number, hint=hint)
        self._move_gap(at)
        if hunk.old:
            del self.rest[-len(hunk.old) :]
        self.done.extend((line,) for line in hunk.new)
        return Placement(at + 1, at - said)

    def content(self) -> bytes:
        """Return the bytes of all lines."""
        self._move_gap(len(self))
        return b"".join(line if isinstance(line, bytes) else line[0] for line in self.done)

    def __len__(self) -> int:
        return len(self.done) + len(self.rest)

    def _place(self, hunk: Hunk, said: int) -> int | None:
        last = len(self) - len(hunk.old)
        if last < 0:
            return None
        must_begin, must_end = hunk.old_start <= 1, hunk.trailing == 0
        if must_begin or must_end:
            at = 0 if must_begin else last
            return at if (not must_end or at == last) and self._matches(hunk.old, at) else None
        return self._search(hunk.old, min(said, len(self)), last)

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
        gap, count = len(self.done), len(self.rest)
        for position, line in enumerate(old, at):
            if line != (self.done[position] if position < gap else self.rest[count - 1 - (position - gap)]):
                self._spend(position - at)
                return False
        self._spend(len(old))
        return True

    def _move_gap(self, at: int) -> None:
        distance = at - len(self.done)
        source, target = (self.rest, self.done) if distance > 0 else (self.done, self.rest)
        if distance:
            moved = source[-abs(distance) :]
            del source[-abs(distance) :]
            moved.reverse()
            target.extend(moved)
            self._spend(len(moved) // 8)  # moving a line costs a fraction of comparing it

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
        has_crlf = any(isinstance(line, bytes) and line.endswith(b"\r\n") for line in (*self.rest, *self.done))
        if ended == {False} and has_crlf:
            return "the file ends lines with \\r\\n; end the diff's lines so too, or use edits, which need not"
        last = (self.rest[:1] or self.done[-1:] or [b"\n"])[0]
        if isinstance(last, bytes) and not last.endswith(b"\n") and last + b"\n" in hunk.old:
            return "the file does not end in a newline: add the line '\\ No newline at end of file', or use edits"
        return "read the file again; every context and removed line must be there exactly, whitespace too"
