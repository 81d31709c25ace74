"""Error objects and pages with status 200 where a stream was requested.

The providers' clients read them as an empty stream, and their words are lost. Here such an answer gets the status of
its error, so that the client raises it with its body.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

BAD_GATEWAY: Final = 502
"""For a body without a status of its own: a proxy in front of the model wrote it."""
_NO_STREAM: Final = ("application/json", "text/html")
_IS_ASKED: Final = (b'"stream":true', b'"stream": true')


def watch_bodies(model: Any) -> None:
    """Have the HTTP client of a model look at what it gets; again, it changes nothing."""
    while hasattr(model, "wrapped"):
        model = model.wrapped
    client = getattr(getattr(model, "_provider", None), "_own_http_client", None)
    hooks = getattr(client, "event_hooks", None)
    if isinstance(hooks, dict) and name_error not in hooks.get("response", ()):
        client.event_hooks = {**hooks, "response": [*hooks.get("response", ()), name_error]}  # type: ignore[union-attr]  # it has hooks


async def name_error(response: Any) -> None:
    """Give an answer of another kind than a stream the status that its error names."""
    kind = str(response.headers.get("content-type", "")).lower()
    if response.status_code != 200 or not kind.startswith(_NO_STREAM) or not _asks_for_a_stream(response.request):
        return
    body = await response.aread()
    if not body.lstrip().startswith((b"data:", b"event:", b":")):
        response.status_code = _status_of(body)


def _asks_for_a_stream(request: Any) -> bool:
    return "stream" in str(request.url).lower() or any(words in request.content for words in _IS_ASKED)


def _status_of(body: bytes) -> int:
    with suppress(ValueError, RecursionError):
        found = json.loads(body)
        error = found.get("error") if isinstance(found, Mapping) else None
        code = str(error.get("code", "")) if isinstance(error, Mapping) else ""
        if code.isdecimal() and 400 <= int(code) < 600:
            return int(code)
    return BAD_GATEWAY
