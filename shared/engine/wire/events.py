"""Wake-ups over Redis pub/sub: each says only where to look. A lost one is made good by a slow poll.

Payloads are JSON with ``v``; unknown fields are ignored, so N reads N-1.
"""

from typing import Final

from soong.shared.engine.wire.jobs import KEY_PREFIX

OWNERS_CHANNEL: Final = f"{KEY_PREFIX}wake:owners"
"""To every orchestrator: ``{"v":1,"sessions":[…]}``: look at these; an empty list: there are slots to fill."""

REQUESTS: Final = f"{KEY_PREFIX}perm:req"
MAX_LENGTH: Final = 10_000
DECISIONS_LENGTH: Final = 1_000
"""Of the stream of one worker: decisions are a thousand times as long as their ids, and there are many workers."""
MAX_DECISION_CHARS: Final = 16 * 1024
"""A decision that is longer is read from its row."""


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


def decisions_of(worker_id: str) -> str:
    """Return the stream that tells one worker which of its requests have been decided."""
    return f"{KEY_PREFIX}perm:dec:{worker_id}"


def hint_of(subject: str, text: str) -> str:
    """Return a hint as a subscription reports it: an id, and what came with it, if anything did."""
    return f"{subject}\n{text}" if text else subject


def split_hint(hint: str) -> tuple[str, str]:
    """Return the id of a hint and what came with it."""
    subject, _, text = hint.partition("\n")
    return subject, text
