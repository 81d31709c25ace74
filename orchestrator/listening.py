"""Where the HTTP API listens: a socket that is bound before anything is started, loopback unless told otherwise."""

import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from shared.errors import UsageError

BACKLOG: Final = 128


def listen(host: str, port: int, allow_hosts: Sequence[str]) -> socket.socket:
    """Bind a socket. Port 0 takes a free one.

    Raises:
        UsageError: the address cannot be had, or reaches beyond this machine without a host being allowed by name.
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
        taken = error.errno == errno.EADDRINUSE
        problem = "another program listens there" if taken else str(error.strerror or error)
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
