"""Writes what channels are to be notified of into the outbox: a consumer of the event feed.

An event that is read again gives a notice of the same id, which the outbox has already.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from soong.orchestrator.event_log.follower import CATCH_UP, Taken, word
from soong.shared.agents.definition import MEMORY_EXTRACTOR
from soong.shared.core import timing
from soong.shared.core.errors import ForgedError, NotFoundError
from soong.shared.core.jsontext import Json, JsonObject, inert
from soong.shared.core.log import get_logger
from soong.shared.core.notification_config import EventName, NotificationRule, NotificationsConfig
from soong.shared.core.timing import Clock, utc_date
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event, EventType
from soong.shared.engine.runs.record import EndReason
from soong.shared.engine.runs.store import RunStore, ancestors_of
from soong.shared.engine.tasks.event_feed import FeedCursor, FeedPart, FeedRun, Notice, NotificationOutbox
from soong.shared.permissions.request import PermissionRequest, RequestState
from soong.shared.permissions.store import ConsentStore
from soong.shared.sandbox.redact import Redactor

log = get_logger(__name__)

CONSUMER: Final = "notifications"
CLOCK_SKEW: Final = timedelta(minutes=10)
"""How far the clock of an event's writer may be ahead; what is dated later is left out."""
_MICRO: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)

MAX_SUMMARY: Final = 200
LIMIT_REACHED: Final = frozenset({EndReason.COST_LIMIT.value, EndReason.TOKEN_LIMIT.value})
_ENDS: Final[Mapping[str, str]] = {
    EventType.TASK_COMPLETED: "completed",
    EventType.TASK_FAILED: "failed",
    EventType.TASK_CANCELLED: "cancelled",
}

MAX_CHARS: Final = 120
_SCHEME: Final = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{0,30}):(?=//)|\b(mailto|tel|sms|geo|facetime|javascript|data):")
_HOST_DOT: Final = re.compile(
    # Between a label and the shape of a top-level domain, in any script, or in an address of four numbers.
    r"(?<=[^\W_])[.\u3002\uff0e\uff61](?=[^\W\d_]{2,63}(?!\w)|xn--)|(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w)"
)


class Occurrence(Value):
    """Something that a channel may be notified of. ``names`` are the events it counts as, the most telling first.

    ``key`` is the same whenever the same events are read again. However often a worker repeats an event of its own,
    there are few keys: one per question, run, or task and time.
    """

    names: Sequence[EventName]
    key: str
    time_us: int
    outcome: str = ""
    reason: str = ""
    request_id: str = ""
    step: str = ""
    facts: JsonObject = msgspec.field(default_factory=dict)


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
        above = await ancestors_of(self.runs, run.identity, 8) if request is not None else ()
        facts = facts_of(run, what, self.redactor, request, [each.definition for each in above])
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


def _fits(rule: NotificationRule, run: FeedRun, request: PermissionRequest | None) -> bool:
    return (
        _any(rule.sessions, run.identity.session_id)
        and _any(rule.agents, run.identity.definition)
        and _any(rule.tasks, run.task_title)
        and (request is None or request.risk in rule.risks)
    )


def _any(globs: Sequence[str], text: str) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


def occurrence_of(run: FeedRun, event: Event) -> Occurrence | None:
    """Return what a channel may be notified of by an event; None: nothing."""
    read = _READERS.get(event.type)
    return read(run, event) if read is not None else None


def facts_of(
    run: FeedRun,
    what: Occurrence,
    redactor: Redactor,
    request: PermissionRequest | None = None,
    lineage: Sequence[str] = (),
) -> JsonObject:
    """Return what a message shows; every text is one inert line without secrets."""

    def shown(text: str, limit: int = 120) -> str:
        return one_line(redactor.text(text), limit)

    who = request.identity if request is not None else run.identity
    facts: dict[str, Json] = {
        "v": 1,
        "session_id": who.session_id,
        "task_id": who.task_id,
        "task": shown(run.task_title),
        "run_id": who.run_id,
        "step": shown(who.step_title or what.step),
        "agent": shown(who.definition),
        "role": who.role.value,
        "agent_id": who.agent_id,
        "lineage": [shown(name) for name in lineage],
        "outcome": what.outcome,
        "summary": shown(what.reason, MAX_SUMMARY),
    }
    if request is not None:
        facts |= {
            "request_id": request.id,
            "tool": shown(request.tool),
            "risk": shown(request.risk, 20),
            "is_dangerous": request.is_dangerous,
            "summary": shown(request.risk_summary, MAX_SUMMARY),
        }
    return facts


def notice_id(channel: str, what: Occurrence) -> str:
    """Return an id that is the same whenever the same event is read for the same channel."""
    digest = hashlib.sha256(f"{channel}/{what.key}".encode()).hexdigest()
    return f"ntc_{digest[:32]}"


def _question(_run: FeedRun, event: Event) -> Occurrence | None:
    request_id = word(event.data, "request_id")
    key = f"question/{request_id}"
    return Occurrence(("question",), key, event.time_us, request_id=request_id) if request_id else None


def _task_ended(run: FeedRun, event: Event) -> Occurrence | None:
    # Only an owner writes in the log of a root run. A task of an agent ends into that agent's hands.
    if not run.is_root or run.planner_run_id:
        return None
    names: tuple[EventName, ...] = ("failure", "end") if event.type == EventType.TASK_FAILED else ("end",)
    key = f"end/{run.identity.task_id}/{event.seq}"
    return Occurrence(names, key, event.time_us, outcome=_ENDS[event.type], reason=word(event.data, "reason"))


def _warned(run: FeedRun, event: Event) -> Occurrence:
    """Return one occurrence per task and day: each of its runs writes this event by itself."""
    key = f"budget/{run.identity.task_id}/{utc_date(event.time_us)}"
    return Occurrence(("budget",), key, event.time_us, outcome="nearly used up")


def _run_failed(_run: FeedRun, event: Event) -> Occurrence | None:
    reason = word(event.data, "end_reason")
    if reason not in LIMIT_REACHED:
        return None
    return Occurrence(("budget",), f"limit/{event.run_id}", event.time_us, outcome="reached", reason=reason)


def _lost(run: FeedRun, event: Event) -> Occurrence:
    """Return one occurrence per task and hour, however many steps of it were lost."""
    key = f"lost/{run.identity.task_id}/{event.time_us // timing.HOUR_US}"
    return Occurrence(("worker_lost",), key, event.time_us, "lost", word(event.data, "reason"))


_READERS: Final[Mapping[str, Callable[[FeedRun, Event], Occurrence | None]]] = {
    EventType.PERMISSION_REQUESTED: _question,
    **dict.fromkeys(_ENDS, _task_ended),
    EventType.BUDGET_WARNED: _warned,
    EventType.RUN_FAILED: _run_failed,
    EventType.STEP_LEASE_EXPIRED: _lost,
}


def one_line(text: str, limit: int = MAX_CHARS) -> str:
    """Return text as one line of visible characters, cut, with its addresses broken (``https[:]//evil[.]example``)."""
    line = inert(" ".join(text[: 8 * limit].split()))
    line = _SCHEME.sub(lambda found: f"{found[1] or found[2]}[:]", line)
    line = _HOST_DOT.sub(lambda found: found[0].replace(".", "[.]") if len(found[0]) > 1 else "[.]", line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
