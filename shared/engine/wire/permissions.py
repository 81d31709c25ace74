"""Consent over Redis streams: hints in addition to the rows, in order and kept over a short outage.

``REQUESTS`` carries ``{"v":"1","request":id,"session":id}`` to owners, who look at the session's rows; a worker's
decision stream carries ``{"v":"1","request":id}`` back. Neither carries a decision: that is a signed row. Streams are
cut to ``MAX_LENGTH``.
"""

from typing import Final

from soong.shared.engine.wire.jobs import KEY_PREFIX

REQUESTS: Final = f"{KEY_PREFIX}perm:req"
MAX_LENGTH: Final = 10_000


def decisions_of(worker_id: str) -> str:
    """Return the stream that tells one worker which of its requests have been decided."""
    return f"{KEY_PREFIX}perm:dec:{worker_id}"
