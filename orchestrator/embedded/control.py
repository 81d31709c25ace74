"""The control socket of an embedded service: who it is, who is attached, stop, hand over.

JSON, one line per message, over a unix socket in a 0700 folder: every client is the same user. A connection that has
said ``attach`` keeps an ephemeral service alive until it closes; a client that dies closes it by dying.

A command and its service compare their environments by a digest: a difference would make other rows.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from soong.shared.core.errors import UnavailableError
from soong.shared.core.jsontext import Json
from soong.shared.core.secret_values import SECRET_ENDINGS

CONTROL_VERSION = 1
LINE_LIMIT_BYTES = 64 * 1024
HAND_OVER = "hand_over"
MAKE_WAY = "make_way"
STARTER: Final = "SOONG_STARTER"
"""The variable by which a service knows the digest of the environment of the command that has started it."""
_OF_THE_REQUEST: Final = frozenset({"SOONG_AGENT_HOME", "SOONG_MODEL"})
"""Variables that choose the service, or that a request carries itself."""


class ShutdownState(StrEnum):
    """How a service ended, as its clients see it. Each value but ``DIED`` is the event that was sent before."""

    DIED = "died"
    STOPPING = "stopping"
    HANDED_OVER = "handed_over"
    """Another service takes the home: attach to that one."""


_ENDINGS = {str(ending): ending for ending in ShutdownState}

ControlReply = Mapping[str, Json]


@dataclass(slots=True)
class ControlServer:
    """Answers ``hello``, ``attach``, ``status``, ``stop``, ``hand_over`` and ``make_way``.

    ``make_way`` asks an ephemeral service to end as soon as nobody needs it. ``status`` returns the service's own
    facts. ``stop`` begins its stop and returns at once; so does ``hand_over``, which returns whether it does.
    """

    path: Path
    status: Callable[[], ControlReply]
    stop: Callable[[], None]
    hand_over: Callable[[], bool]
    attached: int = 0
    ever_attached: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_in_the_way: bool = False
    """A client waits for the end of this service, to start its own."""
    is_closing: bool = False
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _serving: set["asyncio.Task[None]"] = field(default_factory=set)

    async def start(self) -> None:
        """Bind the socket. The caller holds the service lock, so a socket that is there belongs to nobody."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(self.path), limit=LINE_LIMIT_BYTES)
        self.path.chmod(0o600)

    def close_if_unattached(self) -> bool:
        """Let nobody attach any more unless somebody has; say whether it is closed. No await lies between the two."""
        self.is_closing = self.is_closing or not self.attached
        return self.is_closing

    async def refuse(self, ending: ShutdownState) -> None:
        """Refuse more clients, and send the attached ones the ending: the connection's end is then not a failure."""
        self.is_closing = True
        self.path.unlink(missing_ok=True)
        for writer in list(self._writers):
            writer.write(_line({"event": str(ending)}))

    async def close(self) -> None:
        """Close every connection: clients see the end of the service as the end of theirs."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        is_attached = False
        try:
            while line := await reader.readline():
                message = json.loads(line)
                operation = str(message.get("op", "")) if isinstance(message, dict) else ""
                if operation == "attach" and not self.is_closing and not is_attached:
                    is_attached = True
                    self._count(1)
                writer.write(_line(self._answer(operation, is_attached=is_attached)))
                await writer.drain()
        except (OSError, ValueError):
            pass  # a client that is gone or talks nonsense has no claim on us
        finally:
            if is_attached:
                self._count(-1)
            self._writers.discard(writer)
            writer.close()

    def _count(self, change: int) -> None:
        self.attached += change
        self.ever_attached = True
        self.changed.set()

    def _answer(self, operation: str, *, is_attached: bool) -> ControlReply:
        match operation:
            case "hello" | "status":
                return {"ok": True, **self.status()}
            case "attach":
                return {"ok": is_attached, "problem": "" if is_attached else "stopping", "pid": os.getpid()}
            case "stop":
                self.stop()
                return {"ok": True}
            case "make_way":
                self.is_in_the_way = True
                self.changed.set()
                return {"ok": True, "attached": self.attached}
            case "hand_over":
                return {"ok": self.hand_over()}
            case _:
                return {"ok": False, "problem": f"unknown operation {operation!r}"}


@dataclass(slots=True)
class ControlClient:
    """One connection to a control socket. While it is open after ``attach``, an ephemeral service stays."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, path: str | Path, *, timeout_s: float = 2.0) -> "ControlClient":
        """Connect. Raises: UnavailableError."""
        try:
            async with asyncio.timeout(timeout_s):
                return cls(*await asyncio.open_unix_connection(str(path), limit=LINE_LIMIT_BYTES))
        except (OSError, TimeoutError) as error:
            raise UnavailableError(
                f"the control socket {str(path)!r} does not answer: {str(error) or 'timeout'}"
            ) from error

    async def ask(self, operation: str, *, timeout_s: float = 2.0) -> dict[str, Json]:
        """Send one operation and return the answer. Raises: UnavailableError."""
        try:
            async with asyncio.timeout(timeout_s):
                self.writer.write(_line({"v": CONTROL_VERSION, "op": operation}))
                await self.writer.drain()
                line = await self.reader.readline()
                answer = json.loads(line) if line else None
        except (OSError, TimeoutError, ValueError) as error:
            raise UnavailableError(f"the service does not answer: {str(error) or 'timeout'}") from error
        if not isinstance(answer, dict):
            raise UnavailableError("the service closed the connection")
        return answer

    async def ended(self) -> ShutdownState:
        """Return how the service ended, when it has closed the connection."""
        ending = ShutdownState.DIED
        with suppress(OSError, ValueError):
            while line := await self.reader.readline():
                event = json.loads(line).get("event")
                ending = _ENDINGS.get(event, ending)
        return ending

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


