"""Validates the Host and Origin headers before a request is processed. Pure; nothing is read or written.

Against pages in the user's browser (threat 25): a name that an attacker points at us (DNS rebinding) is not a host of
ours, a page of another origin is refused whatever it asks for, and there is no cookie that it could ride on.
"""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core.errors import UsageError
from soong.shared.core.value import Value

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_NAME: Final = re.compile(r"[a-z0-9._-]{1,253}")

Scope = Any
"""An ASGI connection scope."""


class RequestPolicy(Value):
    """``hosts`` are names without ports, lower case; ``origins`` are written out in full (``https://console.example``)."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, allow_hosts: Sequence[str], origins: Sequence[str]) -> "RequestPolicy":
        """Return the borders of a server that is also called by these names, and from these pages.

        Raises: UsageError.
        """
        for origin in origins:
            parts = urlsplit(origin)
            if (
                parts.scheme not in {"http", "https"}
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise UsageError(
                    f"invalid origin {origin!r}: expected scheme://host[:port], for example https://console.example:8443"
                )
        for host in allow_hosts:
            if not _is_name(host):
                raise UsageError(
                    f"invalid host {host!r}: expected a name without scheme and port, for example console.example"
                )
        return cls(LOOPBACK_NAMES | {host.strip("[]").lower() for host in allow_hosts}, frozenset(origins))

    def check(self, scope: Scope) -> bool:
        """Say whether a browser asks whether a page may ask, whose origin is one of ours. Raises: ProblemError."""
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        host = self._check_host([value for name, value in headers if name == b"host"])
        # A person may follow a link to the console's page, as from a mail: it shows nothing by itself.
        if (scope["method"], scope["path"]) != ("GET", "/") or (b"sec-fetch-mode", b"navigate") not in headers:
            self._check_origin(headers, host)
        if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in headers):
            raise ProblemError(
                ProblemCode.UPGRADE_NOT_ALLOWED, "there are no WebSockets here; streams are sent as events"
            )
        names = {name for name, _ in headers}
        is_asked = {b"origin", b"access-control-request-method"} <= names
        return bool(self.origins) and scope["method"] == "OPTIONS" and is_asked

    def _check_host(self, given: Sequence[bytes]) -> str:
        host = given[0].decode("latin-1").lower() if len(given) == 1 else ""
        name = name_of(host)
        if name is None or name not in self.hosts:
            detail = "this server does not answer for that host; `--allow-host NAME` adds one"
            raise ProblemError(ProblemCode.HOST_NOT_ALLOWED, detail)
        return host

    def _check_origin(self, headers: Sequence[tuple[bytes, bytes]], host: str) -> None:
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        own = {f"http://{host}", f"https://{host}"}
        if any(origin.lower() not in own and origin not in self.origins for origin in origins):
            raise ProblemError(ProblemCode.ORIGIN_NOT_ALLOWED, "pages of that origin may not call this server")
        site = next((value for name, value in headers if name == b"sec-fetch-site"), b"")
        if not origins and site in {b"cross-site", b"same-site"}:
            # A browser says so of a link, an image or a form of another page, which send no Origin.
            raise ProblemError(ProblemCode.ORIGIN_NOT_ALLOWED, "a page of another origin sent the request")


def name_of(host: str) -> str | None:
    """Return the name in a Host header, lower case, without port and brackets; None when it is not a host."""
    found = _HOST.fullmatch(host.lower())
    return None if found is None else found["name"].strip("[]")


def _is_name(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return _NAME.fullmatch(host.lower()) is not None
    return True
