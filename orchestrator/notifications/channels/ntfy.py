"""ntfy: a topic that phones and desktops subscribe to (https://docs.ntfy.sh/publish/#publish-as-json)."""

import json
from typing import Final

from soong.orchestrator.notifications.channels.channel import Delivery, post
from soong.orchestrator.notifications.message import Message
from soong.shared.core.clock import Clock
from soong.shared.core.notification_config import NtfyConfig
from soong.shared.core.references import resolved
from soong.shared.core.value import Value

MAX_BYTES: Final = 3500
"""A server makes an attachment of a longer message (4,096 bytes)."""
HIGH: Final = 4
NORMAL: Final = 3


class NtfyChannel(Value):
    """Implements :class:`soong.orchestrator.notifications.channels.channel.Channel`."""

    name: str
    config: NtfyConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        place = f"notifications.ntfy.{self.name}"
        config = self.config
        values = resolved({"url": config.url, "topic": config.topic, "token": config.token}, place)
        published = {
            "topic": values["topic"],
            "title": message.title,
            "message": cut("\n".join(message.lines), MAX_BYTES),
            "priority": HIGH if message.is_question else NORMAL,
            **({"click": message.link} if message.link else {}),
        }
        headers = {"Authorization": f"Bearer {values['token']}"} if values["token"] else {}
        body = json.dumps(published, ensure_ascii=True).encode()
        return await post(f"{values['url'].rstrip('/')}/", body, headers, self.clock.now_us())


def cut(text: str, limit: int) -> str:
    """Return text of at most so many bytes of UTF-8, with a mark where it was longer."""
    data = text.encode("utf-8", "backslashreplace")
    return text if len(data) <= limit else f"{data[: limit - 3].decode('utf-8', 'ignore')}…"
