"""Writes what channels are to be notified of into the outbox: a consumer of the event feed.

An event that is read again gives a notice of the same id, which the outbox has already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Final

from soong.orchestrator.event_log.follower import CATCH_UP, Taken
from soong.orchestrator.notifications.facts import Occurrence, facts_of, notice_id, occurrence_of
from soong.shared.agents.definition import MEMORY_EXTRACTOR
from soong.shared.core.clock import Clock
from soong.shared.core.errors import ForgedError, NotFoundError
from soong.shared.core.log import get_logger
from soong.shared.core.notification_config import EventName, NotificationRule, NotificationsConfig
from soong.shared.engine.runs.store import RunStore
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun, Notice, NotificationOutbox
from soong.shared.permissions.request import PermissionRequest, RequestState
from soong.shared.permissions.store import ConsentStore
from soong.shared.sandbox.redact import Redactor

log = get_logger(__name__)

CONSUMER: Final = "notifications"
MAX_LINEAGE: Final = 8
CLOCK_SKEW: Final = timedelta(minutes=10)
"""How far the clock of an event's writer may be ahead; what is dated later is left out."""
_MICRO: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class NotificationConsumer:
    """Implements :class:`soong.orchestrator.event_log.follower.EventConsumer`."""

    config: NotificationsConfig
    outbox: NotificationOutbox
    consent: ConsentStore
    runs: RunStore
    clock: Clock
    redactor: Redactor
    name: str = CONSUMER

    async def take(self, parts: Sequence[FeedPart]) -> Taken:
        notices: list[Notice] = []
        now_us = self.clock.now_us()
        oldest_us, newest_us = now_us - CATCH_UP // _MICROSECOND, now_us + CLOCK_SKEW // _MICROSECOND
        for part in parts:
            for event in part.events:
                what = occurrence_of(part.run, event)
                if what is not None and oldest_us <= event.time_us <= newest_us:
                    notices += await self._notices(part.run, what)
        if notices:
            await self.outbox.add(notices)
        return Taken([FeedCursor(part.run.identity.run_id, part.events[-1].seq) for part in parts])

    async def _notices(self, run: FeedRun, what: Occurrence) -> list[Notice]:
        request = await self._question(run, what.request_id) if what.request_id else None
        if (what.request_id and request is None) or run.identity.definition == MEMORY_EXTRACTOR:
            return []  # what nobody asks any more, and the job that Soong itself runs after a session
        channels = dict(self._channels(run, what, request))
        if not channels:
            return []
        lineage = await self._lineage(run) if request is not None else ()
        facts = facts_of(run, what, self.redactor, request, lineage)
        now_us = self.clock.now_us()
        waits = {name: round(channel.group_s * _MICRO) for name, channel in self.config.channels.items()}
        return [
            Notice(
                id=notice_id(channel, what),
                channel=channel,
                event=event,
                session_id=run.identity.session_id,
                request_id=what.request_id,
                created_us=what.time_us,
                due_us=now_us + waits[channel],
                facts=facts,
            )
            for channel, event in channels.items()
        ]

    def _channels(
        self, run: FeedRun, what: Occurrence, request: PermissionRequest | None
    ) -> Iterator[tuple[str, EventName]]:
        """Yield each channel once, with the most telling event that a rule sends it."""
        seen: set[str] = set()
        for event in what.names:
            for rule in self.config.rules:
                if rule.channel not in seen and event in rule.events and _fits(rule, run, request):
                    seen.add(rule.channel)
                    yield rule.channel, event

    async def _question(self, run: FeedRun, request_id: str) -> PermissionRequest | None:
        """Return a question of this very run that waits."""
        try:
            request, state = await self.consent.request(request_id)
        except (NotFoundError, ForgedError) as error:
            log.info("question_not_notified", request=request_id, error=str(error))
            return None
        is_its_own = request.identity.run_id == run.identity.run_id
        return request if is_its_own and state is RequestState.PENDING else None

    async def _lineage(self, run: FeedRun) -> Sequence[str]:
        """Return the definitions of the agents above the one that asks, the nearest first."""
        found: list[str] = []
        parent = run.identity.parent_run_id
        while parent and len(found) < MAX_LINEAGE:
            try:
                identity = (await self.runs.run(parent)).identity
            except NotFoundError:
                break
            found.append(identity.definition)
            parent = identity.parent_run_id
        return found


def _fits(rule: NotificationRule, run: FeedRun, request: PermissionRequest | None) -> bool:
    return (
        _any(rule.sessions, run.identity.session_id)
        and _any(rule.agents, run.identity.definition)
        and _any(rule.tasks, run.task_title)
        and (request is None or request.risk in rule.risks)
    )


def _any(globs: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)
