"""The HTTP API's port across the lives of a service.

The child that serves the API has the listening socket by inheritance, so it may outlive a service that is killed. The
service and that child hold a shared lock on ``http.lock`` in the home. A new service that finds its port held reads
from the lock whether a former child of its own is the holder, which leaves the port soon, or another program.
"""

import asyncio
import fcntl
import os
import socket
from pathlib import Path
from typing import Final

from soong.orchestrator.embedded.listening import PortHeldError, listen
from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings

log = get_logger(__name__)

LOCK_FILE: Final = "http.lock"


class HttpLock:
    """The mark of a service that has an HTTP API, and of the child that serves it. Its creator closes it."""

    def __init__(self, home: Path) -> None:
        self.descriptor = _opened(home)
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let go; the lock stays held as long as the child lives, which has the descriptor too. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def sign(descriptor: int) -> None:
    """Write this process's id into the lock file, as the one that serves the API."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def former_child(home: Path) -> str | None:
    """Return the process id of a living child of a former service, as it wrote it; None when there is none.

    The caller holds the service lock of the home and no :class:`HttpLock`.
    """
    descriptor = _opened(home)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 20, 0).decode("ascii", "replace") or "unknown"
    finally:
        os.close(descriptor)
    return None


async def listen_after_former(settings: Settings, *, limit_s: float = timing.END_LIMIT_S) -> socket.socket:
    """Bind the port of the HTTP API, waiting while a former child of this home still holds it.

    Raises:
        PortHeldError: another program holds it, or the former child does not leave it in time.
        UsageError: the address cannot be used.
    """
    loop, awaited = asyncio.get_running_loop(), ""
    deadline_s = loop.time() + limit_s
    while True:
        try:
            return listen(settings.http_host, settings.http_port or 0, settings.http_allow_hosts)
        except PortHeldError as error:
            pid = former_child(settings.home)
            if pid is None:
                raise
            if loop.time() > deadline_s:
                holder = (
                    f"process {pid}, the HTTP API of a former service of {str(settings.home)!r}, still listens there"
                )
                raise PortHeldError(error.host, error.port, f"{holder}; end that process") from None
            if awaited != pid:
                log.info("http_port_awaited", port=error.port, pid=pid)
                awaited = pid
        await asyncio.sleep(timing.POLL_PROCESS_S)


def _opened(home: Path) -> int:
    return os.open(home / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