def recorded(home: Path) -> dict[str, Json]:
    """Return what the service of a home has recorded of itself. Raises: OSError."""
    try:
        return dict(json.loads((home / "service.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise OSError("no record of a service that can be read") from error


def control_of(home: Path) -> str | None:
    """Return the control socket that the service of a home has recorded, if there is a record."""
    with suppress(OSError, KeyError):
        return str(recorded(home)["control"])
    return None


async def join_home(home: Path) -> ControlClient | None:
    """Attach to the service that a home has recorded; None: there is none, it does not answer or has begun to stop."""
    try:
        record = recorded(home)
        control = await ControlClient.open(str(record["control"]))
    except (OSError, KeyError, UnavailableError):
        return None
    with suppress(UnavailableError):
        answer = await control.ask("attach")
        if answer.get("ok") is True and answer.get("pid") == record.get("pid"):
            return control
    await control.close()
    return None


async def ask_once(path: str | Path, operation: str, *, timeout_s: float = 2.0) -> dict[str, Json]:
    """Connect, ask one thing, close. Raises: UnavailableError."""
    client = await ControlClient.open(path, timeout_s=timeout_s)
    try:
        return await client.ask(operation, timeout_s=timeout_s)
    finally:
        await client.close()


def _line(value: ControlReply) -> bytes:
    return json.dumps({"v": CONTROL_VERSION, **value}).encode() + b"\n"


def environment_digest(environment: Mapping[str, str] = os.environ) -> str:
    """Return a digest of the variables that change what a command writes: settings, the home of ``~``, and secrets.

    Secrets count because each process keeps those of its own environment out of the rows (EVT-05). For a service that
    a command has started, these are the variables of that command.
    """
    if STARTER in environment:
        return environment[STARTER]
    wanted = {
        name: value
        for name, value in environment.items()
        if (name == "HOME" or name.startswith("SOONG_") or name.upper().endswith(SECRET_ENDINGS))
        and name not in _OF_THE_REQUEST
    }
    text = json.dumps(wanted, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
