"""What one permitted call may connect to: hosts, redirects and the addresses that names resolve to (PER-09).

Pure judgement; :mod:`soong.shared.sandbox.network` makes connections by it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from soong.shared.core.value import Value
from soong.shared.sandbox.hosts import AddressClass, HostRefusedError, host_of_url, normal_host, reach_of

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried, one after another."""

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a normal host, in the order in which to try them."""


def _nobody(_host: str) -> bool:
    return False


class EgressPolicy(Value):
    """What one call may connect to. ``host`` is the one it was permitted for.

    ``may_follow`` says of another host whether a redirect may lead there without anybody being asked. ``is_named`` says
    whether the policy writes a host out: only such a one may be on this machine or its private network.
    """

    host: str
    may_follow: Callable[[str], bool] = _nobody
    is_named: Callable[[str], bool] = _nobody

    def check_url(self, url: str) -> str:
        """Return the normal host of a URL that may be fetched.

        Raises:
            HostRefusedError: it leads elsewhere, or is not a plain http or https URL.
        """
        host = host_of_url(url)
        if host != normal_host(self.host) and not self.may_follow(host):
            raise HostRefusedError(
                f"{host!r} is not the host that was permitted, {self.host!r}, and the policy does not allow it unasked"
            )
        return host

    def check_address(self, host: str, address: str) -> None:
        """Judge what a host resolves to.

        Raises:
            HostRefusedError: it leads where this host may not.
        """
        reach = reach_of(address)
        if reach is AddressClass.PUBLIC:
            return
        if reach is AddressClass.NEAR and self.is_named(host):
            return
        if normal_host(address) == host and self.is_named(host):
            return
        where = "a private" if reach is AddressClass.NEAR else "a special"
        raise HostRefusedError(
            f"{host!r} leads to {where} address, {address}; only a host that the policy names may lead there"
        )


async def checked_addresses(reachable: EgressPolicy, host: str, port: int, resolver: Resolver) -> tuple[str, ...]:
    """Resolve a host and judge every address: one that may not be reached condemns the name.

    Raises:
        HostRefusedError: one of them may not be reached, or there is none.
    """
    try:
        addresses = await resolver(host, port)
    except OSError as error:
        raise HostRefusedError(f"{host!r} cannot be resolved: {error}") from error
    if not addresses:
        raise HostRefusedError(f"{host!r} has no address")
    for address in addresses:
        reachable.check_address(host, address)
    return tuple(addresses[:MAX_ADDRESSES])
