"""The API for the user of this machine, in the user's own process: no socket, no token, the rights that are asked for.

The first call attaches to a service, or starts one; a call after the end of the service does so again. So the user's
connection does not wait for a service, and outlives it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from soong.orchestrator.approvals.provenance import check_person
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.embedded.starter import Attachment
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.http.mcp_endpoint import DirectCalls
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import ServiceParts
from soong.orchestrator.operations.peers import Peer
from soong.shared.permissions.access.token import ApiToken, Right

OWN = "own"
"""What the record of an answer says in place of a token's id."""


@dataclass(slots=True)
class OwnCalls:
    """Attached to one service: the parts of the API over its rows, and the calls of its user. Its creator closes it."""

    attachment: Attachment
    service: ServiceParts
    calls: DirectCalls
    _ended: asyncio.Task[object] | None = None

    @classmethod
    async def open(cls, attachment: Attachment, rights: frozenset[Right], channel: str, project: str) -> "OwnCalls":
        """Open the rows of the attached service.

        Raises:
            StartedByRunError: a run started this process.
            UnavailableError, SchemaVersionError, InvalidConfigError: the service cannot be used.
        """
        settings = attachment.settings
        service = ServiceParts(await open_client(settings), open_metrics(settings), open_artifacts(settings))
        try:
            provenance = await check_person(service.client.store.sessions, "serve MCP")
            token = ApiToken(OWN, settings.principal, rights, "", service.client.clock.now_us())
            caller = Caller(token, Peer(provenance), channel)
            opened = cls(attachment, service, DirectCalls(make_routes(service), caller, project))
        except BaseException:
            await service.close()
            raise
        if attachment.control is not None:
            opened._ended = asyncio.ensure_future(attachment.control.ended())
        return opened

    @property
    def has_ended(self) -> bool:
        """Whether the service has ended since."""
        return self._ended is not None and self._ended.done()

    async def close(self) -> None:
        """Let go of the rows, then of the service."""
        self.service.stop()
        if self._ended is not None:
            self._ended.cancel()
            await asyncio.gather(self._ended, return_exceptions=True)
        await self.service.close()
        await self.attachment.release()


@dataclass(slots=True)
class ServiceLink:
    """The calls of one user, over whichever service lives. Its creator closes it."""

    attached: Callable[[], Awaitable[Attachment]]
    rights: frozenset[Right]
    channel: str
    project: str
    _own: OwnCalls | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def calls(self) -> DirectCalls:
        """Return the calls, attaching first where need be. Raises: as :meth:`OwnCalls.open`."""
        async with self._opening:
            if self._own is not None and self._own.has_ended:
                await self.close()
            if self._own is None:
                attachment = await self.attached()
                try:
                    self._own = await OwnCalls.open(attachment, self.rights, self.channel, self.project)
                except BaseException:
                    await attachment.release()
                    raise
            return self._own.calls

    async def close(self) -> None:
        """Let go of the service. Idempotent."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()
