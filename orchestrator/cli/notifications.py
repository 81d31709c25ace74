"""``soong notifications``: what is sent outside, and whether it arrives (OPS-11)."""

import typer

from soong.orchestrator.cli.options import JSON, CommandTable
from soong.orchestrator.operations.administration import NOTICES_SHOWN, messages, send_again
from soong.orchestrator.terminal.console import Columns, listed, number_of, say, second_of
from soong.shared.core.config import load_config
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock

app = CommandTable()


@app.command("list")
async def list_command(
    *,
    is_all: bool = typer.Option(False, "--all", help=f"Sent and dropped ones too, of the last {NOTICES_SHOWN} events."),
    is_json: bool = JSON,
) -> None:
    """List messages that wait or were given up."""
    columns: Columns = {
        "message": lambda one: one["id"] or "-",
        "channel": "channel",
        "state": "state",
        "events": lambda one: (
            ", ".join(sorted({*one["events"]})) + (f" ({number})" if (number := len(one["events"])) > 1 else "")
        ),
        "attempts": "attempts",
        "next or end": lambda one: second_of(one["due"] or one["ended"]),
        "error": "error",
    }
    empty = "nothing was sent" if is_all else "nothing waits; `soong notifications list --all` shows what was sent"
    listed(
        await messages(include_ended=is_all), columns, is_json=is_json, uncut=("error",), empty=empty, name="messages"
    )


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
    count = await send_again(message, channel)
    say(f"{number_of(count, 'event')} will be sent again" if count else "nothing was given up")
