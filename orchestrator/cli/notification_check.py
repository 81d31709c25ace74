"""The check of ``soong doctor`` on notifications. It sends nothing: ``soong notifications test`` does."""

from collections.abc import Iterator, Sequence
from typing import Final

from soong.orchestrator.cli.boundary_checks import standing_here
from soong.orchestrator.cli.finding import Finding, Level
from soong.orchestrator.cli.ids import has_no_rows
from soong.shared.core.config import load_config
from soong.shared.core.errors import InvalidConfigError, SoongError
from soong.shared.core.notification_config import NotificationsConfig
from soong.shared.core.references import resolved
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.event_feed import Notice, NoticeState

_CHECK: Final = "notifications"
_MANY: Final = 10_000


async def check_notifications(settings: Settings) -> Finding:
    """Each channel has its secrets and a rule, and its messages arrive."""
    try:
        config = load_config(settings.home).notifications
    except InvalidConfigError:
        return Finding(_CHECK, Level.OK, "not looked at: the configuration is wrong")
    try:
        role = None if has_no_rows(settings) else await standing_here(settings)
        if role is not None and not role.decides:
            return Finding(_CHECK, Level.OK, f"not looked at: {role.role} reads none; an orchestrator's role does")
        unsent = await _unsent(settings)
    except SoongError:
        unsent = ()  # the check of the database reports that
    if problems := [*_of_rows(config, unsent)]:
        hint = "`soong notifications list` has the errors, `soong notifications retry` sends again"
        return Finding(_CHECK, Level.WARN, "; ".join(problems), hint)
    if problems := [*_of_config(config)]:
        hint = "correct config.toml; the orchestrator's process needs the variable or file (`soong notifications test`)"
        return Finding(_CHECK, Level.WARN, "; ".join(problems), hint)
    if not config.rules:
        return Finding(_CHECK, Level.OK, "no rule asks for any")
    return Finding(
        _CHECK, Level.OK, f"{', '.join(sorted(config.channels))}: {len(config.rules)} rules; nothing is stuck"
    )


async def _unsent(settings: Settings) -> Sequence[Notice]:
    if has_no_rows(settings):
        return ()
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        return await store.outbox.notices(include_ended=False, limit=_MANY)


def _of_rows(config: NotificationsConfig, unsent: Sequence[Notice]) -> Iterator[str]:
    for channel in sorted({notice.channel for notice in unsent}):
        ours = [notice for notice in unsent if notice.channel == channel]
        if any(notice.state is NoticeState.GONE for notice in ours):
            yield f"{channel}: the receiver answered that it takes no more messages"
        elif dead := [notice for notice in ours if notice.state is NoticeState.DEAD]:
            yield f"{channel}: {len(dead)} events were given up ({dead[-1].error})"
        elif tried := [notice for notice in ours if notice.attempts]:
            yield f"{channel}: {len(tried)} events wait for another attempt ({tried[-1].error})"
        elif channel not in config.channels:
            yield f"{channel}: {len(ours)} events wait for a channel that is not in config.toml any more"


def _of_config(config: NotificationsConfig) -> Iterator[str]:
    used = {rule.channel for rule in config.rules}
    for name, channel in sorted(config.channels.items()):
        if name not in used:
            yield f"{name}: no rule sends anything to this channel"
        for reference in channel.secrets:
            try:
                resolved({"value": reference}, name)
            except InvalidConfigError as error:
                yield str(error)
