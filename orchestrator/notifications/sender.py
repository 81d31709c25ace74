"""Sends the notices of the outbox, for one orchestrator of the deployment at a time.

The rows decide: a message gets its id there before the first attempt and its outcome after each. A process that dies
in between leaves a message that waits, and its successor sends it again under the same id.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from random import SystemRandom
from typing import Any, Final
from zoneinfo import ZoneInfo

from soong.orchestrator.event_log.follower import EventFollower, Followers
from soong.orchestrator.notifications.channels import (
    Channel,
    Delivery,
    DesktopChannel,
    EmailChannel,
    NtfyChannel,
    SlackChannel,
    WebhookChannel,
)
from soong.orchestrator.notifications.consumer import CONSUMER, NotificationConsumer
from soong.orchestrator.notifications.message import Message
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UnavailableError
from soong.shared.core.identity import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.notification_config import EVENTS, ChannelConfig, EventName, NotificationsConfig
from soong.shared.core.timing import Clock
from soong.shared.engine.tasks.event_feed import (
    ATTEMPTS,
    MessageOutcome,
    Notice,
    NoticeState,
    NotificationOutbox,
    Totals,
)
from soong.shared.permissions.store import ConsentStore
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.store import Store

log = get_logger(__name__)

PAGE: Final = 500
MAX_NOTICES: Final = 20
"""In one message: receivers of webhooks expect small ones."""
JITTER: Final = 0.2
KEPT: Final = timedelta(days=30)
PRUNE_EVERY: Final = timedelta(hours=1)
REMOVED: Final = "no rule or channel of the configuration is for it any more; add it, then `soong notifications retry`"
MANY_QUESTIONS: Final = 10_000
_MICRO: Final = 1_000_000


@dataclass(slots=True)
class NotificationSender:
    """Runs from :meth:`run` until that is cancelled; :meth:`finish` then sends what need not wait."""

    config: NotificationsConfig
    channels: Mapping[str, Channel]
    outbox: NotificationOutbox
    consent: ConsentStore
    clock: Clock
    owner_id: Callable[[], str]
    is_acting: Callable[[], bool]
    redactor: Redactor
    random: Callable[[], float] = field(default_factory=lambda: SystemRandom().random)
    _serving: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By channel: one that is slow holds up no other."""
    _pruned_us: int = 0

    async def run(self) -> None:
        """Look repeatedly; what is being sent when this is cancelled is left to :meth:`finish`."""
        while True:
            if self.is_acting():
                await self._safely(self._start())
            await asyncio.sleep(timing.POLL_ROWS_S)

    async def _start(self) -> None:
        """Begin to serve each channel that is not being served."""
        gone = set(await self.outbox.gone_channels())
        for name in self.channels:
            if name not in self._serving or self._serving[name].done():
                work = self._safely(self._serve(name, is_last=False, is_gone=name in gone))
                self._serving[name] = asyncio.get_running_loop().create_task(work)
        await self._prune()

    async def end_leftovers(self) -> None:
        """Give up what waits for a channel that is not configured: nothing would ever send it."""
        for name in await self.outbox.waiting_channels():
            if name in self.channels or not self.is_acting():
                continue
            while waiting := await self.outbox.waiting(name, events=EVENTS, limit=PAGE):
                log.warning("notifications_of_removed_channel", channel=name, count=len(waiting))
                if not await self._settle(waiting, MessageOutcome(NoticeState.DEAD, 0, error=REMOVED)):
                    return  # another orchestrator acts, by its own configuration

    async def finish(self, within_s: float) -> None:
        """Send within this time what waits only for others to be sent with; a successor sends the rest."""
        under_way = {name: task for name, task in self._serving.items() if not task.done()}
        try:
            async with asyncio.timeout(within_s):
                if under_way:
                    await asyncio.wait(under_way.values(), timeout=within_s / 2)
                if self.is_acting():
                    await self.look(is_last=True)
        except (TimeoutError, UnavailableError) as error:
            log.info("notifications_unfinished", error=str(error))
        for task in under_way.values():
            task.cancel()
        await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def look(self, *, is_last: bool = False) -> None:
        """Send what is due, once, to channels that are not being served. Raises: UnavailableError."""
        gone = set(await self.outbox.gone_channels())
        free = [name for name in self.channels if name not in self._serving or self._serving[name].done()]
        await asyncio.gather(*(self._serve(name, is_last=is_last, is_gone=name in gone) for name in free))
        await self._prune()

    async def _safely(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except UnavailableError as error:
            log.warning("notifications_wait", error=str(error))
        except Exception:  # what one row holds must not end the loop for all
            log.exception("notifications_failed")

    async def _serve(self, name: str, *, is_last: bool, is_gone: bool) -> None:
        """Send what is due to one channel: messages that were tried before, then new ones."""
        config, now_us = self.config.channels[name], self.clock.now_us()
        # Notices that quiet hours hold back are not read: however many there are, none that may pass is behind them.
        events = EVENTS if is_gone else passing_now(config, now_us)
        waiting = await self.outbox.waiting(name, events=events, limit=PAGE) if events else ()
        # A former owner may not know yet: what it sent would be recorded by nobody, and sent again each time.
        if not waiting or not await self.outbox.is_acting(CONSUMER, self.owner_id()):
            return
        if is_gone:
            outcome = MessageOutcome(NoticeState.GONE, 0, error="the receiver takes no more messages")
            await self._settle(waiting, outcome, is_counted=False)
            return
        tried = sorted(
            (one for one in waiting if one.message_id and one.due_us <= now_us), key=lambda one: one.message_id
        )
        for message_id, notices in groupby(tried, key=lambda notice: notice.message_id):
            message = Message(message_id, sorted(notices, key=_place), self.config.console)
            if not await self._is_settled_otherwise(message) and not await self._attempt(name, message):
                return  # it is down: the others keep their turn
        await self._send_new(name, [notice for notice in waiting if not notice.message_id], is_last)

    async def _send_new(self, name: str, fresh: Sequence[Notice], is_last: bool) -> None:
        now_us = self.clock.now_us()
        if not any(one.due_us <= now_us or (is_last and one.event != "question") for one in fresh):
            return
        sent = await self.outbox.sent_since(name, now_us - timing.HOUR_US)
        if sent >= self.config.channels[name].max_per_hour:
            return  # they wait, and go together as soon as there is room
        closed = await self._closed(fresh)
        await self._settle([one for one in fresh if one.id in closed], MessageOutcome(NoticeState.DROPPED, 0))
        together = sorted((one for one in fresh if one.id not in closed), key=_place)[:MAX_NOTICES]
        if not any(one.due_us <= now_us or (is_last and one.event != "question") for one in together):
            return
        message = Message(new_id("msg"), together, self.config.console)
        if await self.outbox.group(CONSUMER, self.owner_id(), message.id, [one.id for one in together]):
            await self._attempt(name, message)

    async def _attempt(self, name: str, message: Message) -> bool:
        """Send a message and record the outcome; return whether it was accepted."""
        delivery = await self._delivered(name, message)
        attempts = message.notices[0].attempts + 1
        outcome = self._outcome(delivery, attempts)
        log.info("notification", channel=name, message=message.id, state=outcome.state.value, attempts=attempts)
        await self._settle(message.notices, outcome)
        return delivery.is_sent

    async def _delivered(self, name: str, message: Message) -> Delivery:
        try:
            async with asyncio.timeout(timing.PATIENCE_S):
                return await self.channels[name].send(message)
        except InvalidConfigError as error:
            return Delivery(str(error))
        except TimeoutError:
            return Delivery(f"the receiver took longer than {timing.PATIENCE_S:g} s")
        except Exception as error:  # an adapter's fault concerns one message; its text may hold a secret
            log.exception("notification_raised", channel=name)
            return Delivery(f"sending raised {type(error).__name__}")

    def _outcome(self, delivery: Delivery, attempts: int) -> MessageOutcome:
        error = self.redactor.text(delivery.error)[:300]
        if delivery.is_sent:
            return MessageOutcome(NoticeState.SENT, attempts, error=error)
        if delivery.is_gone:
            return MessageOutcome(NoticeState.GONE, attempts, error=error)
        if attempts > len(timing.DELIVERY_BACKOFF_S):
            return MessageOutcome(NoticeState.DEAD, attempts, error=error)
        delay_s = timing.DELIVERY_BACKOFF_S[attempts - 1] * (1 + JITTER * (2 * self.random() - 1))
        delay_s = max(delay_s, delivery.retry_after_s)
        return MessageOutcome(NoticeState.WAITING, attempts, self.clock.now_us() + round(delay_s * _MICRO), error)

    async def _settle(self, notices: Sequence[Notice], outcome: MessageOutcome, *, is_counted: bool = True) -> bool:
        """Write an outcome. If another orchestrator acts by now, its rows are left alone: it sends again; False."""
        if not notices:
            return True
        word = "failed" if outcome.state is NoticeState.WAITING else outcome.state.value
        totals: Totals = {(ATTEMPTS, (notices[0].channel, word)): 1} if is_counted else {}
        ids = [notice.id for notice in notices]
        return await self.outbox.record_outcome(
            CONSUMER, self.owner_id(), ids, outcome, now_us=self.clock.now_us(), totals=totals
        )

    async def _is_settled_otherwise(self, message: Message) -> bool:
        """Drop a message that failed before if it is only questions, all answered since; its content never changes."""
        if len(await self._closed(message.notices)) < len(message.notices):
            return False
        await self._settle(message.notices, MessageOutcome(NoticeState.DROPPED, message.notices[0].attempts))
        return True

    async def _closed(self, notices: Sequence[Notice]) -> set[str]:
        """Return the ids of notices whose questions wait for no answer any more, or are not proven by their runs."""
        asked = [notice for notice in notices if notice.request_id]
        open_ids: set[str] = set()
        for session_id in sorted({notice.session_id for notice in asked}):
            try:
                found = await self.consent.questions(session_id=session_id, limit=MANY_QUESTIONS)
            except NotFoundError:  # removed by now
                continue
            open_ids |= {one.request.id for one in found if one.is_proven and one.is_pending and one.answer is None}
        return {notice.id for notice in asked if notice.request_id not in open_ids}

    async def _prune(self) -> None:
        now_us = self.clock.now_us()
        if now_us - self._pruned_us >= PRUNE_EVERY // timedelta(microseconds=1):
            self._pruned_us = now_us
            await self.end_leftovers()
            await self.outbox.prune(now_us - KEPT // timedelta(microseconds=1))


def passing_now(config: ChannelConfig, now_us: int) -> Sequence[EventName]:
    """Return the kinds of events that quiet hours do not hold back now."""
    quiet = config.quiet_hours
    if quiet is None:
        return EVENTS
    local = datetime.fromtimestamp(now_us / _MICRO, UTC).astimezone(ZoneInfo(quiet.zone))
    return quiet.passing if quiet.covers(local.time()) else EVENTS


def _place(notice: Notice) -> tuple[int, str]:
    return notice.created_us, notice.id


def channels_of(config: NotificationsConfig, clock: Clock, *, is_local: bool) -> dict[str, Channel]:
    """Return the channels by their names; ``is_local``: the service is one of this machine alone."""
    return {
        **{name: WebhookChannel(name, channel, clock) for name, channel in config.webhook.items()},
        **{name: EmailChannel(name, channel) for name, channel in config.email.items()},
        **{name: NtfyChannel(name, channel, clock) for name, channel in config.ntfy.items()},
        **{name: SlackChannel(name, channel, clock) for name, channel in config.slack.items()},
        **{name: DesktopChannel(is_local) for name in config.desktop},
    }


async def try_channel(config: NotificationsConfig, name: str, clock: Clock, *, is_local: bool) -> Delivery:
    """Send one test message. Raises: InvalidConfigError, a secret cannot be read."""
    now_us = clock.now_us()
    notice = Notice(new_id("msg"), name, "test", "", "", now_us, now_us)
    message = Message(notice.id, [notice], config.console)
    return await channels_of(config, clock, is_local=is_local)[name].send(message)


def open_notifications(
    config: NotificationsConfig,
    store: Store,
    clock: Clock,
    owner_id: Callable[[], str],
    redactor: Redactor,
    *,
    is_local: bool,
) -> Followers:
    """Return what sends notifications; if there is no rule, what gives up those that former rules left waiting."""
    if not config.rules:
        return Followers((lambda: _end_leftovers(config, store, clock, owner_id, redactor),))
    consumer = NotificationConsumer(config, store.outbox, store.consent, store.runs, clock, redactor)
    follower = EventFollower(store.feed, consumer, clock, owner_id, timing.FOLLOW_LOGS_S)
    sender = NotificationSender(
        config,
        channels_of(config, clock, is_local=is_local),
        store.outbox,
        store.consent,
        clock,
        owner_id,
        lambda: follower.is_acting,
        redactor,
    )

    async def close() -> None:
        await follower.finish(timing.CLOSE_LIMIT_S)
        await sender.finish(timing.CLOSE_LIMIT_S)

    return Followers((follower.run, sender.run), (close,))


async def _end_leftovers(
    config: NotificationsConfig, store: Store, clock: Clock, owner_id: Callable[[], str], redactor: Redactor
) -> None:
    """Give up what waits although there is no rule, unless another orchestrator lives that has some."""
    sender = NotificationSender(config, {}, store.outbox, store.consent, clock, owner_id, lambda: True, redactor)
    while True:
        try:
            if not await store.outbox.waiting_channels():
                return
            await store.feed.take_over(CONSUMER, owner_id(), now_us=clock.now_us())
            await sender.end_leftovers()
        except UnavailableError as error:
            log.info("notifications_wait", error=str(error))
        await asyncio.sleep(timing.MINUTE_S)
