"""The port of a channel: one attempt to bring one message to one receiver."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

from soong.orchestrator.notifications.message import Message
from soong.shared.core import timing
from soong.shared.core.value import Value

GONE: Final = 410


class Delivery(Value):
    """The result of an attempt. ``error`` is one sentence without secrets, empty when it was accepted.

    ``is_gone``: the receiver wants nothing any more. ``retry_after_s`` is how long it asked to wait.
    ``is_partial``: some of several addresses accepted it, so it is not sent again.
    """

    error: str = ""
    is_gone: bool = False
    retry_after_s: float = 0.0
    is_partial: bool = False

    @property
    def is_sent(self) -> bool:
        return not self.error or self.is_partial


class Channel(Protocol):
    async def send(self, message: Message) -> Delivery:
        """Send it once. Whatever the receiver or the network does is a result and raises nothing.

        Raises: InvalidConfigError, a secret that the channel refers to cannot be read.
        """
        ...


async def post(url: str, body: bytes, headers: Mapping[str, str], now_us: int) -> Delivery:
    """Post JSON and say what came back. The URL may be a secret, so no result contains it."""
    import httpx2  # not needed where nobody is notified over HTTP

    sent = {"Content-Type": "application/json", "User-Agent": "soong-notifications", **headers}
    try:
        async with (
            httpx2.AsyncClient(follow_redirects=False, timeout=timing.EXCHANGE_LIMIT_S) as client,
            client.stream("POST", url, content=body, headers=sent) as response,
        ):
            status, retry_after = response.status_code, response.headers.get("Retry-After", "")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Delivery(f"the receiver cannot be reached ({type(error).__name__})")
    if 200 <= status < 300:
        return Delivery()
    if status == GONE:
        return Delivery("the receiver answered 410 Gone: it takes no more messages", is_gone=True)
    if 300 <= status < 400:
        return Delivery(f"the receiver answered {status}; redirects are not followed, so name its final address")
    return Delivery(f"the receiver answered {status}", retry_after_s=seconds_of(retry_after, now_us))


def seconds_of(retry_after: str, now_us: int) -> float:
    """Return the seconds of a ``Retry-After`` header (RFC 9110, section 10.2.3); 0 where there is none or another."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), timing.DAY_S)
    try:
        until = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    delay_s = (until - datetime.fromtimestamp(now_us / 1_000_000, UTC)).total_seconds()
    return min(max(0.0, delay_s), timing.DAY_S)
