"""The body of an answer over HTTP as the SDK reads it: its messages have passed the intake."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

import httpx2

from soong.shared.core import timing
from soong.shared.core.jsontext import dump
from soong.shared.toolsets.mcp.intake import END_BYTES, MAX_LINE_BYTES, Intake, Message


@dataclass(slots=True)
class AnswerStream(httpx2.AsyncByteStream):
    """A body of one JSON document or of server-sent events, each of at most ``MAX_LINE_BYTES``."""

    stream: httpx2.AsyncByteStream
    intake: Intake
    is_events: bool
    _data: list[bytes] = field(default_factory=list)
    _held: int = 0
    """The bytes of the lines of data."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = bytearray()
        async for piece in self.stream:
            content += piece
            if len(content) + self._held > MAX_LINE_BYTES:
                failed = self.intake.too_long(bytes(content[:END_BYTES]))
                yield b"".join(_events(failed) if self.is_events else map(_written, failed))
                return
            if self.is_events and (b"\n" in piece or b"\r" in piece):
                lines = bytes(content).splitlines(keepends=True)
                rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
                content = bytearray(rest)
                yield b"".join(self._read(lines))
        if self.is_events:
            yield b"".join(self._read(bytes(content).splitlines()))
        elif (message := self.intake.document(bytes(content))) is not None:
            yield _written(message)

    async def aclose(self) -> None:
        await self.stream.aclose()

    def _read(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield lines of events with data that the SDK takes."""
        for line in map(bytes.rstrip, lines):
            if line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
                self._held += len(line)
            elif line.startswith(b"retry:"):
                digits = line.removeprefix(b"retry:").strip()[:9]
                yield b"retry: %d\n" % max(round(timing.RETRY_EVERY_S * 1000), int(digits) if digits.isdigit() else 0)
            elif line:
                yield line + b"\n"
            else:
                text = b"\n".join(self._data)
                yield from _events(self.intake.messages(text)) if text else [b"data:\n"] * len(self._data)
                self._data.clear()
                self._held = 0
                yield b"\n"


def _events(messages: Iterable[Message]) -> Iterator[bytes]:
    for message in messages:
        yield b"data: " + _written(message) + b"\n\n"


def _written(message: Message) -> bytes:
    return dump(message).encode()


@dataclass(frozen=True, slots=True)
class BoundedStream(httpx2.AsyncByteStream):
    """A body of at most ``most_bytes``; reading more raises what ``refusal`` returns."""

    stream: httpx2.AsyncByteStream
    most_bytes: int
    refusal: Callable[[], Exception]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self.stream:
            size += len(piece)
            if size > self.most_bytes:
                raise self.refusal()
            yield piece

    async def aclose(self) -> None:
        await self.stream.aclose()
