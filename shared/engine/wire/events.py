"""Wake-ups over Redis pub/sub: each says only where to look. A lost one is made good by a slow poll.

Payloads are JSON with ``v``; unknown fields are ignored, so N reads N-1.
"""

from typing import Final

from soong.shared.engine.wire.jobs import KEY_PREFIX

OWNERS_CHANNEL: Final = f"{KEY_PREFIX}wake:owners"
"""To every orchestrator: ``{"v":1,"sessions":[…]}``: look at these; an empty list: there are slots to fill."""


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
