"""The normal name of a host, the class of an address, and the hosts of one permitted call (PER-09).

The judgement; :mod:`soong.shared.sandbox.network` makes connections by it. A resolver takes many spellings for one host
(``127.1``, ``0x7f000001``, full-width digits, ``EXAMPLE.org.``); everything here is compared in one of them.
``ipaddress.is_global`` calls NAT64 and 6to4 forms of the loopback global, so the ranges are written out below and
addresses in addresses are looked into (RFC 6890, RFC 6052, RFC 3056).
"""

import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, IPv6Network, ip_network
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from soong.shared.core.errors import SoongError
from soong.shared.core.value import Value

MAX_HOST_CHARS: Final = 253
MAX_LABEL_CHARS: Final = 63
MAX_URL_CHARS: Final = 8_192

Address: TypeAlias = IPv4Address | IPv6Address

_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"0x[0-9a-f]*|[0-9]+", re.ASCII)
_FULL_STOPS: Final = str.maketrans({"\u3002": ".", "\uff0e": ".", "\uff61": "."})

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried, one after another."""
MAX_REDIRECTS: Final = 5

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a normal host, in the order in which to try them."""


class HostRefusedError(SoongError):
    """A host or URL that nothing is asked for and nothing connects to; the message has the reason."""


class AddressClass(StrEnum):
    """The class of an address. A policy that names a host opens NEAR ones; SPECIAL ones only by the address itself."""

    PUBLIC = "public"
    NEAR = "near"
    SPECIAL = "special"


_NEAR: Final = tuple(
    map(
        ip_network,
        (*("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), *("::1/128", "fc00::/7")),
    )
)
_SPECIAL: Final = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # "this network": reaches the machine itself
            "100.100.100.200/32",  # metadata of a cloud, inside the shared range
            "168.63.129.16/32",  # metadata of a cloud, inside a public range
            "169.254.0.0/16",  # link-local, with the metadata of most clouds
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
            "64:ff9b:1::/48",  # NAT64 to whatever the local network maps
            "2001::/23",  # protocol assignments, among them Teredo, which carries another address
            *("2001:db8::/32", "3fff::/20"),
            "fd00:ec2::254/128",  # metadata of a cloud
        ),
    )
)
_PUBLIC_6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")


@lru_cache(maxsize=4096)
def normal_host(host: str) -> str:
    """Return a host as it is compared: ASCII, lower case, no final dot; a number as the address it resolves to.
    Raises: HostRefusedError, no resolver takes it, or two would take it for different hosts.
    """
    if host.startswith("[") and host.endswith("]"):
        return str(_read_ipv6(host[1:-1], host))
    if ":" in host:
        return str(_read_ipv6(host, host))
    plain = unicodedata.normalize("NFKC", host.translate(_FULL_STOPS)).casefold()
    plain = "".join(char for char in plain if unicodedata.category(char) != "Cf").removesuffix(".")
    labels = plain.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return str(_read_ipv4(labels, host))
    name = ".".join(_ascii(label, host) for label in labels)
    if len(name) > MAX_HOST_CHARS:
        raise HostRefusedError(f"{host[:80]!r}… has more than {MAX_HOST_CHARS} characters, which no host has")
    return name


def is_host_within(host: str, wanted: str) -> bool:
    """Say whether a host is the wanted one, or lies below ``*.domain``; False for text that is not a host."""
    below = wanted.startswith("*.")
    try:
        host, wanted = normal_host(host), normal_host(wanted.removeprefix("*."))
    except HostRefusedError:
        return False
    is_address = ":" in host or host.rpartition(".")[2].isdigit()
    return host.endswith(f".{wanted}") and not is_address if below else host == wanted


