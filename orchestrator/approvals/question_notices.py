"""What an owner has heard of the questions of one session, and when it is to look at their rows.

The first notification of a question is its worker's, the next one tells of its answer. Where a client reads a question
by itself, the look at it waits a little: most often its answer is there before, and one look is for many.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import field

from soong.shared.core.lazy_dataclass import dataclass

POLL_EVERY_S = 1.0
LOOK_AFTER_S = 0.25
"""How long a look waits for an answer: a callback that is a function answers within this time, also while a thousand
questions are open; a person does not."""
MAX_NAMED = 1_000
CLOSE_S = 0.001
"""A time this near counts as reached: timers are not finer."""


@dataclass(slots=True)
class QuestionNotices:
    """What was heard and not acted on. Times are of the event loop."""

    answered: dict[str, None] = field(default_factory=dict)
    """Questions of which more than their own notification was heard: they have been answered, most likely."""
    _raised: dict[str, None] = field(default_factory=dict)
    """Open questions whose own notification was heard."""
    _closed: dict[str, None] = field(default_factory=dict)
    """Questions that were closed here, of late."""
    _due_s: float | None = 0.0
    """When the next look is due; None: at the next poll."""
    _looked_s: float = 0.0

    def hear(self, request_id: str, *, can_wait: bool) -> bool:
        """Note what was heard, of a question if it has an id; say whether there is anything to do."""
        if request_id in self._closed:
            return False  # its answer was notified of before its commit, and is again after it
        if request_id in self._raised:
            self.answered[request_id] = None
            return True
        if request_id:
            # Not to be decided: it would be held, and its responder would have to wait.
            _remember(self._raised, request_id)
        due_s = asyncio.get_running_loop().time() + (LOOK_AFTER_S if can_wait and request_id else 0.0)
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)
        return True

    def take_answered(self) -> list[str]:
        taken, self.answered = list(self.answered), {}
        return taken

    def close(self, request_id: str) -> None:
        """Note that a question was closed here. With the last that was heard of, the look that waits for it is off."""
        self._raised.pop(request_id, None)
        self.answered.pop(request_id, None)
        _remember(self._closed, request_id)
        if not self._raised and not self.is_due:
            self._due_s = None

    def begin_look(self) -> frozenset[str]:
        """Return the questions that were heard of: those that the look does not find have been closed."""
        self._due_s, self._looked_s = None, asyncio.get_running_loop().time()
        return frozenset(self._raised)

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._raised.pop(request_id, None)

    @property
    def is_due(self) -> bool:
        """Say whether the rows are to be looked at now."""
        return self._left_s() <= 0.0

    @property
    def is_waiting(self) -> bool:
        """Say whether a look is to come for what was heard."""
        return self._due_s is not None

    @property
    def pause_s(self) -> float:
        """How long nothing is to be done, unless something is heard."""
        return max(CLOSE_S, self._left_s())

    def _left_s(self) -> float:
        poll_s = self._looked_s + POLL_EVERY_S
        return (poll_s if self._due_s is None else min(poll_s, self._due_s)) - asyncio.get_running_loop().time()


def _remember(names: dict[str, None], name: str) -> None:
    names[name] = None
    if len(names) > MAX_NAMED:
        del names[next(iter(names))]
