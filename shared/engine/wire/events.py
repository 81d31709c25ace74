"""Wake-ups over Redis pub/sub and messages of Celery: each names a place to look at. A slow poll replaces a lost one.

Payloads are JSON with ``v``; unknown fields are ignored, so N reads N-1.
"""

import json
from typing import Final

from msgspec import MsgspecError
from msgspec.json import decode

from soong.shared.core.value import Value

KEY_PREFIX: Final = "soong:"
"""Before every broker key, so that one Redis may serve others too (kombu ``global_keyprefix``)."""

OWNERS_CHANNEL: Final = f"{KEY_PREFIX}wake:owners"
"""To every orchestrator: ``{"v":1,"sessions":[…]}``: look at these; an empty list: there are slots to fill."""

REQUESTS: Final = f"{KEY_PREFIX}perm:req"
MAX_LENGTH: Final = 10_000
DECISIONS_LENGTH: Final = 1_000
"""Of the stream of one worker: decisions are a thousand times as long as their ids, and there are many workers."""
MAX_DECISION_CHARS: Final = 16 * 1024
"""A decision that is longer is read from its row."""

PROTOCOL: Final = 1
"""Version of everything under soong.shared.engine.wire and of a step's row; N reads N-1.

A step needs the version that it was written in, a worker announces those that it reads: as ``protocol:<n>``.
"""

DISPATCH_TASK: Final = "soong.worker"
"""The one Celery task: hold a slot and claim steps until nothing is claimable. Arguments: (dispatch_id,)."""

MAX_PIECE_CHARS: Final = 300_000
MAX_CALLS: Final = 100
MAX_NAME_CHARS: Final = 200
GAP: Final = "… "
"""Stands for what a reader has missed."""


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


def written_in(protocol: int = PROTOCOL) -> str:
    """Return the capability that a worker needs for what a program of this version wrote."""
    return f"protocol:{protocol}"


def reads(protocol: int = PROTOCOL) -> tuple[str, ...]:
    """Return the capabilities of a worker of this version: its own writing, and that of the version before."""
    return tuple(written_in(version) for version in range(max(1, protocol - 1), protocol + 1))


def queue_of(pool: str) -> str:
    """Return the Celery queue of a pool."""
    return f"soong.{pool}"


def queue_key(pool: str) -> str:
    """Return the Redis list in which kombu keeps that queue."""
    return f"{KEY_PREFIX}{queue_of(pool)}"


def answer_channel(run_id: str) -> str:
    """Return the channel with the answers of a run while they arrive."""
    return f"{KEY_PREFIX}wake:run:{run_id}:answer"


class AnswerDelta(Value):
    """A piece of an answer, without secrets. From its position ``at`` on, ``text`` replaces what was there.

    An answer that broke off and is asked for again starts at 0 again. ``calls`` are the tools that it calls so far.
    ``is_complete``: this is its last piece; the run continues with it.
    """

    turn: int
    at: int
    text: str
    calls: tuple[str, ...] = ()
    is_complete: bool = False

    def payload(self) -> str:
        """Return the form on the wire."""
        return json.dumps({"v": 1, **self.as_json()}, separators=(",", ":"))

    def applied_to(self, shown: str) -> str:
        """Return the answer's text so far for a reader who has shown this much of the same turn."""
        return (shown[: self.at] if self.at <= len(shown) else GAP) + self.text


def delta_of(payload: str) -> AnswerDelta | None:
    """Read the form on the wire; None when it is not one: anybody with a worker's rights may publish."""
    try:
        delta = decode(payload, type=AnswerDelta)
    except (MsgspecError, RecursionError):
        return None
    is_short = len(delta.text) <= MAX_PIECE_CHARS and len(delta.calls) <= MAX_CALLS
    is_bounded = is_short and all(len(name) <= MAX_NAME_CHARS for name in delta.calls)
    return delta if is_bounded and min(delta.turn, delta.at) >= 0 else None
