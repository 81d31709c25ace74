"""``soong notifications``: what is sent outside, and whether it arrives (OPS-11)."""

from collections.abc import Sequence

import typer

from soong.orchestrator.cli.console import Columns, listed, number_of, say, second_of
from soong.orchestrator.cli.ids import opened_store
from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.cli.summary import Document
from soong.orchestrator.operations.ids import fits
from soong.shared.core.config import load_config
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock, rfc3339
from soong.shared.engine.tasks.event_feed import Notice, NoticeState

app = CommandTable()

SHOWN = 200


@app.command("list")
async def list_command(
    *,
    is_all: bool = typer.Option(False, "--all", help=f"Sent and dropped ones too, of the last {SHOWN} events."),
    is_json: bool = JSON,
) -> None:
    """List messages that wait or were given up."""
    async with opened_store() as store:
        notices = await store.outbox.notices(include_ended=is_all, limit=SHOWN)
    messages: dict[str, list[Notice]] = {}
    for notice in notices:
        # Notices that are in no message yet are one row for their channel.
        messages.setdefault(notice.message_id or f"{notice.channel}/{notice.state.value}", []).append(notice)
    shown = [_as_json(sorted(one, key=lambda notice: notice.created_us)) for one in messages.values()]
    columns: Columns = {
        "message": lambda one: one["id"] or "-",
        "channel": "channel",
        "state": "state",
        "events": _events_text,
        "attempts": "attempts",
        "next or end": lambda one: second_of(one["due"] or one["ended"]),
        "error": "error",
    }
    empty = "nothing was sent" if is_all else "nothing waits; `soong notifications list --all` shows what was sent"
    listed(shown, columns, is_json=is_json, uncut=("error",), empty=empty, name="messages")


@app.command("test")
async def try_command(
    channel: str = typer.Argument(..., metavar="CHANNEL", help="The name of a channel in config.toml."),
) -> None:
    """Send a test message to a channel now, from this process; exit code 1 when it does not arrive."""
    from soong.orchestrator.notifications.sender import try_channel

    settings = load_settings()
    config = load_config(settings.home).notifications
    if channel not in config.channels:
        known = ", ".join(sorted(config.channels)) or "none; add one, such as [notifications.webhook.ops]"
        raise UsageError(f"there is no channel {channel!r} in {settings.home / 'config.toml'}; known: {known}")
    delivery = await try_channel(config, channel, SystemClock(), is_local=settings.is_embedded)
    say(f"{channel}: {delivery.error or 'the receiver accepted the message'}")
    if delivery.error:
        raise typer.Exit(1)


@app.command()
async def retry(
    message: str = typer.Argument("", metavar="[MESSAGE]", help="The message's id, or its end; left out: all."),
    *,
    channel: str = typer.Option("", "--channel", metavar="NAME", help="Only those of this channel."),
) -> None:
    """Send again what was given up; a channel whose receiver answered 410 Gone is used again."""
    message_id = ""
    async with opened_store("send notifications again") as store:
        if message:
            given_up = await store.outbox.notices(include_ended=False, limit=10_000)
            known = sorted({one.message_id for one in given_up if one.message_id and fits(one.message_id, message)})
            if len(known) != 1:
                raise NotFoundError("message that was given up", message)
            message_id = known[0]
        count = await store.outbox.retry(message_id=message_id, channel=channel, now_us=SystemClock().now_us())
    say(f"{number_of(count, 'event')} will be sent again" if count else "nothing was given up")


def _as_json(notices: Sequence[Notice]) -> Document:
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


def _events_text(message: Document) -> str:
    number = len(message["events"])
    return ", ".join(sorted(set(message["events"]))) + (f" ({number})" if number > 1 else "")
