"""The way out: an HTTP client that connects only to what was permitted, checked at the connection and at each redirect.

A name is resolved once, every address it gives is judged, and the connection is made to an address that was judged: a
later resolution (rebinding) changes nothing. Proxies of the environment are not used, they would resolve names
themselves. Connections are not kept, so none that was opened for one host serves another. Only calls that use it import
this module, as the HTTP library costs a quarter of a second.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx2

from soong.shared.sandbox.hosts import MAX_REDIRECTS, EgressPolicy, Resolver, checked_addresses


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request, redirects included, to an address that was judged for its host.

    The library is given the address in place of the name; the name stays in the Host header and in the TLS handshake,
    where the certificate is checked against it.
    """

    def __init__(self, reachable: EgressPolicy, resolver: Resolver) -> None:
        self._reachable = reachable
        self._resolver = resolver
        # A kept connection is found again by its address, which two hosts may share.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request. Raises: HostRefusedError; errors of the library."""
        host = self._reachable.check_url(str(request.url))
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        seconds = request.extensions.get("timeout", {}).get("connect")
        async with asyncio.timeout(seconds):
            addresses = await checked_addresses(self._reachable, host, port, self._resolver)
        *others, last = addresses
        for address in others:
            try:
                return await self._inner.handle_async_request(_at(request, host, address))
            except httpx2.ConnectError:
                continue
        return await self._inner.handle_async_request(_at(request, host, last))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _at(request: httpx2.Request, host: str, address: str) -> httpx2.Request:
    """Return the request as it is sent to one address of its host."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": host},
    )


@asynccontextmanager
async def open_client(
    reachable: EgressPolicy, *, timeout: timedelta, resolver: Resolver, user_agent: str = "soong"
) -> AsyncIterator[httpx2.AsyncClient]:
    """Open an HTTP client for one call. It follows redirects as far as ``reachable`` goes; beyond, a request raises
    HostRefusedError and nothing has been sent there.
    """
    async with httpx2.AsyncClient(
        transport=GuardedTransport(reachable, resolver),
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        timeout=timeout.total_seconds(),
        trust_env=False,
        headers={"user-agent": user_agent},
    ) as client:
        yield client
