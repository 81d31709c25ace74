"""The transport behind :func:`soong.shared.sandbox.network.open_client`. Apart, because it needs the HTTP library."""

import asyncio

import httpx2

from soong.shared.sandbox.egress import EgressPolicy, Resolver, checked_addresses


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
        """Send one request. Raises: HostRefusedError; what the library raises."""
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
