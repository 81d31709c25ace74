"""Wake-ups over Redis pub/sub: each says only where to look. A lost one is made good by a slow poll.

Payloads are JSON with ``v``; unknown fields are ignored, so N reads N-1.
"""

from typing import Final

from soong.shared.engine.wire.jobs import KEY_PREFIX

OWNERS_CHANNEL: Final = f"{KEY_PREFIX}wake:owners"
"""To every orchestrator: ``{"v":1,"sessions":[…]}``: look at these; an empty list: there are slots to fill. Those that
are in ``"called"`` too are new, and a worker has been called for them; those in ``"alone"`` are new, and an owner has
nothing to do for them before their task ends. Those in ``"ended"`` have ended without an owner: only the folders of
their runs are to be written."""

CALLED: Final = "called"
ALONE: Final = "alone"
ENDED: Final = "ended"
MARKS: Final = (CALLED, ALONE, ENDED)
"""What an owner's subscription reports with such a session; all that fit, in this order, with blanks between them."""


def marks_of(*, is_called: bool = False, is_alone: bool = False, is_ended: bool = False) -> str:
    """Return what a hint for owners says of a session that is new or has ended."""
    return " ".join(mark for mark, is_said in zip(MARKS, (is_called, is_alone, is_ended), strict=True) if is_said)


def worker_channel(worker_id: str) -> str:
    """Return the channel that tells one worker to look at its interrupts (cancel, pause).

    With ``"claim": true`` in the payload it tells the worker to claim steps for its free slots instead.
    """
    return f"{KEY_PREFIX}wake:worker:{worker_id}"


def session_channel(session_id: str) -> str:
    """Return the channel that tells a session's clients that something changed (progress, a question, an end)."""
    return f"{KEY_PREFIX}wake:session:{session_id}"


def run_channel(run_id: str) -> str:
    """Return the channel that notifies followers of a run after each write to its log (EVT-02)."""
    return f"{KEY_PREFIX}wake:run:{run_id}"
