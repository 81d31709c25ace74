"""The ports by which a consumer follows the logs of all runs, each event once whatever dies in between, and sends
notifications outside (OPS-11).

A **consumer** is a name, such as the exporter of traces. Its place in every log is a row, so a consumer that starts
again continues where it was. One orchestrator at a time acts for a consumer: a successor takes its place when the
former one is marked as gone.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.tasks.spec import TaskKind

ATTEMPTS: Final = "notifications"
"""The total of attempts to send, by channel and outcome."""


class FeedRun(Value):
    """A run whose log has grown beyond the consumer's place in it.

    ``seq`` is that place and ``state`` what the consumer wrote down there; 0 and empty at first.
    """

    identity: RunIdentity
    attempt: int
    retry_of: str
    created_us: int
    task_title: str
    task_kind: TaskKind
    is_root: bool
    planner_run_id: str = ""
    """The run of another task whose agent planned this one; empty: a person did."""
    trace_parent: str = ""
    """The trace that its task belongs to, from its submitter (W3C trace context); empty: its own."""
    seq: int = 0
    state: JsonObject = msgspec.field(default_factory=dict)


class FeedPart(Value):
    """The next events of one run, in order."""

    run: FeedRun
    events: Sequence[Event]


class FeedCursor(Value):
    """How far a consumer has come in the log of a run, and what it needs to continue from there."""

    run_id: str
    seq: int
    state: JsonObject = msgspec.field(default_factory=dict)


Totals = Mapping[tuple[str, tuple[str, ...]], int]
"""Increments of running totals, by name and labels."""


class EventFeed(Protocol):
    async def take_over(self, consumer: str, owner_id: str, *, now_us: int) -> int | None:
        """Act for a consumer from now on; return since when the ends of tasks are to be looked at.

        None: a living owner acts for it. A consumer that is new begins at ``now_us``, with the tasks that are open.
        """

    async def read(self, consumer: str, *, since_us: int, limit: int) -> Sequence[FeedPart]:
        """Return at most about ``limit`` new events of open tasks, and of those that ended since then."""

    async def advance(
        self,
        consumer: str,
        owner_id: str,
        cursors: Sequence[FeedCursor],
        *,
        since_us: int,
        totals: Totals | None = None,
    ) -> bool:
        """Write down how far it came and add to the totals, all or nothing; False: another owner acts for it now."""

    async def totals(self) -> Totals:
        """Return the running totals of the deployment."""


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

    The writes of ``owner_id`` count only while that owner acts for ``consumer`` in the event feed.
    """

    async def add(self, notices: Sequence[Notice]) -> None:
        """Write notices; one whose id is known stays as it is."""

    async def waiting(self, channel: str, *, events: Sequence[str], limit: int) -> Sequence[Notice]:
        """Return what waits for a channel and is of these kinds, the earliest due first."""

    async def is_acting(self, consumer: str, owner_id: str) -> bool:
        """Say whether the owner acts for the consumer: otherwise its messages are not recorded."""

    async def group(self, consumer: str, owner_id: str, message_id: str, ids: Sequence[str]) -> bool:
        """Make these notices, which are in no message yet, one message; False: nothing was changed.

        Either all of them wait and are in no message, and the owner acts for the consumer, or nothing is changed.
        """

    async def record_outcome(
        self, consumer: str, owner_id: str, ids: Sequence[str], outcome: MessageOutcome, *, now_us: int, totals: Totals
    ) -> bool:
        """Write the outcome of an attempt for notices of one channel that wait, and count it, all or nothing.

        A message that was sent makes the other messages of its channel due that were tried before: the receiver is
        back. False: another owner acts, and nothing was changed.
        """

    async def sent_since(self, channel: str, since_us: int) -> int:
        """Return the number of messages that a channel got since then."""

    async def gone_channels(self) -> Sequence[str]:
        """Return the channels whose receivers take no more."""

    async def waiting_channels(self) -> Sequence[str]:
        """Return the channels that something waits for, configured or not."""

    async def notices(self, *, include_ended: bool, limit: int) -> Sequence[Notice]:
        """Return the newest notices, the oldest first: those that wait or were given up; with ``include_ended`` all."""

    async def retry(self, *, message_id: str = "", channel: str = "", now_us: int) -> int:
        """Let the dead and gone notices of a message, of a channel, or all, wait again, due now; return how many."""

    async def prune(self, before_us: int) -> int:
        """Remove what was sent, dropped or given up before; return how many."""
