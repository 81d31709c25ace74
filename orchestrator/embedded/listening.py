"""Where the HTTP API listens: a socket that is bound before anything is started, and the port that a home keeps."""

import asyncio
import errno
import fcntl
import os
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings

BACKLOG: Final = 128

log = get_logger(__name__)
LOCK_FILE: Final = "http.lock"


class PortHeldError(UnavailableError):
    """Another process listens at the address; ``problem`` says which and what to do."""

    def __init__(self, host: str, port: int, problem: str) -> None:
        self.host = host
        self.port = port
        super().__init__(f"the HTTP API cannot listen on {host} port {port}: {problem}")


def listen(host: str, port: int, allow_hosts: Sequence[str]) -> socket.socket:
    """Bind a socket. Port 0 takes a free one.

    Raises:
        PortHeldError: another process listens there.
        UsageError: the address cannot be used, or reaches beyond this machine without a host being allowed by name.
    """
    if not is_loopback(host) and not allow_hosts:
        raise UsageError(
            f"{host} is reached from other machines: name the hosts under which it may be called with --allow-host "
            "(SOONG_HTTP_ALLOW_HOSTS), and put TLS in front of it"
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortHeldError(
                host, port, "another program listens there; end that program, or choose another port"
            ) from error
        problem = error.strerror or str(error)
        raise UsageError(f"the HTTP API cannot listen on {host} port {port}: {problem}; choose another") from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address under which a socket is reached, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Say whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
