"""The operations in their user's process: for a deployment of two URLs, a stopped home, and a protocol over a pipe."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from soong.orchestrator.approvals.approval import check_person, provenance_here
from soong.orchestrator.client.bootstrap import open_artifacts, open_client, open_metrics
from soong.orchestrator.embedded.starter import Attachment
from soong.orchestrator.http.app import make_routes
from soong.orchestrator.operations.authentication import local_caller
from soong.orchestrator.operations.calls import DirectCalls
from soong.orchestrator.operations.context import ServiceParts
from soong.shared.permissions.access.token import Right

Attached = Callable[[bool], Awaitable[Attachment]]
"""Holds a service, and starts one where there is none and it may."""


@dataclass(slots=True)
class OwnApi:
    """The operations over the rows of a deployment, for the user of this process. Its creator closes it.

    A call after the end of the service attaches again. ``purpose`` is what the process does in a person's name; a
    program of a run is refused it. Without a purpose such a program has the rights that it may have.
    """

    channel: str
    attached: Attached
    rights: frozenset[Right] = frozenset(Right)
    purpose: str = ""
    _attachment: Attachment | None = None
    _may_start: bool = False
    _service: ServiceParts | None = None
    _calls: DirectCalls | None = None
    _ended: "asyncio.Task[object] | None" = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def calls(self, *, may_start: bool) -> DirectCalls:
        """Return the operations over the rows alone, or at a service, which is then held. Raises: SoongError."""
        async with self._opening:
            is_lost = self._ended is not None and self._ended.done()
            if is_lost or self._calls is None or (may_start and not self._may_start):
                await self.close()
                self._may_start = may_start
                try:
                    self._calls = await self._opened()
                except BaseException:
                    await self.close()
                    raise
            return self._calls

    async def _opened(self) -> DirectCalls:
        attachment = self._attachment = await self.attached(self._may_start)
        settings = attachment.settings
        client = await open_client(settings, is_reading=not self._may_start)
        self._service = ServiceParts(client, open_metrics(settings), open_artifacts(settings), takes_modules=True)
        sessions = client.store.sessions
        provenance = await (check_person(sessions, self.purpose) if self.purpose else provenance_here(sessions))
        if attachment.control is not None:
            self._ended = asyncio.ensure_future(attachment.control.ended())
        caller = local_caller(settings.principal, provenance, self.channel, client.clock.now_us(), self.rights)
        return DirectCalls(make_routes(self._service), caller)

    async def close(self) -> None:
        """Let go of the rows, then of the service. Idempotent."""
        ended, self._ended, self._calls = self._ended, None, None
        if ended is not None:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
        service, self._service = self._service, None
        if service is not None:
            service.stop()
            await service.close()
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            await attachment.release()
