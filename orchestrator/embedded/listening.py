"""Where the HTTP API listens: a socket that is bound before anything is started, loopback by default."""

import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from soong.shared.core.errors import UnavailableError, UsageError

BACKLOG: Final = 128


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
