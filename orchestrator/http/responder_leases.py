"""Callers who are there to answer: a poll that says so holds a responder's lease, and a little longer than itself.

Between two polls of one caller lies a moment without a request; the lease outlives it. A caller who only looks on
(a dashboard) does not say so, and nobody waits for its answer.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from soong.orchestrator.approvals.leases import ResponderLease
from soong.orchestrator.client.client import Client
from soong.shared.core import timing

CHANNEL: Final = "http"


@dataclass(slots=True)
class _KeptLease:
    """One principal's presence: until when, by session, on the loop's clock."""

    lease: ResponderLease
    until_s: dict[str, float] = field(default_factory=dict)
    keeping: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Be there until the last lease has run out; then take the rows back."""
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self.lease.run())
        try:
            while self.until_s:
                self.lease.attend(self.until_s)
                await asyncio.sleep(timing.POLL_ROWS_S)
                self.until_s = {name: until_s for name, until_s in self.until_s.items() if until_s > loop.time()}
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@dataclass(slots=True)
class ResponderLeases:
    """Who is there to answer through one server."""

    client: Client
    _kept: dict[str, _KeptLease] = field(default_factory=dict)

    def stay(self, principal: str, session_ids: Iterable[str]) -> None:
        """Be there for these sessions for one responder's lease from now on."""
        lease_s = self.client.settings.responder_lease_s
        until_s = dict.fromkeys(session_ids, asyncio.get_running_loop().time() + lease_s)
        if not until_s:
            return
        kept = self._kept.get(principal)
        if kept is None:
            kept = _KeptLease(
                ResponderLease(self.client.store.sessions, self.client.notifier, principal, CHANNEL, lease_s)
            )
            self._kept[principal] = kept
        kept.until_s.update(until_s)
        if kept.keeping is None or kept.keeping.done():
            kept.keeping = asyncio.get_running_loop().create_task(kept.keep())
        kept.lease.attend(kept.until_s)

    @property
    def present(self) -> tuple[str, ...]:
        """The principals that are there just now."""
        return tuple(name for name, kept in self._kept.items() if kept.keeping is not None and not kept.keeping.done())

    async def close(self) -> None:
        keeping = [kept.keeping for kept in self._kept.values() if kept.keeping is not None]
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
