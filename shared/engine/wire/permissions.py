"""Consent over Redis streams: hints in addition to the rows, in order and kept over a short outage.

``REQUESTS`` carries ``{"v":"1","request":id,"session":id}`` to owners, who look at the session's rows; a worker's
decision stream carries ``{"v":"1","request":id,"decision":text}`` back. The decision is there for speed only: its row
is what counts, and the transaction that uses it compares the two. Streams are cut to ``MAX_LENGTH`` and
``DECISIONS_LENGTH``. Those who follow a session hear on its channel that it changed, and read its questions.
"""

from typing import Final

from soong.shared.engine.wire.jobs import KEY_PREFIX

REQUESTS: Final = f"{KEY_PREFIX}perm:req"
MAX_LENGTH: Final = 10_000
DECISIONS_LENGTH: Final = 1_000
"""Of the stream of one worker: decisions are a thousand times as long as their ids, and there are many workers."""
MAX_DECISION_CHARS: Final = 16 * 1024
"""A decision that is longer is read from its row."""


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
