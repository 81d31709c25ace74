"""Slack, by an incoming webhook (https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks).

All of the content is in ``plain_text`` objects, in which Slack reads no markup, mention or link. The fallback text is
markup, so it is escaped.
"""

import json
from typing import Final

from soong.orchestrator.notifications.channels.channel import Delivery, post
from soong.orchestrator.notifications.message import Message
from soong.shared.core.clock import Clock
from soong.shared.core.jsontext import Json
from soong.shared.core.notification_config import SlackConfig
from soong.shared.core.references import resolved
from soong.shared.core.value import Value

MAX_HEADER: Final = 150
MAX_TEXT: Final = 3000


class SlackChannel(Value):
    """Implements :class:`soong.orchestrator.notifications.channels.channel.Channel`."""

    name: str
    config: SlackConfig
    clock: Clock

    async def send(self, message: Message) -> Delivery:
        url = resolved({"url": self.config.url}, f"notifications.slack.{self.name}")["url"]
        return await post(url, json.dumps(blocks_of(message)).encode(), {}, self.clock.now_us())


def blocks_of(message: Message) -> dict[str, Json]:
    """Return the document of a message."""
    blocks: list[Json] = [
        {"type": "header", "text": _plain(message.title, MAX_HEADER)},
        {"type": "section", "text": _plain("\n".join(message.lines), MAX_TEXT)},
    ]
    if message.link:
        button: Json = {"type": "button", "text": _plain("Open", MAX_HEADER), "url": message.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": escaped(message.title), "blocks": blocks}


def escaped(text: str) -> str:
    """Return text that Slack's markup shows as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str, limit: int) -> Json:
    return {"type": "plain_text", "text": text if len(text) <= limit else f"{text[: limit - 1]}…", "emoji": False}
