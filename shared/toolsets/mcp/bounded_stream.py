"""The body of an answer over HTTP, read up to a limit: what a server says is held in memory."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import httpx2


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
