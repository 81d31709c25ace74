"""The way out: an HTTP client that connects only to what was permitted, checked at the connection and at each redirect.

A name is resolved once, every address it gives is judged, and the connection is made to an address that was judged:
what a name resolves to afterwards (rebinding) changes nothing. Proxies of the environment are not used, they would
resolve names themselves. Connections are not kept, so none that was opened for one host serves another.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from soong.shared.sandbox.egress import EgressPolicy, Resolver

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS: Final = 5


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host by the system's resolver.

    Raises:
        OSError: it has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


@asynccontextmanager
async def open_client(
    reachable: EgressPolicy, *, timeout: timedelta, resolver: Resolver = resolve, user_agent: str = "soong"
) -> "AsyncIterator[httpx2.AsyncClient]":
    """Open an HTTP client for one call. It follows redirects as far as ``reachable`` goes; beyond, a request raises
    HostRefusedError and nothing has been sent there.
    """
    import httpx2  # a quarter of a second: only calls that use it pay

    from soong.shared.sandbox.guarded import GuardedTransport

    async with httpx2.AsyncClient(
        transport=GuardedTransport(reachable, resolver),
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        timeout=timeout.total_seconds(),
        trust_env=False,
        headers={"user-agent": user_agent},
    ) as client:
        yield client
