"""The messages of an agent's process, bounded: it is a foreign program, and whatever it writes is taken with care.

Implements the transport of the SDK's connection. A line that is too long, or too many that are not messages, end the
connection; a few lines of other text are what programs print when they start.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from soong.shared.sandbox.duplex import DuplexProcess

MAX_GARBAGE_LINES: Final = 100
MAX_BYTES: Final = 512 * 1024 * 1024
"""Of all messages of a run."""


class AgentProtocolError(Exception):
    """What the process writes is not the protocol; says what."""


@dataclass(slots=True)
class ProcessTransport:
    """One process's. ``heard`` is called for each message; ``failed`` once, with what is wrong."""

    process: DuplexProcess
    heard: Callable[[], object]
    failed: Callable[[AgentProtocolError], object]
    room: asyncio.Event
    """Is set while the client takes more requests."""
    is_mute: bool = False
    """Nothing is sent any more: the process is being ended, and what it hears now it would take for an answer."""
    _garbage: int = 0
    _bytes: int = 0

    async def send(self, message: dict[str, Any]) -> None:
        """Raises: ConnectionError, when the process is gone."""
        if self.is_mute:
            return
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        self.process.input.write(line)
        await self.process.input.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end, and when the process does not keep to the protocol."""
        try:
            return await self._next()
        except AgentProtocolError as error:
            self.failed(error)
            return None

    async def close(self) -> None:
        """The process is ended by the run that started it."""

    async def _next(self) -> dict[str, Any] | None:
        while True:
            # The SDK begins a task for each message: those before it run first, and no flood piles up.
            await asyncio.sleep(0)
            await self.room.wait()
            try:
                line = await self.process.output.readline()
            except ValueError as error:
                raise AgentProtocolError(f"it sent a message that is too long: {error}") from None
            if not line:
                return None
            self._bytes += len(line)
            if self._bytes > MAX_BYTES:
                raise AgentProtocolError(f"it sent more than {MAX_BYTES} bytes")
            self.heard()
            message = _message(line)
            if message is not None:
                return message
            self._garbage += bool(line.strip())
            if self._garbage > MAX_GARBAGE_LINES:
                raise AgentProtocolError(f"it sent more than {MAX_GARBAGE_LINES} lines that are not messages")


def _message(line: bytes) -> dict[str, Any] | None:
    """Return the message that a line is; None for other text."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_message = isinstance(value, dict) and value.get("jsonrpc") == "2.0"
    is_sound = is_message and isinstance(value.get("method", ""), str) and isinstance(value.get("id", 0), int | str)
    return value if is_sound else None
