"""Notifications of an orchestrator, as ``[notifications]`` asks for them. Without a rule nothing is followed."""

import asyncio
from collections.abc import Callable

from soong.orchestrator.event_log.follower import EventFollower, Followers
from soong.orchestrator.notifications.channels.channel import Channel, Delivery
from soong.orchestrator.notifications.channels.desktop import DesktopChannel
from soong.orchestrator.notifications.channels.ntfy import NtfyChannel
from soong.orchestrator.notifications.channels.slack import SlackChannel
from soong.orchestrator.notifications.channels.smtp import EmailChannel
from soong.orchestrator.notifications.channels.webhook import WebhookChannel
from soong.orchestrator.notifications.consumer import CONSUMER, NotificationConsumer
from soong.orchestrator.notifications.message import Message
from soong.orchestrator.notifications.sender import NotificationSender
from soong.shared.core import timing
from soong.shared.core.clock import Clock
from soong.shared.core.errors import UnavailableError
from soong.shared.core.ids import new_id
from soong.shared.core.log import get_logger
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.engine.tasks.event_feed import Notice
from soong.shared.sandbox.redact import Redactor
from soong.shared.storage.store import Store

log = get_logger(__name__)


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
