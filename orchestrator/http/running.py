"""One server from its settings to its end: what it opens, it closes."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.http.context import Api
from soong.orchestrator.http.server import serve
from soong.shared.core.settings import Settings


async def run(
    settings: Settings,
    listener: socket.socket,
    stop: Callable[[], Awaitable[Any]],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve the deployment that the settings name until ``stop`` returns; it is called once the parts are open.

    Raises:
        InvalidConfigError: no Redis is named.
        UsageError: a host or an origin is not valid.
        UnavailableError, SchemaVersionError: the database cannot be used.
    """
    api = Api(await open_client(settings), open_metrics(settings), open_artifacts(settings))
    try:
        await serve(api, settings, listener, stop, ready)
    finally:
        await asyncio.shield(api.close())
