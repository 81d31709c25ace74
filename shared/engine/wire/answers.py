"""What people see of a model's answer while it arrives: pieces on a channel, kept nowhere.

A piece says where its text belongs, so a reader that missed some, or came late, is right again with the next one that
starts at 0, and at the latest with the node that the run writes of the complete answer. Payloads are JSON with ``v``;
unknown fields are ignored, so N reads N-1.
"""

import json
from typing import Final

from msgspec import MsgspecError
from msgspec.json import decode

from soong.shared.core.value import Value
from soong.shared.engine.wire.events import KEY_PREFIX

MAX_PIECE_CHARS: Final = 300_000
MAX_CALLS: Final = 100
MAX_NAME_CHARS: Final = 200
GAP: Final = "… "
"""Stands for what a reader has missed."""


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
