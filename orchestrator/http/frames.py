"""Server-sent events as bytes: a frame that goes to many readers is encoded once."""

from collections.abc import Iterable
from typing import Final

from soong.orchestrator.http.schemas import json_bytes
from soong.shared.core.jsontext import Json

KEEP_ALIVE: Final = b": keep-alive\n\n"
RETRY: Final = b"retry: 1000\n\n"
END: Final = b"event: end\ndata: {}\n\n"
"""Nothing more will come. A reader that connects again is answered 204, which tells an EventSource to stop."""


def frame_of(head: dict[str, Json], name: str, items: Iterable[bytes], *, event: str) -> bytes:
    """Return one event whose data is ``head`` and a list by this name, of objects that are encoded already."""
    return b'event: %b\ndata: %b,"%b":[%b]}\n\n' % (
        event.encode(),
        json_bytes(head)[:-1],
        name.encode(),
        b",".join(items),
    )


def frame(data: Json, *, id: str = "", event: str = "") -> bytes:
    """Return one event as it is sent; compact JSON has no line break that could end it early."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return b"%bdata: %b\n\n" % (head.encode(), json_bytes(data))
