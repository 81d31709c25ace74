"""Hints on which ends are worth a try to claim their successor with them (:mod:`successor`). Rows decide."""

from typing import Final

from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import StepEnd

MOST_HELD: Final = 1024
PAUSE: Final = 15
"""Ends that are written without a try after one that failed, which cost a round trip: what keeps one from its turn
(other work that is ready, a limit, a role that may not) does so for a while."""


class SuccessorHints:
    """Of the runs that this process holds, those of whose steps one step alone waits. Used by one thread."""

    def __init__(self) -> None:
        self._followed: set[str] = set()
        self._left_out = 0

    def note(self, run_id: str, *, is_followed: bool) -> None:
        """Note a claim."""
        if len(self._followed) >= MOST_HELD:  # of runs whose ends never came
            self._followed.clear()
        if is_followed:
            self._followed.add(run_id)

    def is_worth_a_try(self, end: StepEnd) -> bool:
        """Say whether an end probably has a successor whose turn it is."""
        if end.run_id not in self._followed or end.status is not StepStatus.COMPLETED:
            return False
        self._left_out -= 1
        return self._left_out < 0

    def note_try(self, end: StepEnd, *, has_claimed: bool) -> None:
        """Note what became of a try."""
        self._followed.discard(end.run_id)
        self._left_out = 0 if has_claimed else PAUSE
