"""The API for the user of this machine, in the user's own process: no socket, no token, the rights that are asked for.

The first call attaches to a service, or starts one; a call after the end of the service does so again. So the user's
connection does not wait for a service, and outlives it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from soong.orchestrator.approvals.approval import check_person
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.embedded.starter import Attachment
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.mcp.api import ApiCalls
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.context import ServiceParts
from soong.shared.permissions.access.token import Right


@dataclass(slots=True)
class ServiceLink:
    """The calls of one user, over whichever service lives. Its creator closes it."""

    attached: Callable[[], Awaitable[Attachment]]
    rights: frozenset[Right]
    channel: str
    project: str
    _calls: ApiCalls | None = None
    _ended: asyncio.Task[object] | None = None
    _held: AsyncExitStack = field(default_factory=AsyncExitStack)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def calls(self) -> ApiCalls:
        """Return the calls, attaching first where need be.

        Raises:
            StartedByRunError: a run started this process.
            UnavailableError, SchemaVersionError, InvalidConfigError: the service cannot be used.
        """
        async with self._opening:
            if self._ended is not None and self._ended.done():
                await self.close()
            if self._calls is None:
                try:
                    self._calls = await self._opened()
                except BaseException:
                    await self.close()
                    raise
            return self._calls

    async def _opened(self) -> ApiCalls:
        attachment = await self.attached()
        self._held.push_async_callback(attachment.release)
        settings = attachment.settings
        service = ServiceParts(await open_client(settings), open_metrics(settings), open_artifacts(settings))
        self._held.push_async_callback(service.close)
        provenance = await check_person(service.client.store.sessions, "serve MCP")
        now_us = service.client.clock.now_us()
        caller = local_caller(settings.principal, provenance, self.channel, now_us, self.rights)
        if attachment.control is not None:
            self._ended = asyncio.ensure_future(attachment.control.ended())
        self._held.callback(service.stop)
        return ApiCalls(make_routes(service), caller, self.project)

    async def close(self) -> None:
        """Let go of the rows, then of the service. Idempotent."""
        ended, self._ended, self._calls = self._ended, None, None
        if ended is not None:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        await self._held.aclose()
