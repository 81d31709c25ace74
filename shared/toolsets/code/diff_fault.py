"""The distinct reasons why a diff is not applied (FS-05)."""

from enum import StrEnum
from typing import Final

from soong.shared.core.errors import SoongError


class Fault(StrEnum):
    """What is wrong with a diff, or with applying it."""

    HEADER = "header"
    OTHER_FILE = "other_file"
    SEVERAL_FILES = "several_files"
    NOT_AN_EDIT = "not_an_edit"
    HUNK = "hunk"
    NUMBER = "number"
    LEFTOVER = "leftover"
    MISPLACED_END = "misplaced_end"
    NO_CONTEXT = "no_context"
    MISMATCH = "mismatch"
    EXISTS = "exists"
    TOO_FAR = "too_far"


STRICTER_THAN_GIT: Final = frozenset(
    {Fault.NUMBER, Fault.LEFTOVER, Fault.MISPLACED_END, Fault.NO_CONTEXT, Fault.TOO_FAR, Fault.SEVERAL_FILES}
)
"""What ``git apply`` may take and we never do, because its result is not what the diff says.

``NUMBER``: line numbers beyond 31 bits, which git cuts off. ``LEFTOVER``: text after the last hunk, which git drops
even when it is hunk lines beyond a wrong count. ``MISPLACED_END``: a line said to have no newline that is not the last
one, which git joins with the next. ``NO_CONTEXT``: a hunk without a context line, which git puts at the end of the file
wherever it says it belongs. ``TOO_FAR``: hunks so far from their places that finding them costs seconds.
``SEVERAL_FILES``: a second section, even of the same file.
"""


class DiffError(SoongError):
    """A diff that is refused; nothing has been changed. ``line`` is its own line, from 1; ``hunk`` counts from 1."""

    def __init__(self, fault: Fault, problem: str, *, line: int = 0, hunk: int = 0, hint: str = "") -> None:
        self.fault = fault
        self.line = line
        self.hunk = hunk
        self.hint = hint
        super().__init__(f"{problem} (line {line} of the diff)" if line else problem)
