"""All ports to the rows of a deployment, which an adapter implements over one database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from soong.shared.core import timing
from soong.shared.core.errors import TooSlowError, UnavailableError
from soong.shared.core.log import get_logger
from soong.shared.engine.sessions.session import HeartbeatWriter
from soong.shared.engine.tasks.asks import AskStore
from soong.shared.engine.tasks.event_feed import EventFeed, NotificationOutbox
from soong.shared.engine.tasks.service import Ledger
from soong.shared.permissions.access.token import AccessStore
from soong.shared.permissions.audit_log import AuditStore
from soong.shared.permissions.signing import KeyStore
from soong.shared.permissions.store import ConsentStore

T = TypeVar("T")

log = get_logger(__name__)


class Store(Ledger, Protocol):
    """The rows of one deployment, by what they are about. Each part is a port of its own."""

    @property
    def asks(self) -> AskStore: ...

    @property
    def consent(self) -> ConsentStore: ...

    @property
    def keys(self) -> KeyStore: ...

    @property
    def access(self) -> AccessStore: ...

    @property
    def audit(self) -> AuditStore: ...

    @property
    def feed(self) -> EventFeed: ...

    @property
    def outbox(self) -> NotificationOutbox: ...

    def heartbeat_writer(self) -> HeartbeatWriter:
        """Return a heartbeat with a connection of its own."""

    async def close(self) -> None: ...


async def retry_until_confirmed(write: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Write something that may be written twice; again, a few times, where the answer is an error. Return its result.

    A commit may have been applied although its answer was lost: a caller that gave up then would leave behind what it
    believes not to be there.
    Raises: UnavailableError, the last one; TooSlowError at once: the same again fails again.
    """
    for wait_s in timing.RETRY_S[:4]:
        try:
            return await write()
        except TooSlowError:
            raise
        except UnavailableError as error:
            log.warning("write_unanswered", what=what, error=str(error))
            await asyncio.sleep(wait_s)
    return await write()
