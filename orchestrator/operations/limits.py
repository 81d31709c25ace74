"""How much of the service its callers may hold at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core.value import Value

CALLER: Final = "soong.caller"
"""The key of a request's sender in its scope."""


class Limits(Value):
    """Constants of the product; tests move them instead of waiting."""

    body_bytes: int = 2 * 1024 * 1024
    large_plan_bytes: int = 64 * 1024
    large_plans: int = 2
    """Checked at once: each may take 150 MiB and seconds of CPU time. Smaller ones do not wait for them."""
    artifact_reads: int = 2
    """At once: each may hold 256 MiB."""
    body_s: float = 20.0
    """From the end of the headers to the end of the body."""
    headers_s: float = 15.0
    """From the connection, or the first byte of another request, to the end of its headers."""
    idle_s: int = 30
    """Between two requests of a connection."""
    connections: int = 896
    """Below the 1,024 open files that a process has by default."""
    requests: int = 768
    """Held at once, long polls and streams among them."""
    streams: int = 640
    """Long polls and streams, so that ordinary requests always find room. A browser with the console holds two."""
    streams_each: int = 128
    """Per principal: none takes all."""
    stop_s: float = 8.0
    """From the stop of the server to the end of what is under way then."""
    keep_alive_s: float = 15.0
    """Between two signs of life on a stream; so often its caller's token is checked, too."""


@dataclass(slots=True)
class RequestLimiter:
    """How much is held at once. A request beyond it is refused at once: nothing waits in line unseen."""

    most: int
    most_each: int
    held: Counter[str] = field(default_factory=Counter)
    total: int = 0

    @contextmanager
    def taken(self, who: str = "") -> Iterator[None]:
        """Hold one place. Raises: ProblemError (too_busy)."""
        if self.total >= self.most or self.held[who] >= self.most_each:
            detail = "as many are open as are held at once; close some, or try again"
            raise ProblemError(ProblemCode.TOO_BUSY, detail, headers={"Retry-After": "2"})
        self.held[who] += 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self.held[who] -= 1
            if not self.held[who]:
                del self.held[who]
