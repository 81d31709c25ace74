"""The port to the outbox of notifications: what is to be sent outside, and the outcome (OPS-11).

A **notice** is one event for one channel; a **message** is the notices that are sent together. A notice is written
before anything is sent, so a receiver that is down, or a process that dies, loses none. The message id is written
before the first attempt and is the same in each: a receiver that gets a message twice can tell.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.tasks.event_feed import Totals


class NoticeState(StrEnum):
    WAITING = "waiting"
    """For its group, for quiet hours to end, or for another attempt."""
    SENT = "sent"
    DROPPED = "dropped"
    """A question that was answered before it was sent."""
    DEAD = "dead"
    """Every attempt failed, or its channel is not configured any more."""
    GONE = "gone"
    """The receiver answered that it takes no more; while there is one, nothing is sent to its channel."""


class Notice(Value):
    """One event for one channel. ``facts`` are what a message may show, without secrets and inputs of calls.

    ``message_id`` is empty until it is sent for the first time; ``due_us`` is when it may be, ``ended_us`` when it
    left the state ``waiting``.
    """

    id: str
    channel: str
    event: str
    session_id: str
    request_id: str
    created_us: int
    due_us: int
    facts: JsonObject = msgspec.field(default_factory=dict)
    message_id: str = ""
    state: NoticeState = NoticeState.WAITING
    attempts: int = 0
    error: str = ""
    ended_us: int = 0


class MessageOutcome(Value):
    """The result of an attempt. ``due_us`` is when to try again, for a message that still waits."""

    state: NoticeState
    attempts: int
    due_us: int = 0
    error: str = ""


class NotificationOutbox(Protocol):
    """Notices until they are sent. Those that have ended are kept for a while, for people to look at.

    What ``owner_id`` does counts only while that owner acts for ``consumer`` in the event feed.
    """

    async def add(self, notices: Sequence[Notice]) -> None:
        """Write notices; one whose id is known stays as it is."""
        ...

    async def waiting(self, channel: str, *, events: Sequence[str], limit: int) -> Sequence[Notice]:
        """Return what waits for a channel and is of these kinds, the earliest due first."""
        ...

    async def is_acting(self, consumer: str, owner_id: str) -> bool:
        """Say whether the owner acts for the consumer: what it sends otherwise is recorded by nobody."""
        ...

    async def group(self, consumer: str, owner_id: str, message_id: str, ids: Sequence[str]) -> bool:
        """Make these notices, which are in no message yet, one message; False: nothing was changed.

        Either all of them wait and are in no message, and the owner acts for the consumer, or nothing is changed.
        """
        ...

    async def record_outcome(
        self, consumer: str, owner_id: str, ids: Sequence[str], outcome: MessageOutcome, *, now_us: int, totals: Totals
    ) -> bool:
        """Write the outcome of an attempt for notices of one channel that wait, and count it, all or nothing.

        A message that was sent makes the other messages of its channel due that were tried before: the receiver is
        back. False: another owner acts, and nothing was changed.
        """
        ...

    async def sent_since(self, channel: str, since_us: int) -> int:
        """Return the number of messages that a channel got since then."""
        ...

    async def gone_channels(self) -> Sequence[str]:
        """Return the channels whose receivers take no more."""
        ...

    async def waiting_channels(self) -> Sequence[str]:
        """Return the channels that something waits for, configured or not."""
        ...

    async def notices(self, *, include_ended: bool, limit: int) -> Sequence[Notice]:
        """Return the newest notices, the oldest first: those that wait or were given up; with ``include_ended`` all."""
        ...

    async def retry(self, *, message_id: str = "", channel: str = "", now_us: int) -> int:
        """Let the dead and gone notices of a message, of a channel, or all, wait again, due now; return how many."""
        ...

    async def prune(self, before_us: int) -> int:
        """Remove what was sent, dropped or given up before; return how many."""
        ...
