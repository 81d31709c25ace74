"""``soong notifications``: what is sent outside, and whether it arrives (OPS-11)."""

import asyncio
from collections.abc import Sequence
from itertools import groupby

import typer

from soong.orchestrator.cli.console import emit, output, say, table
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.options import JSON
from soong.orchestrator.operations.ids import fits
from soong.shared.core.clock import SystemClock, rfc3339, to_the_second
from soong.shared.core.config import load_config
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings, load_settings
from soong.shared.engine.tasks.event_feed import Notice, NoticeState

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SHOWN = 200


@app.command("list")
def list_command(
    *,
    is_all: bool = typer.Option(False, "--all", help=f"Sent and dropped ones too, of the last {SHOWN} events."),
    is_json: bool = JSON,
) -> None:
    """List messages that wait or were given up."""
    messages = asyncio.run(_messages(load_settings(), is_all=is_all))
    if is_json:
        emit({"messages": [_as_json(notices) for notices in messages]})
        return
    if not messages:
        output("nothing was sent" if is_all else "nothing waits; `soong notifications list --all` shows what was sent")
        return
    rows = [
        (
            (notices[0].message_id or "-"),
            notices[0].channel,
            notices[0].state.value,
            ", ".join(sorted({notice.event for notice in notices}))
            + (f" ({len(notices)})" if len(notices) > 1 else ""),
            str(notices[0].attempts),
            _when(notices[0]),
            notices[0].error,
        )
        for notices in messages
    ]
    output(table(("message", "channel", "state", "events", "attempts", "next or end", "error"), rows, uncut=("error",)))


@app.command("test")
def try_command(
    channel: str = typer.Argument(..., metavar="CHANNEL", help="The name of a channel in config.toml."),
) -> None:
    """Send a test message to a channel now, from this process; exit code 1 when it does not arrive."""
    error = asyncio.run(_test(load_settings(), channel))
    if error:
        say(f"{channel}: {error}")
        raise typer.Exit(1)
    say(f"{channel}: the receiver accepted the message")


@app.command()
def retry(
    message: str = typer.Argument("", metavar="[MESSAGE]", help="The message's id, or its end; left out: all."),
    *,
    channel: str = typer.Option("", "--channel", metavar="NAME", help="Only those of this channel."),
) -> None:
    """Send again what was given up; a channel whose receiver answered 410 Gone is used again."""
    count = asyncio.run(_retry(load_settings(), message, channel))
    say(f"{count} event{'' if count == 1 else 's'} will be sent again" if count else "nothing was given up")


async def _messages(settings: Settings, *, is_all: bool) -> list[list[Notice]]:
    async with opened_store(settings) as store:
        notices = await store.outbox.notices(include_ended=is_all, limit=SHOWN)
    in_order: dict[str, None] = dict.fromkeys(map(_key, notices))
    return [sorted(group, key=lambda one: one.created_us) for _, group in _grouped(notices, list(in_order))]


def _grouped(notices: Sequence[Notice], order: Sequence[str]) -> list[tuple[str, list[Notice]]]:
    place = {key: number for number, key in enumerate(order)}
    ordered = sorted(notices, key=lambda notice: place[_key(notice)])
    return [(key, list(group)) for key, group in groupby(ordered, key=_key)]


async def _test(settings: Settings, name: str) -> str:
    from soong.orchestrator.notifications.sender import try_channel

    config = load_config(settings.home).notifications
    if name not in config.channels:
        known = ", ".join(sorted(config.channels)) or "none; add one, such as [notifications.webhook.ops]"
        raise UsageError(f"there is no channel {name!r} in {settings.home / 'config.toml'}; known: {known}")
    delivery = await try_channel(config, name, SystemClock(), is_local=settings.is_embedded)
    return delivery.error


async def _retry(settings: Settings, message: str, channel: str) -> int:
    from soong.orchestrator.approvals.approval import check_person

    async with opened_store(settings) as store:
        await check_person(store.sessions, "send notifications again")
        message_id = ""
        if message:
            given_up = await store.outbox.notices(include_ended=False, limit=10_000)
            known = sorted({one.message_id for one in given_up if one.message_id and fits(one.message_id, message)})
            if len(known) != 1:
                raise NotFoundError("message that was given up", message)
            message_id = known[0]
        return await store.outbox.retry(message_id=message_id, channel=channel, now_us=SystemClock().now_us())


def _key(notice: Notice) -> str:
    """Return what groups notices in a list: their message, or their channel while they are in none."""
    return notice.message_id or f"{notice.channel}/{notice.state.value}"


def _when(notice: Notice) -> str:
    at_us = notice.due_us if notice.state is NoticeState.WAITING else notice.ended_us
    return to_the_second(at_us)


def _as_json(notices: Sequence[Notice]) -> dict[str, Json]:
    first = notices[0]
    return {
        "id": first.message_id or None,
        "channel": first.channel,
        "state": first.state.value,
        "events": [notice.event for notice in notices],
        "requests": [notice.request_id for notice in notices if notice.request_id],
        "attempts": first.attempts,
        "due": rfc3339(first.due_us) if first.state is NoticeState.WAITING else None,
        "ended": rfc3339(first.ended_us) if first.ended_us else None,
        "error": first.error,
    }
