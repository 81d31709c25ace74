"""The desktop of this machine: notify-send on Linux, osascript on macOS. Only an embedded service uses it."""

import asyncio
import html
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from soong.orchestrator.notifications.channels.channel import Delivery
from soong.orchestrator.notifications.message import Message
from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.programs import child_environment, find_own_program

MAX_TEXT: Final = 500
SESSION: Final = ("DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")
"""Variables by which notify-send finds the desktop."""
_SCRIPT: Final = (
    *("-e", "on run argv"),
    *("-e", "display notification (item 2 of argv) with title (item 1 of argv)"),
    *("-e", "end run"),
)


class DesktopChannel(Value):
    """Implements :class:`soong.orchestrator.notifications.channels.channel.Channel`."""

    is_local: bool
    platform: str = sys.platform

    async def send(self, message: Message) -> Delivery:
        if not self.is_local:
            return Delivery("this orchestrator serves other machines too; a desktop is notified by `soong up` alone")
        name = "osascript" if self.platform == "darwin" else "notify-send"
        try:
            program = find_own_program(name, ())
        except PathRefusedError:
            return Delivery(f"there is no program {name} on this machine; install it, or use another channel")
        return await _run(command_of(program, message, self.platform))


def command_of(program: Path, message: Message, platform: str) -> list[str]:
    """Return the command. Its words are public on this machine, and hold nothing secret.

    notify-send reads markup in its second text, and options in what begins with ``-``.
    """
    title, text = f"Soong: {message.title}", "\n".join(message.lines)[:MAX_TEXT]
    if platform == "darwin":
        return [str(program), *_SCRIPT, title, text]
    urgency = "critical" if message.is_question else "normal"
    return [str(program), "--app-name=Soong", f"--urgency={urgency}", "--", title, html.escape(text)]


async def _run(command: Sequence[str]) -> Delivery:
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=quiet, stdout=quiet, stderr=quiet, env=_environment()
        )
    except OSError as error:
        return Delivery(f"{command[0]} cannot be started ({type(error).__name__})")
    try:
        async with asyncio.timeout(timing.EXCHANGE_LIMIT_S):
            code = await process.wait()
    except TimeoutError:
        return Delivery(f"{command[0]} took longer than {timing.EXCHANGE_LIMIT_S:g} s")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return Delivery() if code == 0 else Delivery(f"{command[0]} ended with code {code}; is there a desktop session?")


def _environment() -> Mapping[str, str]:
    return child_environment(SESSION)
