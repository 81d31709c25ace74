"""Signed webhooks, by the Standard Webhooks specification 1.0 (https://www.standardwebhooks.com)."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Final

from soong.orchestrator.notifications.channels.channel import Delivery, post
from soong.orchestrator.notifications.message import Message
from soong.shared.core.clock import Clock
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.notification_config import WebhookConfig
from soong.shared.core.references import resolved
from soong.shared.core.value import Value

PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)


class WebhookChannel(Value):
    """Implements :class:`soong.orchestrator.notifications.channels.channel.Channel`."""

    name: str
    config: WebhookConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        place = f"notifications.webhook.{self.name}"
        values = resolved({"url": self.config.url, "secret": self.config.secret}, place)
        now_us = self.clock.now_us()
        body = json.dumps(message.as_json(), separators=(",", ":"), ensure_ascii=True).encode()
        headers = signed_headers(message.id, now_us // 1_000_000, body, keys_of(values["secret"], place))
        return await post(values["url"], body, headers, now_us)


def signed_headers(message_id: str, timestamp_s: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the three headers; with several keys there is a signature by each, so that a key can be replaced."""
    content = f"{message_id}.{timestamp_s}.".encode() + body
    digests = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{digest}" for digest in digests),
    }


def keys_of(secret: str, place: str) -> list[bytes]:
    """Return the keys of a secret, which may be several, separated by spaces.

    Raises: InvalidConfigError, which shows nothing of it.
    """
    expected = f"{PREFIX} and the base64 of {KEY_BYTES.start} to {KEY_BYTES.stop - 1} random bytes"
    keys = []
    for word in secret.split():
        try:
            key = base64.b64decode(word.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidConfigError(f"{place}.secret: is not a signing secret; expected {expected}") from None
        if len(key) not in KEY_BYTES:
            raise InvalidConfigError(f"{place}.secret: is a key of {len(key)} bytes; expected {expected}")
        keys.append(key)
    if not keys:
        raise InvalidConfigError(f"{place}.secret: is empty; expected {expected}")
    return keys
