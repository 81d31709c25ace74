"""Being there to answer: the rows by which a responder tells owners that somebody could be asked.

A row is alive while it beats. One that was declared gone is created again with another id; all are removed at the end.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from soong.shared.core.errors import SoongError, UnavailableError
from soong.shared.core.ids import new_id
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import Responder
from soong.shared.engine.sessions.store import SessionStore
from soong.shared.engine.wire.notifier import Notifier

log = get_logger(__name__)


@dataclass(slots=True)
class ResponderLease:
    """The presence of one responder in the sessions that it answers for. ``run`` keeps it until it is cancelled."""

    store: SessionStore
    notifier: Notifier
    principal: str
    channel: str
    lease_s: float
    _wanted: frozenset[str] = frozenset()
    _rows: dict[str, str] = field(default_factory=dict)
    """Responder ids by session."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def attend(self, session_ids: Iterable[str]) -> None:
        """Be there for exactly these sessions from now on."""
        wanted = frozenset(session_ids)
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Beat until cancelled; while the database is away it keeps trying."""
        try:
            while True:
                self._changed.clear()
                await self._beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.lease_s / 3):
                        await self._changed.wait()
        finally:
            for row in self._rows.values():
                with suppress(SoongError):
                    await asyncio.shield(self.store.detach_responder(row))

    async def _beat(self) -> None:
        try:
            for session_id in sorted(self._rows.keys() - self._wanted):
                await self.store.detach_responder(self._rows.pop(session_id))
            for session_id in sorted(self._wanted):
                if session_id not in self._rows or not await self.store.beat_responder(self._rows[session_id]):
                    await self._attach(session_id)
        except UnavailableError as error:
            log.warning("responder_beat_unanswered", error=str(error))

    async def _attach(self, session_id: str) -> None:
        row = self._rows[session_id] = new_id("resp")
        await self.store.attach_responder(Responder(row, session_id, self.principal, self.channel))
        await self.notifier.notify_owners([session_id])
