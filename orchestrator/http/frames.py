"""Server-sent events as text."""

from typing import Final

from soong.orchestrator.http.schemas import json_bytes
from soong.shared.core.jsontext import Json

KEEP_ALIVE: Final = ": keep-alive\n\n"
RETRY: Final = "retry: 1000\n\n"
END: Final = "event: end\ndata: {}\n\n"
"""Nothing more will come. A reader that connects again is answered 204, which tells an EventSource to stop."""


def frame(data: Json, *, id: str = "", event: str = "") -> str:
    """Return one event as it is sent; compact JSON has no line break that could end it early."""
    lines = [f"id: {id}"] if id else []
    lines += [f"event: {event}"] if event else []
    return "\n".join([*lines, f"data: {json_bytes(data).decode()}", "", ""])
