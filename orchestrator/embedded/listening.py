"""The socket of the HTTP API, which is bound before anything is started, and the port that a home keeps."""

import asyncio
import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings

BACKLOG: Final = 128

log = get_logger(__name__)


class PortHeldError(UnavailableError):
    """Another process listens at the address."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"the HTTP API cannot listen on {host} port {port}: another program listens there; end that program, "
            "or choose another port"
        )


def listen(host: str, port: int, allow_hosts: Sequence[str]) -> socket.socket:
    """Bind a socket. Port 0 takes a free one.
    Raises: PortHeldError, another process listens there; UsageError, the address cannot be used, or reaches beyond this
    machine without a host being allowed by name.
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
            raise PortHeldError(host, port) from error
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


async def listen_after_former(settings: Settings, *, limit_s: float = timing.CLOSE_LIMIT_S) -> socket.socket:
    """Bind the port of the HTTP API, waiting for a short while: the child of a former service leaves it soon.
    Raises: PortHeldError, another program holds it; UsageError, the address cannot be used.
    """
    loop, is_told = asyncio.get_running_loop(), False
    deadline_s = loop.time() + limit_s
    while True:
        try:
            return listen(settings.http_host, settings.http_port or 0, settings.http_allow_hosts)
        except PortHeldError:
            if loop.time() > deadline_s:
                raise
        if not is_told:
            log.info("http_port_awaited", port=settings.http_port)
            is_told = True
        await asyncio.sleep(timing.POLL_PROCESS_S)