def host_of_url(url: str) -> str:
    """Return the normal host of an http or https URL, for a tool's target and the policy.
    Raises: HostRefusedError, another scheme, a user in it, or a spelling that parsers read differently.
    """
    if len(url) > MAX_URL_CHARS:
        raise HostRefusedError(f"the URL has more than {MAX_URL_CHARS} characters")
    if "\\" in url or any(char.isspace() or unicodedata.category(char) == "Cc" for char in url):
        raise HostRefusedError(f"{url[:200]!r} holds a backslash, a space or a control character; write a plain URL")
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError as error:
        raise HostRefusedError(f"{url[:200]!r} is not a URL: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise HostRefusedError(f"{url[:200]!r} is not an http or https URL")
    if "@" in parts.netloc:
        raise HostRefusedError(f"{url[:200]!r} carries a user name, which hides where it leads; leave it out")
    return normal_host(host)


def reach_of(address: str) -> AddressClass:
    """Say where an address leads, whatever it is wrapped in. Raises: HostRefusedError, it is not an address."""
    try:
        inner = _unwrapped(IPv6Address(address.partition("%")[0]) if ":" in address else IPv4Address(address))
    except AddressValueError as error:
        raise HostRefusedError(f"{address!r} is not an address") from error
    if any(inner in network for network in _SPECIAL):
        return AddressClass.SPECIAL
    if any(inner in network for network in _NEAR):
        return AddressClass.NEAR
    return AddressClass.PUBLIC if isinstance(inner, IPv4Address) or inner in _PUBLIC_6 else AddressClass.SPECIAL


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _SIX_TO_FOUR:
        return IPv4Address((number >> 80) & 0xFFFFFFFF)
    if address in _NAT64 or (address in _COMPATIBLE and number > 1):
        return IPv4Address(number & 0xFFFFFFFF)
    return address


def _read_ipv6(text: str, host: str) -> Address:
    if "%" in text:
        raise HostRefusedError(f"{host!r} names an interface; such addresses are not reached")
    try:
        address = IPv6Address(text)
    except AddressValueError as error:
        raise HostRefusedError(f"{host[:200]!r} is neither a host name nor an address") from error
    return address.ipv4_mapped or address


def _read_ipv4(labels: list[str], host: str) -> IPv4Address:
    """Read one to four numbers, decimal, octal or hexadecimal, as the C library does; the last fills the rest."""
    try:
        numbers = [_number(label) for label in labels]
    except ValueError as error:
        raise HostRefusedError(f"{host[:200]!r} ends in a number and is not an address") from error
    *first, last = numbers
    if len(numbers) > 4 or any(number > 255 for number in first) or last >= 256 ** (5 - len(numbers)):
        raise HostRefusedError(f"{host[:200]!r} ends in a number and is not an address")
    head = sum(number << (8 * (3 - place)) for place, number in enumerate(first))
    return IPv4Address(head + last)


def _number(label: str) -> int:
    if not _NUMBER.fullmatch(label) or len(label) > 12:
        raise ValueError(label)
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8) if label.startswith("0") and len(label) > 1 else int(label)


def _ascii(label: str, host: str) -> str:
    try:
        plain = label if label.isascii() else label.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise HostRefusedError(f"{host[:200]!r} is not a host name: {error}") from error
    if len(plain) > MAX_LABEL_CHARS or not _LABEL.fullmatch(plain):
        raise HostRefusedError(f"{host[:200]!r} is not a host name")
    return plain


class EgressPolicy(Value):
    """The hosts that one call may connect to. ``host`` is the one it was permitted for.

    ``may_follow`` returns whether a redirect may lead to another host without a question. ``is_named`` returns whether
    the policy writes a host out: only such a one may be on this machine or its private network.
    """

    host: str
    may_follow: Callable[[str], bool] = lambda _host: False
    is_named: Callable[[str], bool] = lambda _host: False

    def check_url(self, url: str) -> str:
        """Return the normal host of a URL that may be fetched.
        Raises: HostRefusedError, it leads elsewhere, or is not a plain http or https URL.
        """
        host = host_of_url(url)
        if host != normal_host(self.host) and not self.may_follow(host):
            raise HostRefusedError(
                f"{host!r} is not the host that was permitted, {self.host!r}, and the policy does not allow it unasked"
            )
        return host

    def check_address(self, host: str, address: str) -> None:
        """Judge what a host resolves to. Raises: HostRefusedError, it leads where this host may not."""
        reach = reach_of(address)
        is_open = reach is AddressClass.PUBLIC
        if is_open or (self.is_named(host) and (reach is AddressClass.NEAR or normal_host(address) == host)):
            return
        where = "a private" if reach is AddressClass.NEAR else "a special"
        raise HostRefusedError(
            f"{host!r} leads to {where} address, {address}; only a host that the policy names may lead there"
        )


async def checked_addresses(reachable: EgressPolicy, host: str, port: int, resolver: Resolver) -> tuple[str, ...]:
    """Resolve a host and judge every address: one that may not be reached condemns the name.
    Raises: HostRefusedError, one of them may not be reached, or there is none.
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
